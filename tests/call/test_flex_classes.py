"""Score_mods that look up a number of each pair's class: terms.PairBias, a byte for each pair and
head, against dense formulas in float64 with every gradient."""

import pytest
import relpos
import torch
from relpos._flex import classes
from relpos.compat import flex_attention
from relpos.terms import PairBias
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils._python_dispatch import TorchDispatchMode

from tests.call.flex_functions import DOUBLE, B, H, Scene, edges, spatial
from tests.support.near import close_with_gradients
from tests.support.oracle import naive

pytestmark = pytest.mark.usefixtures("one_thread")


# Each as in flex_functions, with how many terms.PairBias it needs.


def of_all_rows(scene, dtype=torch.uint8):
    """No batch axis, the class before the head, moved by the head, times a constant."""
    classes, table = scene.drawn(9, scene.queries, scene.keys), scene.trained(9 + H, H)
    narrow, heads = classes.to(dtype), torch.arange(H)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score - 0.5 * table[narrow[q_idx, kv_idx] - h + H, h]

    return (
        score_mod,
        {"bias": -0.5 * table[classes[..., None] - heads + H, heads].movedim(-1, 0)},
        [table],
        1,
    )


def of_all_heads(scene):
    """One table for all heads, by rows of classes."""
    classes, table = scene.drawn(200, B, scene.queries, scene.keys), scene.trained(256)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + table[classes[b][q_idx][kv_idx]]

    return score_mod, {"bias": table[classes][:, None]}, [table], 1


def of_the_looked_up(scene):
    """A function of the number that is looked up; of a number that classes hide, too."""
    classes, table = scene.drawn(5, B, scene.queries, scene.keys), scene.trained(H, 5)
    classes[:, :, 0] = 1

    def score_mod(score, b, h, q_idx, kv_idx):
        own = classes[b, q_idx, kv_idx]
        return score + torch.where(own == 0, -torch.inf, 3 * table[h, own].exp() - 1)

    bias = 3 * table[:, classes].transpose(0, 1).exp() - 1
    return score_mod, {"bias": bias.masked_fill(classes[:, None] == 0, -torch.inf)}, [table], 1


def of_clamped(scene):
    """Numbers beyond a byte, clamped before they are looked up, from the end of the table, too."""
    paths = scene.drawn(600, scene.queries, scene.keys) - 300
    table = scene.trained(H, 24)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + table[h, paths[q_idx, kv_idx].clamp(-4, 19)]

    return score_mod, {"bias": table[:, paths.clamp(-4, 19)]}, [table], 1


def of_far_numbers(scene):
    """Few classes, far apart."""
    values = torch.tensor([-7, 2, 10**9, 2**40])
    classes = values[scene.drawn(4, B, scene.queries, scene.keys)]

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + torch.log1p(classes[b, q_idx, kv_idx].abs().to(score.dtype)) * (h + 1) / 8

    heads = torch.arange(1, H + 1, dtype=DOUBLE)[:, None, None] / 8
    return score_mod, {"bias": classes.abs().double().log1p()[:, None] * heads}, [], 1


def of_bools(scene):
    """An adjacency, whose number is chosen by torch.where of two scores."""
    shape = (B, scene.queries, scene.keys)
    near, own = scene.drawn(2, *shape).bool(), scene.trained(H)

    def score_mod(score, b, h, q_idx, kv_idx):
        return torch.where(near[b, q_idx, kv_idx], score + own[h], score - own[h] * own[h])

    each = own[:, None, None]
    return score_mod, {"bias": torch.where(near[:, None], each, -each * each)}, [own], 1


def graphormer(scene):
    """Paths and edges, beside a bias of the distance and one of keys, all added."""
    by_path, options, trained = spatial(scene)
    by_edge, others, more = edges(scene)
    slope, numbers = scene.trained(H), scene.trained(B, H, scene.keys)

    def score_mod(score, b, h, q_idx, kv_idx):
        score = by_edge(by_path(score, b, h, q_idx, kv_idx), b, h, q_idx, kv_idx)
        far = (kv_idx - q_idx).abs().to(score.dtype)
        return score - slope[h] * far - numbers[b, h, kv_idx]

    far = slope[:, None, None] * scene.distance.abs()
    bias = options["bias"] + others["bias"] - far - numbers[:, :, None]
    return score_mod, {"bias": bias}, [*trained, *more, slope, numbers], 4


