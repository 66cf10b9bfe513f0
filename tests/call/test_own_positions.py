"""relpos.Position: the examples of docs/own-schemes.md and others, against plain torch."""

import ast
import copy
import gc
import math
import pickle
import re
import weakref

import pytest
import relpos
import torch
from relpos import Buckets, terms

from tests import ROOT
from tests.support.own_positions import t5_bucket

HEADS, DIM = 3, 8


@pytest.fixture(scope="module", autouse=True)
def in_double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(scope="module")
def page():
    """The classes of the page."""
    text = (ROOT / "docs/own-schemes.md").read_text()
    tree = ast.parse("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))
    kept = (ast.Import, ast.ImportFrom, ast.ClassDef)
    tree.body = [node for node in tree.body if isinstance(node, kept)]
    names = {}
    exec(compile(tree, "own-schemes.md", "exec"), names)
    return names


def drawn(batch, queries, keys, heads=HEADS, key_heads=None):
    sizes = ((heads, queries), (key_heads or heads, keys), (key_heads or heads, keys))
    return [torch.randn(batch, h, n, DIM, requires_grad=True) for h, n in sizes]


def softmax(q, k, v, bias, rows=0.0, values=None, hidden=None):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = q @ k.mT / math.sqrt(DIM) + bias + rows
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    weights = scores.softmax(-1)
    out = weights @ v
    return out if values is None else out + (weights[..., None] * values).sum(-2)


def kerple(p, d, q, hidden):
    return {"bias": -p.p[:, :, None] * torch.log(1 + p.a[:, :, None] * d.abs())}


def cpb(p, d, q, hidden):
    return {"bias": p.net((d.sign() * torch.log(1.0 + d.abs()))[..., None]).movedim(-1, 0)}


def t5(p, d, q, hidden):
    bucket = t5_bucket(d, 32, 128)
    return {"bias": p.weight[bucket].movedim(-1, 0)}


def shaw(p, d, q, hidden):
    row = d.clamp(-16, 16) + 16
    return {
        "bias": 0.0,
        "rows": torch.einsum("bhid,ijd->bhij", q, p.k[row]) / math.sqrt(DIM),
        "values": p.v[row],
    }


def gated(p, d, q, hidden):
    bucket = t5_bucket(d, 320, 800)
    return {"bias": p.weight[bucket].movedim(-1, 0) * (1 + p.linear(hidden).sigmoid())}


CASES = {
    "KERPLE": (lambda cls: cls(HEADS), kerple),
    "CPB": (lambda cls: cls(HEADS), cpb),
    "T5": (lambda cls: cls(HEADS), t5),
    "Shaw": (lambda cls: cls(DIM), shaw),
    "Gated": (lambda cls: cls(HEADS, DIM), gated),
}


def inputs_of(name, batch, queries):
    if name != "Gated":
        return None
    return torch.randn(batch, HEADS, queries, DIM, requires_grad=True)


def called(position, hidden):
    return position if hidden is None else position(hidden)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("queries", "keys", "options"),
    [
        (33, 33, {}),
        (33, 33, {"is_causal": True}),
        (1, 70, {"is_causal": True}),
        (37, 101, {"window": (9, 4)}),
        (21, 5, {}),
    ],
)
def test_examples_are_their_formulas(page, name, queries, keys, options):
    torch.manual_seed(queries)
    make, formula = CASES[name]
    position = make(page[name])
    q, k, v = drawn(2, queries, keys)
    hidden = inputs_of(name, 2, queries)
    offset = keys - queries
    out = relpos.attention(q, k, v, position=called(position, hidden), q_offset=offset, **options)
    d = torch.arange(keys) - (offset + torch.arange(queries))[:, None]
    masked = torch.zeros(d.shape, dtype=torch.bool)
    if options.get("is_causal"):
        masked |= d > 0
    if "window" in options:
        masked |= (d < -9) | (d > 4)
    plain = softmax(q, k, v, **formula(position, d, q, hidden), hidden=masked)
    seen = ~masked.all(-1)
    torch.testing.assert_close(out[..., seen, :], plain[..., seen, :], rtol=0, atol=1e-10)
    upstream = torch.randn_like(out) * seen[:, None]
    plain = plain.where(seen[:, None], 0.0)
    leaves = [q, k, v, *([] if hidden is None else [hidden]), *position.parameters()]
    ours, theirs = (torch.autograd.grad(x, leaves, upstream) for x in (out, plain))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_examples_pass_the_check(page, name):
    make, _ = CASES[name]
    inputs = None
    if name == "Gated":
        inputs = lambda b, q, k: {"hidden": torch.randn(b, HEADS, q, DIM, dtype=torch.float32)}  # noqa: E731
    with_float = make(page[name]).float()
    report = relpos.testing.check(with_float, heads=HEADS, head_dim=DIM, inputs=inputs)
    assert len(report.checks) > 30
    assert torch.get_default_dtype() == torch.float64


