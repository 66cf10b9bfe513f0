"""relpos.from_score_mod and relpos.compat.flex_attention against dense formulas in float64: results
and gradients of queries, keys, values and every tensor that a function captures."""

import pytest
import relpos
import torch
from relpos._flex import known
from relpos._flex import lowered as lowered_module
from relpos._flex.plan import plan_of
from relpos.compat import flex_attention
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from tests.call.flex_functions import (
    DOUBLE,
    FIXED,
    MASKS,
    SCORES,
    B,
    D,
    H,
    Scene,
    alibi,
    capped_bias,
    edges,
    network,
    softcapping,
    table_of_distances,
)
from tests.support.near import close, close_with_gradients
from tests.support.oracle import naive

pytestmark = pytest.mark.usefixtures("one_thread")

LENGTHS = [(37, 37), (1, 70), (70, 41), (19, 133)]


def named(function):
    return function.__name__


def leaves_of(scene):
    return [scene.query, scene.key, scene.value]


def blocks_of(mask_mod, queries, keys, size=16):
    return create_block_mask(mask_mod, B, H, queries, keys, device="cpu", BLOCK_SIZE=size)


def plus(seen):
    return torch.where(seen, 0.0, -torch.inf)


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("function", SCORES, ids=named)
def test_score_mods(function, queries, keys):
    scene = Scene(queries, keys)
    score_mod, options, trained = function(scene)
    want = naive(scene.query, scene.key, scene.value, **options)
    got = flex_attention(scene.query, scene.key, scene.value, score_mod, return_lse=True)
    close_with_gradients(got, want[:2], [*leaves_of(scene), *trained])


@pytest.mark.parametrize("function", SCORES, ids=named)
def test_score_mods_of_grouped_heads_within_a_block_mask(function):
    scene = Scene(29, 45, kv_heads=2)
    score_mod, options, trained = function(scene)
    blocks = blocks_of(lambda b, h, q_idx, kv_idx: q_idx + 2 >= kv_idx, 29, 45)
    options["mask"] = options.get("mask", 0.0) + plus(scene.distance <= 2)
    want = naive(scene.query, scene.key, scene.value, **options)
    given = scene.query, scene.key, scene.value, score_mod, blocks
    got = flex_attention(*given, enable_gqa=True, return_lse=True)
    close_with_gradients(got, want[:2], [*leaves_of(scene), *trained])
    assert flex_attention(*given, scale=0.3, enable_gqa=True).shape == (B, H, 29, 6)


def both_ways(mask_mod, seen, scene):
    """By a BlockMask, and within a score_mod."""
    want = naive(scene.query, scene.key, scene.value, mask=plus(seen))[:2]
    blocks = blocks_of(mask_mod, scene.queries, scene.keys)

    def score_mod(score, *index):
        return torch.where(mask_mod(*index), score, float("-inf"))

    for given in ({"block_mask": blocks}, {"score_mod": score_mod}):
        got = flex_attention(scene.query, scene.key, scene.value, return_lse=True, **given)
        close_with_gradients(got, want, leaves_of(scene))


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("function", MASKS, ids=named)
def test_mask_mods(function, queries, keys):
    scene = Scene(queries, keys)
    both_ways(*function(scene), scene)


@pytest.mark.parametrize("function", FIXED, ids=named)
def test_mask_mods_of_documents_and_grids(function):
    mask_mod, seen = function()
    both_ways(mask_mod, seen, Scene(*seen.shape))