def sum_of_kinds(scene):
    """One sum of classes, distances and a number, scaled and converted."""
    classes, table = scene.drawn(6, B, scene.queries, scene.keys), scene.trained(H, 6)
    slope = scene.trained(H)

    def score_mod(score, b, h, q_idx, kv_idx):
        total = 2.5 + table[h, classes[b, q_idx, kv_idx]] - slope[h] * (q_idx - kv_idx)
        return score + (total / 2).to(score.dtype) * slope.detach()[h]

    bias = 2.5 + table[:, classes].transpose(0, 1) + slope[:, None, None] * scene.distance
    return score_mod, {"bias": bias / 2 * slope.detach()[:, None, None]}, [table, slope], 1


def of_the_class_itself(scene):
    """Narrow integers, which would wrap if a sum of them were not taken apart in its own dtype, and
    a sum that is rounded as a whole."""
    shape = (B, scene.queries, scene.keys)
    classes, table = scene.drawn(100, *shape), scene.trained(H, 4)
    others, small = scene.drawn(4, *shape), scene.drawn(2, *shape).bool()
    classes = classes + 156
    narrow = classes.to(torch.uint8)

    def score_mod(score, b, h, q_idx, kv_idx):
        at = b, q_idx, kv_idx
        total = 3 * (table[h, others[at]] - (narrow[at] + 0.5)) - (small[at] + table[h, 0])
        rounded = (narrow[at] * 7 + 0.25 + small[at]).half().to(score.dtype)
        return score + 0.01 * total + 0.001 * rounded - narrow[at]

    looked = table[:, others].transpose(0, 1) - classes[:, None] - 0.5
    total = 3 * looked - small[:, None].double() - table[:, 0, None, None]
    wrapped = (7 * classes % 256 + small)[:, None] + 0.25
    bias = 0.01 * total + 0.001 * wrapped.half().double() - classes[:, None]
    return score_mod, {"bias": bias}, [table], 5


def within_a_cap(scene):
    """Before a softcap, where no mask of numbers could stand."""
    classes, table = scene.drawn(6, B, scene.queries, scene.keys), scene.trained(H, 6)

    def score_mod(score, b, h, q_idx, kv_idx):
        return 3 * torch.tanh((score + table[h, classes[b, q_idx, kv_idx]]) / 3)

    bias = table[:, classes].transpose(0, 1)
    return score_mod, {"bias": bias, "softcap": 3.0}, [table], 1


def paths_and_edges(scene):
    return (*spatial(scene), 1)


def means_of_edges(scene):
    return (*edges(scene), 3)


FUNCTIONS = [paths_and_edges, means_of_edges, of_all_rows, of_all_heads, of_the_looked_up]
FUNCTIONS += [of_clamped, of_far_numbers, of_bools, graphormer, sum_of_kinds, within_a_cap]
FUNCTIONS += [of_the_class_itself]


def options_of(scene, score_mod):
    lowered = relpos.from_score_mod(score_mod, H, dtype=DOUBLE)
    found = lowered.options_for(scene.query, scene.key)
    parts = found.get("position", [])
    terms = [x for x in (parts if isinstance(parts, list) else [parts]) if type(x) is PairBias]
    return lowered, found, terms


@pytest.mark.parametrize(("queries", "keys"), [(37, 37), (1, 70), (70, 41)])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_classes_are_pair_biases(function, queries, keys):
    scene = Scene(queries, keys)
    score_mod, options, trained, count = function(scene)
    lowered, found, terms = options_of(scene, score_mod)
    assert (len(terms), "attn_mask" in found) == (count, False)
    assert lowered.describe().count("PairBias") == count
    leaves = [scene.query, scene.key, scene.value, *trained]
    want = naive(scene.query, scene.key, scene.value, **options)[:2]
    got = relpos.attention(scene.query, scene.key, scene.value, return_lse=True, **found)
    close_with_gradients(got, want, leaves)
    got = flex_attention(scene.query, scene.key, scene.value, score_mod, return_lse=True)
    close_with_gradients(got, want, leaves)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_within_masks_and_for_grouped_heads(function):
    """By blocks of torch and in the function; TileMasks stay what they are beside classes."""
    scene = Scene(29, 45, kv_heads=2)
    score_mod, options, trained, count = function(scene)
    blocks = create_block_mask(
        lambda b, h, q, k: q + 20 >= k, B, H, 29, 45, device="cpu", BLOCK_SIZE=16
    )

    def masked(score, b, h, q_idx, kv_idx):
        changed = score_mod(score, b, h, q_idx, kv_idx)
        return torch.where((q_idx + 2 * kv_idx) % 5 != 1, changed, float("-inf"))

    _, found, terms = options_of(scene, masked)
    assert (len(terms), type(found["attn_mask"])) == (count, relpos.TileMask)
    rows, columns = torch.arange(29)[:, None], torch.arange(45)
    seen = ((rows + 2 * columns) % 5 != 1) & (scene.distance <= 20)
    options["mask"] = torch.where(seen, 0.0, -torch.inf)
    leaves = [scene.query, scene.key, scene.value, *trained]
    want = naive(scene.query, scene.key, scene.value, **options)[:2]
    given = scene.query, scene.key, scene.value, masked, blocks
    close_with_gradients(flex_attention(*given, enable_gqa=True, return_lse=True), want, leaves)


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str
)
def test_integers_of_any_width(dtype):
    scene = Scene(19, 33)
    score_mod, options, trained, _ = of_all_rows(scene, dtype)
    _, found, terms = options_of(scene, score_mod)
    assert terms[0].table.shape == (H, 9)
    assert terms[0].classes.classes.shape == (19, 33)
    want = naive(scene.query, scene.key, scene.value, **options).out
    got = relpos.attention(scene.query, scene.key, scene.value, **found)
    close_with_gradients(got, want, [scene.query, *trained])