@pytest.mark.parametrize("grid", [(4, 5), (1, 7), (2, 3, 4)])
def test_a_grid_of_two_or_three_axes(page, grid):
    class Offsets(relpos.Position):
        def __init__(self):
            super().__init__()
            self.grid = grid
            self.weight = torch.nn.Parameter(torch.randn(HEADS, len(grid)))

        def bias(self, *offsets):
            both = torch.stack(torch.broadcast_tensors(*offsets), -1)
            return torch.einsum("ha,...a->h...", self.weight, both.sin())

    position, tokens = Offsets(), math.prod(grid)
    q, k, v = drawn(2, tokens, tokens, key_heads=1)
    out = relpos.attention(q, k, v, position=position, enable_gqa=True)
    at = torch.cartesian_prod(*(torch.arange(side) for side in grid)).view(tokens, -1)
    d = (at[None] - at[:, None]).double()
    plain = softmax(q, k, v, torch.einsum("ha,ija->hij", position.weight, d.sin()))
    torch.testing.assert_close(out, plain, rtol=0, atol=1e-10)
    leaves = [q, k, v, position.weight]
    ours, theirs = (torch.autograd.grad(x.sum(), leaves) for x in (out, plain))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    relpos.testing.check(position.float(), heads=HEADS, head_dim=DIM)
    with pytest.raises(ValueError, match=r"query: expected .* tokens of its grid, got"):
        relpos.attention(*drawn(1, tokens + 1, tokens + 1), position=position)
    if len(grid) == 2:
        relpos.testing.check(page["Image"](HEADS, grid).float(), heads=HEADS, head_dim=DIM)


class Counted(relpos.Position):
    def __init__(self):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.rand(HEADS, 1))
        self.register_buffer("base", torch.tensor(1.5))
        self.power, self.factors = 0.5, [1.0]

    def bias(self, distance):
        type(self).seen.append(len(distance))
        return -self.factors[0] * self.slope * (self.base + distance.abs()) ** self.power


@pytest.fixture
def counted():
    Counted.seen = []
    return Counted()


def decoded(position, cache, q, k, v, first, last):
    return [
        cache.attend(*(x[:, :, i : i + 1] for x in (q, k, v)), position=position)
        for i in range(first, last)
    ]


def test_decoding_evaluates_as_often_as_the_table_doubles(counted):
    q, k, v = (x.detach() for x in drawn(1, 200, 200))
    with torch.no_grad():
        rows = decoded(counted, relpos.KVCache(), q, k, v, 0, 200)
        assert len(Counted.seen) <= 20
        whole = relpos.attention(q, k, v, position=counted, is_causal=True)
    torch.testing.assert_close(torch.cat(rows, 2), whole, rtol=0, atol=1e-12)


def _data(p):
    p.slope.data.mul_(2)


def _buffer(p):
    p.base.fill_(3.0)


def _attribute(p):
    p.power = 0.25


def _in_a_list(p):
    p.factors[0] = 3.0


def _loaded(p):
    p.load_state_dict({"slope": torch.full((HEADS, 1), 7.0), "base": torch.tensor(2.0)})


@pytest.mark.parametrize("change", [_data, _buffer, _attribute, _in_a_list, _loaded])
def test_no_change_of_a_position_is_missed(counted, change):
    q, k, v = (x.detach() for x in drawn(1, 30, 30))
    cache = relpos.KVCache()
    with torch.no_grad():
        decoded(counted, cache, q, k, v, 0, 20)
        change(counted)
        got = torch.cat(decoded(counted, cache, q, k, v, 20, 30), 2)
        whole = relpos.attention(q, k, v, position=copy.deepcopy(counted), is_causal=True)
    torch.testing.assert_close(got, whole[:, :, 20:], rtol=0, atol=1e-12)