def test_blocks_that_are_listed_by_hand():
    """A query of block 0 sees block 1 whole and block 2 in part; one of block 1 only block 0."""
    index = torch.tensor([[[[2, 0, 0], [0, 0, 0]]]], dtype=torch.int32)
    whole = torch.tensor([[[[1, 0, 0], [0, 0, 0]]]], dtype=torch.int32)
    blocks = BlockMask.from_kv_blocks(
        torch.tensor([[[1, 1]]], dtype=torch.int32),
        index,
        torch.tensor([[[1, 0]]], dtype=torch.int32),
        whole,
        BLOCK_SIZE=(16, 16),
        mask_mod=lambda b, h, q_idx, kv_idx: kv_idx - q_idx >= 3 - 16 * (q_idx // 16),
        seq_lengths=(27, 40),
    )
    scene = Scene(27, 40)
    seen = torch.zeros(27, 40, dtype=torch.bool)
    seen[:16, 16:32] = True
    seen[:16, 32:] = True  # further than 3 in every pair
    seen[16:, :16] = scene.distance[16:, :16] >= -13
    want = naive(scene.query, scene.key, scene.value, mask=plus(seen))
    got = flex_attention(scene.query, scene.key, scene.value, block_mask=blocks, return_lse=True)
    close_with_gradients(got, want[:2], leaves_of(scene))


def test_blocks_hide_what_a_window_sees():
    """mask_mod sees all, the blocks are those of the diagonal."""
    index = torch.tensor([[[[0, 1, 2], [1, 0, 2], [2, 0, 1]]]], dtype=torch.int32)
    blocks = BlockMask.from_kv_blocks(
        torch.ones(1, 1, 3, dtype=torch.int32), index, BLOCK_SIZE=16, seq_lengths=(40, 40)
    )
    scene = Scene(40, 40)
    number = torch.arange(40) // 16
    mask = plus(number[:, None] == number)
    want = naive(scene.query, scene.key, scene.value, mask=mask).out
    close(flex_attention(scene.query, scene.key, scene.value, block_mask=blocks), want)


def test_options_for_calls_of_any_length():
    scene = Scene(31, 31)
    score_mod, options, trained = table_of_distances(scene)
    lowered = relpos.from_score_mod(score_mod, H, dtype=DOUBLE)
    assert list(lowered.options) == ["position"]
    for count in (31, 7, 1):  # the last tokens, as of a cache
        query = scene.query[:, :, 31 - count :]
        out = relpos.attention(
            query, scene.key, scene.value, q_offset=31 - count, is_causal=True, **lowered.options
        )
        bias = options["bias"] + plus(scene.distance <= 0)
        want = naive(scene.query, scene.key, scene.value, bias).out[:, :, 31 - count :]
        close_with_gradients(out, want, [*leaves_of(scene), *trained])
    with torch.no_grad():  # few queries: tables may be kept, but not from a function
        want = relpos.attention(query, scene.key, scene.value, q_offset=30, **lowered.options)
        trained[0].data.mul_(2)
        got = relpos.attention(query, scene.key, scene.value, q_offset=30, **lowered.options)
        assert not torch.equal(got, want)


def test_windows_are_windows_and_distances_need_no_mask():
    """No tensor of queries and keys is made for what depends on the distance."""
    scene = Scene(40, 56)

    def options(score_mod):
        found = relpos.from_score_mod(score_mod, H).options_for(scene.query, scene.key)
        assert found.pop("q_offset") == 0
        return found

    inf = float("inf")
    causal = options(lambda s, b, h, q, k: torch.where(q >= k, s, -inf))
    assert causal == {"window": (-1, 0)}
    assert options(lambda s, b, h, q, k: torch.where(q < k, -inf, s)) == causal
    near = options(lambda s, b, h, q, k: torch.where((q - k).abs() <= 7, s + (q - k) % 3, -inf))
    assert (near["window"], list(near)) == ((7, 7), ["position", "window"])
    strided = options(lambda s, b, h, q, k: torch.where((q - k) % 3 == 0, s, -inf))
    assert list(strided) == ["position"]
    capped = options(lambda s, b, h, q, k: torch.where(q >= k, 9 * (s / 9).tanh(), -inf))
    assert capped == {"softcap": 9.0, "window": (-1, 0)}
    assert options(lambda s, b, h, q, k: s * 2)["scale"] == 2 * D**-0.5
    assert options(lambda s, b, h, q, k: -s / 4 * 8)["scale"] == -2 * D**-0.5
    assert options(lambda s, b, h, q, k: s) == {}


@pytest.mark.parametrize("function", SCORES, ids=named)
def test_options_for_are_what_flex_attention_gives(function):
    """Beside options of the caller's: a scale, grouped heads and padding."""
    scene = Scene(21, 26, kv_heads=2)
    score_mod, options, trained = function(scene)
    lowered = relpos.from_score_mod(score_mod, H, dtype=DOUBLE)
    scale = 0.3 * options.pop("scale", 1.0) / (D**-0.5 if function is capped_bias else 1.0)
    padding = torch.zeros(B, 26, dtype=torch.bool)
    padding[1, 20:] = True
    options["mask"] = options.get("mask", 0.0) + plus(~padding)[:, None, None]
    want = naive(scene.query, scene.key, scene.value, scale=scale, **options).out
    got = relpos.attention(
        *leaves_of(scene),
        key_padding_mask=padding,
        enable_gqa=True,
        **lowered.options_for(scene.query, scene.key, scale=0.3),
    )
    close_with_gradients(got, want, [*leaves_of(scene), *trained])


def test_scale_and_softcap_of_options():
    doubled = relpos.from_score_mod(lambda s, b, h, q, k: 2 * s, H)
    with pytest.raises(ValueError, match=r"needs scale of a call: give \*\*options_for"):
        doubled.options  # noqa: B018
    scene = Scene(9, 9)
    assert doubled.options_for(scene.query, scene.key, scale=3.0)["scale"] == 6.0
    capped = relpos.from_score_mod(softcapping(scene)[0], H)
    assert capped.options == {"softcap": 3.0}
    with pytest.raises(ValueError, match=r"query: expected \[B, 4, Lq, D\]"):
        doubled.options_for(scene.query[:, :2], scene.key)


def test_describe():
    scene = Scene(9, 9)
    numbers, table = torch.zeros(9), torch.zeros(9, 9)

    def everything(score, b, h, q_idx, kv_idx):
        score = 2 * score + (kv_idx - q_idx) * h + numbers[kv_idx] + 1
        score = torch.where(q_idx % 4 >= kv_idx % 4, score, float("-inf"))
        return torch.where(q_idx >= kv_idx, score + table[q_idx, kv_idx], float("-inf"))

    lowered = relpos.from_score_mod(everything, H)
    assert lowered.describe().splitlines() == [
        "score_mod everything, 4 heads",
        "  score times 2: scale",
        "  1 added: relpos.Position",
        "  bias of h, kv_idx - q_idx: relpos.Position",
        "  bias of kv_idx: relpos.terms.KeyBias",
        "  bias of kv_idx, q_idx: attn_mask",
        "  mask of kv_idx, q_idx: attn_mask",
        "  mask of kv_idx - q_idx: window, or -inf of a relpos.Position",
    ]
    capped = relpos.from_score_mod(softcapping(scene)[0], H)
    assert capped.describe().endswith("  3 tanh(. / 3): softcap")


def test_one_batch_row_of_keys_and_no_pairs():
    scene = Scene(5, 8)
    score_mod, options, _ = alibi(scene)
    key, value = scene.key[:1], scene.value[:1]
    want = naive(scene.query, key, value, **options).out
    close(flex_attention(scene.query, key, value, score_mod), want)
    for function in SCORES:
        for queries, keys in ((0, 5), (5, 0)):
            empty = Scene(queries, keys)
            out = flex_attention(*leaves_of(empty), function(empty)[0])
            assert out.shape == (B, H, queries, 6), function
            assert not out.any()


def test_where_by_places_keywords_and_as_a_method():
    """A mask, its opposite, and one of two scores, however torch.where is called."""
    scene = Scene(17, 23)
    inf, near = float("inf"), scene.distance.abs() <= 6
    slope = scene.trained(H)

    def bias(score, h, q_idx, kv_idx):
        return score + slope[h] * (kv_idx - q_idx)

    ways = [
        lambda cond, a, b: torch.where(cond, a, b),
        lambda cond, a, b: torch.where(cond, input=a, other=b),
        lambda cond, a, b: torch.where(other=b, condition=cond, input=a),
        lambda cond, a, b: torch.where(cond, a, other=b),
        lambda cond, a, b: a.where(cond, b),
        lambda cond, a, b: a.where(other=b, condition=cond),
    ]
    far = slope[:, None, None] * scene.distance
    for way in ways:

        def masked(score, b, h, q_idx, kv_idx, way=way):
            return way((q_idx - kv_idx).abs() <= 6, bias(score, h, q_idx, kv_idx), -inf)

        def either(score, b, h, q_idx, kv_idx, way=way):
            return way((q_idx - kv_idx).abs() <= 6, bias(score, h, q_idx, kv_idx), score + 0.1)

        cases = [(masked, far.masked_fill(~near, -inf)), (either, torch.where(near, far, 0.1))]
        for score_mod, wanted in cases:
            want = naive(*leaves_of(scene), wanted).out
            got = flex_attention(*leaves_of(scene), score_mod)
            close_with_gradients(got, want, [*leaves_of(scene), slope])

    def opposite(score, b, h, q_idx, kv_idx):
        return torch.where(condition=(q_idx - kv_idx).abs() > 6, self=-inf, other=score)

    close(flex_attention(*leaves_of(scene), opposite), naive(*leaves_of(scene), plus(near)).out)


def test_numbers_of_python_are_of_the_scores_dtype():
    """In float64 they are not rounded to float32: added to one of two scores, before a softcap and
    after it. In float32 they make nothing float64."""
    scene = Scene(14, 18)
    near = scene.drawn(2, B, 14, 18).bool()

    def before(score, b, h, q_idx, kv_idx):
        return torch.where(near[b, q_idx, kv_idx], score + 0.1, score - 0.7)

    def after(score, b, h, q_idx, kv_idx):
        score = 2 * torch.tanh(score / 2)
        return torch.where(near[b, q_idx, kv_idx], score + 0.1, 0.7 + 0.1 * (-3.0) + score)

    def distances(score, b, h, q_idx, kv_idx):
        return torch.where(q_idx > kv_idx, 0.1 + score, score - 0.7) + 0.3

    def either(seen, a, b):
        return torch.where(seen, *torch.tensor([a, b], dtype=DOUBLE))

    for score_mod, wanted in (
        (before, {"bias": either(near, 0.1, -0.7)[:, None]}),
        (after, {"softcap": 2.0, "mask": either(near, 0.1, 0.7 + 0.1 * -3.0)[:, None]}),
        (distances, {"bias": either(scene.distance < 0, 0.4, -0.4)}),
    ):
        want = naive(*leaves_of(scene), **wanted)[:2]
        got = flex_attention(*leaves_of(scene), score_mod, return_lse=True)
        close_with_gradients(got, want, leaves_of(scene))
        narrow = [x.detach().float() for x in leaves_of(scene)]
        options = relpos.from_score_mod(score_mod, H).options_for(*narrow[:2])
        parts = options.get("position", [])
        parts = parts if isinstance(parts, list) else [parts]
        made = [x.dense(14, 18, q_offset=0) for x in parts if isinstance(x, relpos.Position)]
        made += [x.table for x in parts if isinstance(x, relpos.terms.PairBias)]
        made += [options["attn_mask"]] if "attn_mask" in options else []
        assert {x.dtype for x in made} == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_functions_see_scores_of_float32(dtype):
    scene = Scene(21, 21)
    seen = []

    def score_mod(score, b, h, q_idx, kv_idx):
        seen.append((score.dtype, score.device.type, score.dim(), tuple(score.shape)))
        return score + (kv_idx - q_idx).to(score.dtype) * score.new_zeros(()) + score.new_ones(())

    given = [x.detach().to(dtype) for x in leaves_of(scene)]
    out = flex_attention(*given, score_mod)
    torch.testing.assert_close(out, relpos.attention(*given))
    assert set(seen) == {(torch.float32, "cpu", 0, ())}


def test_a_function_is_traced_again_where_it_changes():
    """By a number, a shape, a tensor of the same shape, or a function that it calls."""
    scene = Scene(12, 12)

    def made(factor, table, inner):
        def score_mod(score, b, h, q_idx, kv_idx):
            return inner(score * factor) + table[kv_idx - q_idx + table.shape[0] // 2]

        return score_mod

    def capped(score):
        return score

    def doubled(score):
        return score * 2

    for factor, rows, inner in [
        (1, 31, capped),
        (3, 31, capped),
        (3, 25, doubled),
        (1, 31, capped),
    ]:
        table = scene.trained(rows)
        bias = table[scene.distance + rows // 2]
        scale = factor * (2 if inner is doubled else 1) * D**-0.5
        want = naive(scene.query, scene.key, scene.value, bias, scale=scale).out
        got = flex_attention(*leaves_of(scene), made(factor, table, inner))
        close_with_gradients(got, want, [*leaves_of(scene), table])


@pytest.mark.parametrize("function", [network, capped_bias, edges], ids=named)
def test_a_function_is_traced_once(function, monkeypatch):
    """Also where it is made anew in each call, as within a module's forward."""
    traced = []

    def counted(*given):
        traced.append(given)
        return plan_of(*given)

    monkeypatch.setattr(lowered_module, "plan_of", counted)
    known._PLANS.clear()
    for seed in range(3):
        scene = Scene(15, 15, seed=seed)
        score_mod, options, _ = function(scene)
        want = naive(scene.query, scene.key, scene.value, **options).out
        close(flex_attention(*leaves_of(scene), score_mod), want)
    assert len(traced) == 1


def test_a_function_that_changed_is_refused():
    numbers = [1.0]
    lowered = relpos.from_score_mod(lambda s, b, h, q, k: s * numbers[0], H)
    scene = Scene(3, 3)
    lowered.options_for(scene.query, scene.key)
    numbers[0] = 2.0
    with pytest.raises(ValueError, match="expected the function as it was when it was lowered"):
        lowered.options_for(scene.query, scene.key)