def wide(scene, table, classes):
    return lambda s, b, h, q, k: s + table[h, classes[b, q, k]]


def test_more_than_a_byte_is_a_mask():
    """256 classes are a PairBias, one more a mask, and an error within a softcap."""
    scene = Scene(40, 40)
    table = scene.trained(H, 257)
    classes = scene.drawn(256, B, 40, 40)
    classes[0].view(-1)[:256] = torch.arange(256)
    for most, kind in ((256, "position"), (257, "attn_mask")):
        classes[1, 39, 39] = most - 1
        score_mod = wide(scene, table, classes)
        assert kind in options_of(scene, score_mod)[1]
        want = naive(scene.query, scene.key, scene.value, table[:, classes].transpose(0, 1)).out
        got = flex_attention(scene.query, scene.key, scene.value, score_mod)
        close_with_gradients(got, want, [scene.query, scene.key, scene.value, table])

    def capped(score, *index):
        return torch.tanh(score_mod(score, *index))

    with pytest.raises(ValueError, match="more than 256 classes of pairs within a softcap"):
        flex_attention(scene.query, scene.key, scene.value, capped)


PAIRS = {
    "a number of each pair": lambda s, t, c, x: lambda s, b, h, q, k: s + t[h, c[q, k]] * x[q, k],
    "a row of each key": lambda s, t, c, x: lambda s, b, h, q, k: s + t[h, c[q, k]] * x[0, k],
    "a distance": lambda s, t, c, x: lambda s, b, h, q, k: s + t[h, c[q, k]] * (k - q),
    "classes by head": lambda s, t, c, x: (
        lambda s, b, h, q, k: s + t[h, c.expand(H, 23, 31)[h, q, k]]
    ),
    "after a softcap": lambda s, t, c, x: lambda s, b, h, q, k: torch.tanh(s) + t[h, c[q, k]],
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_else_is_done_to_a_pair_is_a_mask(name):
    scene = Scene(23, 31)
    table, numbers = scene.trained(H, 12), scene.trained(23, 31)
    classes = scene.drawn(8, 23, 31)
    score_mod = PAIRS[name](scene, table, classes, numbers)
    _, found, terms = options_of(scene, score_mod)
    assert (terms, found["attn_mask"].dtype) == ([], DOUBLE)
    index = torch.meshgrid(*map(torch.arange, (B, H, 23, 31)), indexing="ij")
    bias = score_mod(torch.zeros((), dtype=DOUBLE), *index)
    where = {"mask": bias, "softcap": 1.0} if name == "after a softcap" else {"bias": bias}
    want = naive(scene.query, scene.key, scene.value, **where).out
    got = relpos.attention(scene.query, scene.key, scene.value, **found)
    close_with_gradients(got, want, [scene.query, table, numbers][: 3 if "number" in name else 2])


@pytest.mark.parametrize("function", [of_far_numbers, graphormer, of_clamped, of_bools])
def test_classes_of_many_blocks_of_queries(function, monkeypatch):
    """Of one query, where a later block may have classes that no earlier one had."""
    monkeypatch.setattr(classes, "_AT_ONCE", 1)
    scene = Scene(23, 9)
    score_mod, options, trained, count = function(scene)
    _, found, terms = options_of(scene, score_mod)
    assert len(terms) == count
    want = naive(scene.query, scene.key, scene.value, **options).out
    got = relpos.attention(scene.query, scene.key, scene.value, **found)
    close_with_gradients(got, want, [scene.query, scene.key, scene.value, *trained])


def test_many_codes_are_one_class_or_a_mask():
    """Seven bools of a pair are 128 classes; eight codes are more than are looked at."""
    scene = Scene(40, 40)
    bits, table = scene.drawn(2, 8, 40, 40).bool(), scene.trained(H, 8)
    for count in (7, 8):

        def score_mod(score, b, h, q_idx, kv_idx, count=count):
            product = torch.ones((), dtype=score.dtype)
            for n in range(count):
                product = product * torch.where(bits[n, q_idx, kv_idx], table[h, n], 1.0)
            return score + product

        _, found, terms = options_of(scene, score_mod)
        assert (len(terms), "attn_mask" in found) == (count == 7, count == 8)
        bias = torch.where(bits[:count, None], table.mT[:count, :, None, None], 1.0).prod(0)
        want = naive(scene.query, scene.key, scene.value, bias).out
        got = relpos.attention(scene.query, scene.key, scene.value, **found)
        close_with_gradients(got, want, [scene.query, scene.key, scene.value, table])


class Floats(TorchDispatchMode):
    """The largest tensor of floats that is made."""

    def __init__(self):
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, torch.Tensor) and each.is_floating_point():
                self.most = max(self.most, each.numel())
        return result