def test_what_is_kept_is_not_copied_and_not_trained(counted):
    q, k, v = (x.detach() for x in drawn(1, 8, 8))
    with torch.no_grad():
        relpos.attention(q, k, v, position=counted)
    assert "_kept" in counted.__dict__
    for other in (copy.deepcopy(counted), pickle.loads(pickle.dumps(counted))):
        assert "_kept" not in other.__dict__
    out = relpos.attention(q, k, v, position=counted)
    (gradient,) = torch.autograd.grad(out.sum(), counted.slope)
    assert gradient.abs().sum() > 0


def test_a_function_that_looks_at_other_distances_is_refused():
    class Normalised(relpos.Position):
        def __init__(self):
            super().__init__()
            self.slope = torch.nn.Parameter(torch.rand(HEADS, 1))

        def bias(self, distance):
            return (self.slope * distance).softmax(-1)

    position = Normalised()
    with pytest.raises(AssertionError, match="bias: a distance alone and among others"):
        relpos.testing.check(position, heads=HEADS)
    q, k, v = (x.detach() for x in drawn(1, 30, 30))
    with torch.no_grad(), pytest.raises(ValueError, match=r"Normalised.bias: expected each"):
        decoded(position, relpos.KVCache(), q, k, v, 0, 30)


class OfTerms(relpos.Position):
    """What terms(distance) may return of each distance by itself, but for the one that is mixed."""

    def __init__(self, mixed=None):
        super().__init__()
        self.rate, self.mixed = torch.nn.Parameter(torch.rand(HEADS, 1)), mixed

    def of(self, name, distance, *shape):
        numbers = torch.cos(self.rate * distance).mT.reshape(-1, HEADS, *[1] * len(shape))
        if self.mixed == name:
            numbers = numbers.softmax(0)
        return numbers.expand(-1, HEADS, *shape).transpose(0, 1)

    def terms(self, distance):
        first = int(distance[0])
        steepest = len(distance) if self.mixed == "slopes" else 5
        frequency = len(distance) if self.mixed == "rotation" else 3
        found = [
            terms.DistanceBias(self.of("bias", distance), first),
            terms.RowTable(self.of("rows", distance, DIM), first),
            terms.ColumnTable(self.of("columns", distance, DIM), first),
            terms.ValueTable(self.of("values", distance, DIM), first),
            terms.Slopes(torch.linspace(0, steepest, HEADS)),
            terms.Rotation(torch.ones(DIM // 2) / frequency, layout="half"),
            terms.DistanceBias(self.rate.repeat(1, 32), relpos.Buckets.t5()),
        ]
        return found[: 3 if self.mixed == "number" and len(distance) > 1 else 7]


def test_terms_of_each_distance_are_kept():
    position = OfTerms()
    q, k, v = (x.detach() for x in drawn(1, 30, 30))
    with torch.no_grad():
        rows = decoded(position, relpos.KVCache(), q, k, v, 0, 30)
        assert len(position._kept._held.tables["terms"]) == 7
        whole = relpos.attention(q, k, v, position=copy.deepcopy(position), is_causal=True)
    torch.testing.assert_close(torch.cat(rows, 2), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "mixed", ["bias", "rows", "columns", "values", "slopes", "rotation", "number"]
)
def test_terms_that_look_at_other_distances_are_refused(mixed):
    q, k, v = (x.detach() for x in drawn(1, 30, 30))
    with torch.no_grad(), pytest.raises(ValueError, match=r"OfTerms.terms: expected each distance"):
        decoded(OfTerms(mixed), relpos.KVCache(), q, k, v, 0, 30)


def test_a_function_that_knows_no_other_distances_is_asked_for_no_others():
    class Limited(relpos.Position):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Parameter(torch.randn(HEADS, 30))

        def bias(self, distance):
            return self.table.index_select(1, -distance)

    position = Limited()
    q, k, v = (x.detach() for x in drawn(1, 30, 30))
    with torch.no_grad():
        rows = decoded(position, relpos.KVCache(), q, k, v, 0, 30)
        whole = relpos.attention(q, k, v, position=position, is_causal=True)
    torch.testing.assert_close(torch.cat(rows, 2), whole, rtol=0, atol=1e-12)


def test_explicit_positions_offsets_and_sums(page):
    kerple, t5 = page["KERPLE"](HEADS), relpos.T5Bias(heads=HEADS).double()
    q, k, v = drawn(2, 9, 13)
    at_q, at_k = torch.arange(9) * 5 + 3, torch.arange(13) * 3 - 4
    both = {"q_positions": at_q, "k_positions": at_k}
    out = relpos.attention(q, k, v, position=kerple + t5, **both)
    d = at_k - at_q[:, None]
    bucket = t5_bucket(d, 32, 128)
    of_t5 = next(t5.parameters())[bucket].movedim(-1, 0)
    plain = softmax(q, k, v, CASES["KERPLE"][1](kerple, d, q, None)["bias"] + of_t5)
    torch.testing.assert_close(out, plain, rtol=0, atol=1e-10)
    offsets = torch.tensor([4, -30])
    out = relpos.attention(q, k, v, position=kerple, q_offset=offsets)
    for row, offset in enumerate(offsets.tolist()):
        alone = relpos.attention(
            *(x[row : row + 1] for x in (q, k, v)), position=kerple, q_offset=offset
        )
        torch.testing.assert_close(out[row : row + 1], alone, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="q_offset: not given"):
        relpos.attention(q, k, v, position=kerple)


def test_kept_tables_are_dense_and_freed_with_their_position(page):
    position = page["CPB"](HEADS)
    q, k, v = (x.detach() for x in drawn(1, 8, 8))
    gc.disable()
    try:
        with torch.no_grad():
            relpos.attention(q, k, v, position=position)
        assert position._kept._held.tables["bias"].is_contiguous()
        watched = weakref.ref(position)
        del position
        assert watched() is None
    finally:
        gc.enable()


class Steep(relpos.Position):
    """With an input that has a default, and offsets taken as one."""

    grid = (2, 3)

    def bias(self, *offsets, steepness=1.0):
        return (steepness * torch.stack(torch.broadcast_tensors(*offsets)).sum(0)).double()[None]


def test_inputs_may_have_defaults():
    q, k, v = drawn(1, 6, 6)
    one, three = (relpos.attention(q, k, v, position=p) for p in (Steep(), Steep()(steepness=3.0)))
    assert not torch.equal(one, three)
    assert torch.equal(Steep()(steepness=3.0).dense(6, 6), 3 * Steep().dense(6, 6))


class Turned(relpos.Position):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(HEADS, 1))
        self.frequency = torch.nn.Parameter(torch.rand(DIM // 2))
        self.added = torch.nn.Parameter(torch.randn(HEADS, DIM))
        self.kinds = torch.nn.Parameter(torch.randn(HEADS, 5))

    def bias(self, distance):
        return self.weight * distance / 10

    def terms(self, distance, classes):
        return [
            terms.Rotation(self.frequency, layout="half"),
            terms.QueryAdded(self.added),
            terms.PairBias(self.kinds, relpos.PairClasses(classes, hidden=4)),
        ]


def test_terms_of_every_kind_are_checked_and_shown():
    def classes(queries, keys):
        return ((7 * torch.arange(queries)[:, None] + torch.arange(keys) ** 2) % 5).to(torch.uint8)

    report = relpos.testing.check(
        Turned().float(),
        heads=HEADS,
        head_dim=DIM,
        inputs=lambda b, q, k: {"classes": classes(q, k)},
    )
    assert len(report.checks) > 30

    class Plain(Turned):
        def terms(self, distance):
            return super().terms(distance, classes(3, 3))[:2]

    assert [name for name, _ in Plain().steps(3, 3)] == ["distance", "DistanceBias"]
    assert Plain().dense(3, 3).shape == (HEADS, 3, 3)


def test_the_check_names_what_it_does_not_know():
    class Strange(relpos.Position):
        def terms(self, distance):
            return relpos.ALiBi(HEADS)

    with pytest.raises(TypeError, match=r"terms that relpos.testing knows: .* got ALiBi"):
        relpos.testing.check(Strange(), heads=HEADS)


def test_layers_share_one_evaluation(page):
    position = page["CPB"](HEADS)
    q, k, v = drawn(1, 11, 11)
    shared = position.lower(-10, 10)
    a, b = (relpos.attention(q, k, v, position=p) for p in (shared, position))
    assert torch.equal(a, b)


def test_what_gates_is_not_shared(page):
    with pytest.raises(ValueError, match=r"Gated.lower: expected a class without gates"):
        page["Gated"](HEADS, DIM).lower(-3, 3)


def test_frozen_numbers_serve_a_call_with_gradients(counted):
    """Tables that were kept under inference_mode are not those of a call that autograd records."""
    counted.requires_grad_(False)
    q, k, v = drawn(1, 8, 8)
    with torch.inference_mode():
        kept = relpos.attention(q, k, v, position=counted)
    out = relpos.attention(q, k, v, position=counted)
    out.sum().backward()
    torch.testing.assert_close(out, kept.clone())


def test_it_shows_itself(page):
    position = page["KERPLE"](HEADS)
    text = position.describe()
    assert "KERPLE: Chi et al. 2022" in text
    assert "parameter p [3, 1] float64" in text
    distance = torch.arange(4) - torch.arange(3)[:, None] - 1
    assert torch.equal(position.indices(3, 4, 1), distance)
    bias = CASES["KERPLE"][1](position, distance, None, None)["bias"]
    torch.testing.assert_close(position.dense(3, 4, 1), bias)
    t5 = page["T5"](HEADS)
    assert torch.equal(t5.indices(9, 9), relpos.T5Bias(heads=HEADS).indices(9, 9))
    assert [name for name, _ in t5.steps(2, 2)] == ["distance", "bucket", "DistanceBias"]
    shaw = page["Shaw"](DIM)
    assert shaw.dense(2, 3, 0, "value").shape == (2, 3, DIM)
    with pytest.raises(ValueError, match="which: expected"):
        position.dense(2, 2, which="value")


def test_autocast_and_bfloat16_leave_tables_wide(page):
    position = page["CPB"](HEADS).float()
    q, k, v = (x.detach().float() for x in drawn(2, 40, 40))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        exact = relpos.attention(q, k, v, position=position)
        with torch.autocast("cpu", torch.bfloat16):
            cast = relpos.attention(q, k, v, position=position)
    finally:
        torch.set_default_dtype(before)
    assert cast.dtype == torch.bfloat16
    torch.testing.assert_close(cast.float(), exact, rtol=0.03, atol=0.03)


def _bias(result):
    return lambda: type("Own", (relpos.Position,), {"bias": lambda self, d: result(d)})()


class NoInit(relpos.Position):
    def __init__(self):
        self.width = 3

    def bias(self, distance):
        return torch.zeros(1, len(distance))


class Near(relpos.Position):
    reach, outside = (-3, 3), "error"

    def bias(self, distance):
        return torch.zeros(1, len(distance))


def _of(**members):
    return lambda: type("Own", (relpos.Position,), members)()


REFUSED = {
    "transposed": (
        _bias(lambda d: torch.zeros(len(d), HEADS)),
        ValueError,
        r"Own.bias: expected \[3, 9\] or \[1, 9\] \(heads, distances -4 to 4\), got \[9, 3\]: "
        r"return its transpose \(.mT\)",
    ),
    "integers": (_bias(lambda d: d[None]), TypeError, "Own.bias: expected a floating-point tensor"),
    "complex": (
        _bias(lambda d: torch.zeros(1, len(d), dtype=torch.complex64)),
        TypeError,
        "Own.bias: expected a floating-point tensor, got torch.complex64",
    ),
    "no tensor": (_bias(lambda d: None), TypeError, "Own.bias: expected .* got NoneType"),
    "device": (
        _bias(lambda d: torch.zeros(1, len(d), device="meta")),
        ValueError,
        "Own.bias: expected a tensor on cpu, as query is, got meta",
    ),
    "rows of other columns": (
        _of(rows=lambda self, d: torch.zeros(len(d), DIM + 1)),
        ValueError,
        r"Own.rows: expected \[9, 8\]",
    ),
    "a gate alone": (
        _of(gate=lambda self, q: q, bias=lambda self, d: torch.zeros(1, len(d))),
        TypeError,
        "Own.gate: expected it beside the method rows",
    ),
    "a gate of another rank": (
        _of(gate=lambda self, q: q, rows=lambda self, d: torch.zeros(len(d), 2)),
        ValueError,
        r"Own.gate: expected \[1, 3, 5, 2\], got \[1, 3, 5, 8\]",
    ),
    "no method": (_of(), TypeError, "Own: expected a method of bias"),
    "the base": (relpos.Position, TypeError, "Position: expected a method"),
    "no super().__init__()": (NoInit, TypeError, r"NoInit: expected super\(\).__init__\(\)"),
    "reach": (Near, ValueError, "Near: distance: expected -3 to 3, which are its reach, got -4"),
    "outside": (
        _of(outside="wrap", bias=lambda self, d: torch.zeros(1, len(d))),
        ValueError,
        "Own.outside: expected one of clamp, none, error",
    ),
    "an empty reach": (
        _of(reach=(3, -3), bias=lambda self, d: torch.zeros(1, len(d))),
        ValueError,
        "Own.reach: hi: expected a distance from lo = 3 on, got -3",
    ),
    "a grid of one number": (
        _of(grid=5, bias=lambda self, d: torch.zeros(1, len(d))),
        TypeError,
        "Own.grid: expected a tuple of two or three sides, got 5",
    ),
    "a class": (lambda: Near, TypeError, "expected a relpos position, got the class Near"),
    "a missing input": (
        _of(bias=lambda self, d, x: torch.zeros(1, len(d))),
        ValueError,
        "position: expected Own called with x, got no x",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_positions_are_named(name):
    make, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        relpos.attention(*drawn(1, 5, 5), position=make())


def test_inputs_that_are_unknown_or_doubled(page):
    gated, hidden = page["Gated"](HEADS, DIM), torch.zeros(1, HEADS, 5, DIM)
    for inputs, named in (((hidden, hidden), {}), ((hidden,), {"hidden": hidden}), ((), {"x": 1})):
        with pytest.raises(ValueError, match="Gated: expected its inputs hidden"):
            gated(*inputs, **named)
    with pytest.raises(ValueError, match="KERPLE: expected none: give position=position"):
        page["KERPLE"](HEADS)(hidden)


def test_too_many_distances_are_refused(page):
    q, k, v = drawn(1, 1, 2)
    far = torch.tensor([0, 2**40])
    with pytest.raises(ValueError, match=r"distances of a call: expected at most .* reach"):
        relpos.attention(
            q, k, v, position=page["KERPLE"](HEADS), q_positions=far[:1], k_positions=far
        )


def test_a_nan_stays_visible():
    class Broken(relpos.Position):
        def bias(self, distance):
            return torch.where(distance == 0, math.nan, 0.0)[None]

    assert relpos.attention(*drawn(1, 5, 5), position=Broken()).isnan().all()


def test_equal_to_built_in_schemes_to_the_last_bit(page):
    """The terms of T5, Shaw, DeBERTa and Inkling on tensors of the caller."""
    q, k, v = (x.detach().float().requires_grad_() for x in drawn(2, 50, 50))
    classes = relpos.DeBERTa(heads=1, head_dim=DIM, buckets=8, max_distance=20)
    row = classes.indices(1, 101, 50)[0]
    deberta_map = Buckets.of(lambda d: row.clone(), -50, 50)
    c = torch.randn(2, HEADS, 50, 4, dtype=torch.float32, requires_grad=True)
    built_in = {
        "T5": relpos.T5Bias(heads=HEADS),
        "Shaw": relpos.Shaw(16, DIM),
        "DeBERTa": relpos.DeBERTa(heads=HEADS, head_dim=DIM, buckets=8, max_distance=20),
        "Inkling": relpos.Inkling(rank=4, extent=30),
    }
    for name, position in built_in.items():
        held = list(position.float().parameters())
        with torch.no_grad():
            for p in held:
                p.copy_(torch.randn(p.shape))
        own = {
            "T5": lambda w: terms.DistanceBias(w.mT, Buckets.t5()),
            "Shaw": lambda a, b: [terms.RowTable(a, -16), terms.ValueTable(b, -16)],
            "DeBERTa": lambda a, b: [
                terms.RowTable(a, deberta_map),
                terms.ColumnTable(b, deberta_map),
            ],
            "Inkling": lambda p: terms.RowTable(
                p.mT, Buckets.window(-29, 0, reversed=True), factor=c, scale=1.0
            ),
        }[name](*held)
        theirs = position(c) if name == "Inkling" else position
        leaves = [q, k, v, *held, *([c] if name == "Inkling" else [])]
        results = []
        for each in (theirs, own):
            out = relpos.attention(q, k, v, position=each)
            results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
        for a, b in zip(*results, strict=True):
            assert torch.equal(a, b), name
    weight = next(built_in["T5"].parameters())

    class ByFunction(relpos.Position):
        def bias(self, distance):
            return weight[Buckets.t5()(distance)].mT

    results = []
    for each in (built_in["T5"], ByFunction()):
        out = relpos.attention(q, k, v, position=each)
        results.append([out, *torch.autograd.grad(out.square().sum(), [q, k, v])])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    kerple, own = relpos.KerpleLog(heads=HEADS), page["KERPLE"](HEADS).float()
    with torch.no_grad():
        for a, b in zip(kerple.parameters(), own.parameters(), strict=True):
            b.copy_(a.view_as(b))
    out, plain = (relpos.attention(q, k, v, position=p) for p in (own, kerple))
    torch.testing.assert_close(out, plain, rtol=0, atol=1e-6)
