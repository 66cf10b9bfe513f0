"""The promises about rows without keys, odd sizes, odd memory, and equal answers by other roads."""

import itertools
import warnings

import pytest
import relpos
import torch
from relpos._call.call import Call

from tests.support.call import Given
from tests.support.oracle import allowed_pairs, exclusive, formula, gradients, oracle_of, positions
from tests.support.promise import missed, promised, work_type
from tests.support.sample import HEADS, NAMES, configurations, position, tensors, trained
from tests.support.steps import same_bits, step

pytestmark = pytest.mark.usefixtures("one_thread")

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


QUERIES, KEYS = 67, 66


def empty_rows():
    """{kind: a call in which some or all rows see no key}."""
    place = {"q_offset": 0}
    low = torch.arange(QUERIES) % KEYS
    seen = torch.rand(2, HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(1)) < 0.5
    seen[:, :, ::3] = False
    return {
        "before the first key": {"q_offset": -5, "is_causal": True},
        "window past the keys": {"q_offset": KEYS - 3, "window": (0, 4)},
        "padding": place | {"key_padding_mask": torch.tensor([[True] * KEYS, [False] * KEYS])},
        "range": place | {"key_range": (low, low + (low % 3) - 1)},
        "bool mask": place | {"attn_mask": seen},
        "float mask": place | {"attn_mask": torch.where(seen, 0.25, -torch.inf)},
    }


@pytest.mark.parametrize(("kind", "name"), list(itertools.product(empty_rows(), NAMES)))
def test_rows_without_keys(kind, name):
    call = empty_rows()[kind]
    masks = {n: x for n, x in call.items() if n != "q_offset"}
    pos_q, pos_k = positions(2, QUERIES, KEYS, q_offset=call["q_offset"])
    alive = allowed_pairs(pos_q, pos_k, heads=HEADS, **masks).any(-1)
    assert not alive.all()
    for dtype in DTYPES:
        module, _ = position(name, dtype=dtype)
        q, k, v, dout = tensors(batch=2, queries=QUERIES, keys=KEYS, dtype=dtype)
        q[0, 0, ~alive[0, 0]] = torch.nan
        typed = dict(call)
        if kind == "float mask":
            typed["attn_mask"] = call["attn_mask"].to(dtype)
        seed = torch.ones(q.shape[:3], dtype=work_type(dtype))
        out, lse, dq, *grads = step(q, k, v, dout, module, seed, **typed)
        assert (out[~alive] == 0).all()
        assert torch.equal(lse == -torch.inf, ~alive)
        assert out[alive].isfinite().all()
        assert all(grad.isfinite().all() for grad in (dq, *grads))
        assert (dq[~alive] == 0).all()