@pytest.mark.parametrize("function", [paths_and_edges, means_of_edges, graphormer])
def test_no_floats_of_all_pairs(function):
    """Forward and backward; what has a number for each pair are the classes, in bytes. The function
    itself runs on blocks of queries."""
    scene = Scene(512, 600)
    score_mod, _, trained, _ = function(scene)
    leaves = [scene.query, scene.key, scene.value, *trained]
    with Floats() as made:
        out = flex_attention(scene.query, scene.key, scene.value, score_mod)
        torch.autograd.grad(out.sum(), leaves)
    assert made.most <= classes._AT_ONCE < 512 * 600


def test_what_describe_says():
    scene = Scene(9, 9)
    lowered, _, _ = options_of(scene, sum_of_kinds(scene)[0])
    assert lowered.describe().splitlines() == [
        "score_mod score_mod, 4 heads",
        "  bias of h: relpos.Position",
        "  bias of h, kv_idx - q_idx: relpos.Position",
        "  classes of pairs, of b, h, kv_idx, q_idx: relpos.terms.PairBias, or attn_mask beyond "
        "256 classes",
    ]
    with pytest.raises(ValueError, match="one that needs classes of the pairs of a call: give"):
        lowered.options  # noqa: B018


def test_classes_are_read_in_each_call():
    scene = Scene(12, 12)
    table, classes = scene.trained(H, 4), scene.drawn(3, B, 12, 12)
    score_mod = wide(scene, table, classes)
    for _ in range(2):
        want = naive(scene.query, scene.key, scene.value, table[:, classes].transpose(0, 1)).out
        got = flex_attention(scene.query, scene.key, scene.value, score_mod)
        close_with_gradients(got, want, [scene.query, table])
        classes.add_(1)


def test_other_classes_than_when_it_was_lowered_are_refused():
    scene = Scene(6, 6)
    table, classes = scene.trained(H, 4), [scene.drawn(4, B, 6, 6) for _ in range(2)]

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + sum(table[h, each[b, q_idx, kv_idx]] for each in classes)

    lowered, _, terms = options_of(scene, score_mod)
    assert len(terms) == 2
    del classes[1]
    with pytest.raises(ValueError, match="expected the function as it was when it was lowered"):
        lowered.options_for(scene.query, scene.key)
    want = naive(scene.query, scene.key, scene.value, table[:, classes[0]].transpose(0, 1)).out
    got = flex_attention(scene.query, scene.key, scene.value, score_mod)
    close_with_gradients(got, want, [scene.query, table])


def test_classes_in_torch_func():
    """Tables of torch.vmap are tables; classes of torch.vmap are masks of numbers."""
    scene = Scene(11, 13)
    query, key, value = (x.detach() for x in (scene.query, scene.key, scene.value))
    tables, classes = scene.trained(3, H, 4).detach(), scene.drawn(4, 3, B, 11, 13)

    def loss(table, classes):
        return flex_attention(query, key, value, wide(scene, table, classes)).square().sum()

    def formula(table, classes):
        return naive(query, key, value, table[:, classes].transpose(0, 1)).out.square().sum()

    close = torch.testing.assert_close
    one = tables[0], classes[0]
    close(torch.func.grad(loss)(*one), torch.func.grad(formula)(*one))
    for axes in ((0, None), (0, 0)):
        given = tables, classes[0] if axes[1] is None else classes
        for of, twin in ((loss, formula), (torch.func.grad(loss), torch.func.grad(formula))):
            close(torch.vmap(of, axes)(*given), torch.vmap(twin, axes)(*given))