SIZES = [(0, 3, 4), (2, 0, 4), (2, 3, 0), (2, 0, 0)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("causal", [False, True])
def test_empty_tensors(name, causal):
    module, _ = position(name)
    for (batch, queries, keys), by_row in itertools.product(SIZES, [False, True]):
        q, k, v, dout = tensors(batch=batch, queries=queries, keys=keys)
        call = {"q_offset": 0, "is_causal": causal}
        if by_row:
            rows = [torch.zeros(batch, n, dtype=torch.int64) for n in (queries, keys)]
            ranges = torch.zeros(queries, dtype=torch.int64), torch.full_like(rows[0], keys)
            placed = {"q_positions": rows[0], "k_positions": rows[1], "key_range": ranges}
            call = placed | {"is_causal": causal}
        out, lse, dq, dk, dv, *tables = step(q, k, v, dout, module, **call)
        assert out.shape == dout.shape
        assert lse.shape == dout.shape[:3]
        assert (out == 0).all()
        assert (lse == -torch.inf).all()
        for grad, x in zip((dq, dk, dv), (q, k, v), strict=True):
            assert torch.equal(grad, torch.zeros_like(x))
        assert all((grad == 0).all() for grad in tables)


def other_memory(x):
    """The same numbers in strange places."""
    flat = x.detach().contiguous()
    bytes_ = bytearray(1) + bytearray(flat.view(torch.uint8).numpy().tobytes())
    yield "unaligned", torch.frombuffer(bytes_, dtype=x.dtype, offset=1).view(x.shape)
    yield "heads last", flat.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    yield "transposed", flat.transpose(2, 3).contiguous().transpose(2, 3)
    wide = flat.new_full((x.shape[0], x.shape[1], 3 * x.shape[2], 2 * x.shape[3] + 1), torch.nan)
    wide[:, :, 1::3, 1::2] = flat
    yield "among NaN", wide[:, :, 1::3, 1::2]
    if x.dtype == torch.float32:
        frozen = flat.numpy().copy()
        frozen.flags.writeable = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield "read-only", torch.from_numpy(frozen)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_strides_alignment_and_read_only_inputs(name, dtype):
    module, _ = position(name, dtype=dtype)
    q, k, v, dout = tensors(batch=2, queries=33, keys=33, dtype=dtype)
    plain = step(q, k, v, dout, module)
    strange = zip(*(other_memory(x) for x in (q, k, v, dout)), strict=True)
    tight = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {}
    for places in strange:
        held = [x.clone() for _, x in places]
        for got, was in zip(step(*(x for _, x in places), module), plain, strict=True):
            torch.testing.assert_close(got, was, **tight, msg=lambda m, p=places: f"{p[0][0]}: {m}")
        same_bits(held, [x for _, x in places])


def test_overlapping_and_broadcast_inputs():
    base = torch.randn(500, generator=torch.Generator().manual_seed(3))
    q = base.as_strided((1, HEADS, 40, 8), (0, 3, 2, 1))
    k = base[7:8].expand(1, HEADS, 40, 8)
    v = base.as_strided((1, HEADS, 40, 6), (0, 0, 1, 0), 50)
    dout = base[9:10].expand(1, HEADS, 40, 6)
    copies = [x.clone(memory_format=torch.contiguous_format) for x in (q, k, v, dout)]
    for got, was in zip(step(q, k, v, dout), step(*copies), strict=True):
        torch.testing.assert_close(got, was, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_written_whole(name):
    """Every output starts as NaN; none is left over."""
    module, _ = position(name)
    calls = [
        {"is_causal": True, "q_offset": 3},
        {"q_offset": -9, "window": (2, 1)},
        {"q_offset": 0, "key_padding_mask": torch.arange(66).expand(2, 66) > 20},
        {"q_offset": 0, "attn_mask": torch.ones(69, 66).tril(-4).bool()},
    ]
    inputs = tensors(batch=2, queries=69, keys=66)
    plain = [step(*inputs, module, **call) for call in calls]
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        assert torch.empty(3).isnan().all()
        filled = [step(*inputs, module, **call) for call in calls]
    finally:
        torch.use_deterministic_algorithms(False)
    for one, other in zip(plain, filled, strict=True):
        same_bits(one, other)


def each_row_alone(inputs, module, q_offset, key_padding_mask=None, **call):
    """Each row of a batch by itself, to the bit; not of what all rows add to."""
    padded = {} if key_padding_mask is None else {"key_padding_mask": key_padding_mask}
    whole = step(*inputs, module, q_offset=q_offset, **padded, **call)
    for b in range(len(q_offset)):
        row = slice(b, b + 1)
        own = {name: x[row] for name, x in padded.items()}
        alone = step(*(x[row] for x in inputs), module, q_offset=int(q_offset[b]), **own, **call)
        same_bits([x[row] for x in whole[:5]], alone[:5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_row_does_not_depend_on_the_batch(name, dtype):
    module, _ = position(name, dtype=dtype)
    inputs = tensors(batch=5, queries=70, keys=90, dtype=dtype)
    padding = torch.arange(90)[None, :] >= torch.tensor([90, 1, 64, 65, 40])[:, None]
    offsets = torch.tensor([20, 0, 3, -4, 50])
    each_row_alone(inputs, module, offsets, padding, is_causal=True)


@pytest.mark.parametrize("name", ["shaw", "music_transformer"])
def test_with_wide_tables_a_batch_row_does_not_depend_on_the_batch(name):
    """Sums over more distances than one chain takes, which begin elsewhere in each row."""
    inputs = tensors(batch=3, queries=100, keys=400)
    head_dim, value_dim = inputs[0].shape[-1], inputs[2].shape[-1]
    module = {
        "shaw": relpos.Shaw(330, head_dim, value_dim=value_dim),
        "music_transformer": relpos.MusicTransformer(330, head_dim),
    }[name]
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    each_row_alone(inputs, module, torch.tensor([0, 150, 227]))


@pytest.mark.parametrize("name", NAMES)
def test_few_queries_on_a_long_cache(name):
    module, parts = position(name)
    for queries in (1, 3):
        inputs = tensors(batch=2, queries=queries, keys=5000, key_heads=2, seed=queries)[:3]
        call = {
            "q_offset": torch.tensor([4999, 1234]),
            "is_causal": True,
            "key_padding_mask": torch.arange(5000).expand(2, -1) % 7 == 3,
        }
        out = relpos.attention(*inputs, position=module, enable_gqa=True, **call)
        promise = promised(Given(inputs, parts, **call))[0]["out"]
        assert missed("out", out, promise) is None


@pytest.mark.parametrize("queries", [5, 12, 16, 17])
def test_an_lse_in_double_of_few_queries_fits_the_scores_of_the_backward_pass(queries):
    """Each weight that the backward pass finds from it sums up to 1 in its row."""
    draw = torch.Generator().manual_seed(queries)
    q, k, v = torch.randn(3, 2, HEADS, 24, 16, generator=draw).unbind(0)
    q = 4 * q[:, :, :queries].contiguous()
    call = Call.of("attention", q, k, {"q_offset": 0})
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3], dtype=torch.float64)
    relpos._core.attention(q, k, v, call, out, lse, None)
    assert lse.max() > 8  # of which float32 would round half a unit, 5e-7, away
    for row in range(queries):
        dout, dv = torch.zeros_like(out), torch.empty_like(v)
        dout[:, :, row, 0] = 1.0
        given = (q, k, v, out, lse, dout, None)
        relpos._core.attention_backward(given, call, [None, None, dv, None])
        assert (dv[..., 0].double().sum(-1) - 1).abs().max() < 5e-7


@pytest.mark.parametrize(("name", "number"), configurations())
def test_unused_rows_have_gradient_exactly_zero(name, number):
    for call in ({"is_causal": True}, {"window": (3, 1)}, {"q_offset": 4, "is_causal": True}):
        for dtype in (torch.float32, torch.bfloat16):
            module, part = trained(name, number, dtype=dtype)
            q, k, v, dout = tensors(batch=2, queries=11, keys=11, dtype=dtype)
            got = step(q, k, v, dout, module, **call)[5:]
            for parameter, grad, used in zip(
                module.parameters(), got, usage(part, 11, **call), strict=True
            ):
                assert grad.dtype == parameter.dtype
                assert (grad[~used] == 0).all()
                assert used.any() == grad.any()


def usage(part, length, q_offset=0, **masks):
    """Which numbers of each trained parameter some visible pair reads."""
    pos_q, pos_k = positions(1, length, length, q_offset=q_offset)
    seen = allowed_pairs(pos_q, pos_k, heads=HEADS, **masks)[0].double()
    wants = {n for n, x in part.parameters.items() if x.requires_grad}
    own = part.cast(torch.float64, wants)
    terms = own.terms(pos_q[0], pos_k[0])
    read = 0.0
    for kind, term in terms.items():
        if kind.endswith("added"):
            read = read + term.sum()
        elif not callable(term):
            read = read + (term * (seen if kind == "bias" else seen[..., None])).sum()
    leaves = [own.parameters[n] for n in wants]
    found = gradients([read], [torch.ones(())], leaves) if leaves else []
    by_name = dict(zip(wants, found, strict=True))
    return [by_name[n] != 0 for n in part.parameters if n in wants]


FAR = [10**6, 2**40]


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("name", NAMES)
def test_far_positions_shift_nothing(name, far):
    """Only distances count. A rotation's angles are doubles: 2^40 leaves them 1e-4 radians."""
    module, _ = position(name)
    inputs = tensors(queries=70, keys=80)
    near = step(*inputs, module, q_offset=10, is_causal=True)
    moved = step(*inputs, module, q_offset=far + 10, k_offset=far, is_causal=True)
    turns = name == "sum" or (name != "none" and "rotates" in exclusive(name))
    if not turns:
        same_bits(near, moved)
    tolerance = {"rtol": 1e-5, "atol": 2e-6 if far == FAR[0] else 2e-3}
    for one, other in zip(near, moved, strict=True):
        largest = max(1.0, float(one.abs().max()))  # what the sums are rounded to
        torch.testing.assert_close(one, other, **tolerance | {"atol": tolerance["atol"] * largest})


STILL = [
    (name, number)
    for name, number in configurations()
    if "rotates" not in exclusive(name) and not hasattr(oracle_of(name), "SPANS")
]


@pytest.mark.parametrize(("name", "number"), STILL)
def test_far_apart_positions(name, number):
    """Positions with gaps of 2^40, in double, to the rounding of the largest score. Not for
    rotations: a double knows an angle of 2^40 radians to 1e-4. Nor for a table with a row for each
    distance."""
    module, part = trained(name, number, dtype=torch.float64)
    inputs = tensors(queries=4, keys=6, dtype=torch.float64)[:3]
    place = {
        "q_positions": torch.tensor([2**40, 0, -(2**40), 17]),
        "k_positions": torch.tensor([5, 2**40 - 1, 0, -(2**40), -3, 2**40]),
    }
    out = relpos.attention(*inputs, position=module, **place)
    exact = formula(inputs, [part], torch.float64, **place)
    rounding = torch.finfo(torch.float64).eps * exact.score.abs().max()
    error, largest = (out - exact.out).abs().max(), exact.out.abs().max()
    assert error <= (1e-12 + 4 * rounding) * largest
