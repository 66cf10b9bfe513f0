"""relpos.terms and relpos.Buckets against their formulas, pair by pair."""

import math
import pickle

import pytest
import relpos
import torch
from relpos import Buckets, terms
from torch._dynamo.testing import CompileCounter

H, HK, LQ, LK, D, DV, B = 6, 3, 21, 34, 8, 5, 2
OFFSET = LK - LQ
DISTANCE = torch.arange(LK) - (OFFSET + torch.arange(LQ))[:, None]


def tensor(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def call(seed=0):
    torch.manual_seed(seed)
    return tensor(B, H, LQ, D), tensor(B, HK, LK, D), tensor(B, HK, LK, DV)


def grouped(x):
    return x.repeat_interleave(H // HK, 1)


def plain(q, k, v, score=0.0, query=None, key=None, values=None, sink=None, causal=False):
    """score: what joins the scores; query, key: what meets in place of q and k."""
    query = q if query is None else query
    key = grouped(k if key is None else key)
    scores = query @ key.mT / math.sqrt(D) + score
    if causal:
        scores = scores.masked_fill(DISTANCE > 0, -math.inf)
    if sink is not None:
        sink = sink[..., None].expand(*scores.shape[:3], 1)
        weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    out = weights @ grouped(v)
    return out if values is None else out + (weights[..., None] * values).sum(-2)


def rows_of(table, classes):
    """[..., Lq, Lk, r] of [..., M, r]; zeros where a pair has no class."""
    return table[..., classes.clamp(min=0), :] * (classes >= 0)[..., None]


def cells_of(table, classes):
    return table[:, classes.clamp(min=0)] * (classes >= 0)


def clamped(first, count):
    return (DISTANCE - first).clamp(0, count - 1)


RUNS = Buckets.runs([-9, -2, 0, 3, 20], [3, 1, -1, 0, 4, 1])


def of_runs(distance):
    found = torch.full_like(distance, 3)
    for start, of in ((-9, 1), (-2, -1), (0, 0), (3, 4), (20, 1)):
        found[distance >= start] = of
    return found


def turned(x, at, frequency, start, interleaved):
    out, pairs = x.clone(), frequency.shape[-1]
    angle = at[:, None] * frequency.reshape(-1, 1, pairs)
    for p in range(pairs):
        a, b = (2 * p, 2 * p + 1) if interleaved else (p, p + pairs)
        one, two = x[..., start + a], x[..., start + b]
        cos, sin = angle[..., p].cos(), angle[..., p].sin()
        out[..., start + a], out[..., start + b] = one * cos - two * sin, two * cos + one * sin
    return out


def distance_bias(q, k):
    table = tensor(H, 11)
    return [table], terms.DistanceBias(table, -4), {"score": cells_of(table, clamped(-4, 11))}


def one_bias_for_all_heads(q, k):
    table = tensor(1, 5)
    return [table], terms.DistanceBias(table, RUNS), {"score": cells_of(table, of_runs(DISTANCE))}


def more_rows_than_classes(q, k):
    table, inside = tensor(H, 9), (DISTANCE >= -3) & (DISTANCE <= 1)
    term = terms.DistanceBias(table, Buckets.window(-3, 1, reversed=True))
    return [table], term, {"score": cells_of(table, torch.where(inside, 1 - DISTANCE, -1))}


def along_a_coordinate(q, k):
    table = tensor(H, 7)
    at_q, at_k = torch.arange(LQ) // 3, torch.randint(0, 9, (B, LK))
    classes = (at_k[:, None] - at_q[:, None] + 3).clamp(0, 6)
    score = table[:, classes].transpose(0, 1)
    return [table], terms.DistanceBias(table, -3, along=(at_q, at_k)), {"score": score}


def slopes(q, k):
    past, future = tensor(H), tensor(H)
    d = DISTANCE.double()
    score = past[:, None, None] * d.clamp(max=0) + future[:, None, None] * d.clamp(min=0)
    return [past, future], terms.Slopes(past, future), {"score": score}


def symmetric_slopes(q, k):
    past = tensor(H)
    return [past], terms.Slopes(past), {"score": -past[:, None, None] * DISTANCE.abs()}


def row_table(q, k):
    table = tensor(9, D)
    met = torch.einsum("bhid,ijd->bhij", q, rows_of(table, clamped(-8, 9)))
    return [table], terms.RowTable(table, -8), {"score": met / math.sqrt(D)}


def row_table_of_heads(q, k):
    table, added = tensor(H, 5, D), tensor(H, D)
    rows = rows_of(table, of_runs(DISTANCE))
    met = torch.einsum("bhid,hijd->bhij", q + added[:, None], rows)
    term = terms.RowTable(table, RUNS, added=added, scale=0.7)
    return [table, added], term, {"score": 0.7 * met}


def row_factor(q, k):
    table, factor = tensor(H, 5, 1), tensor(B, H, LQ, 1)
    met = factor * cells_of(table[..., 0], of_runs(DISTANCE))
    term = terms.RowTable(table, RUNS, factor=factor, scale=1.0)
    return [table, factor], term, {"score": met}


def column_table(q, k):
    table = tensor(H, 9, D)
    met = torch.einsum("bhjd,hijd->bhij", grouped(k), rows_of(table, clamped(-2, 9)))
    return [table], terms.ColumnTable(table, -2, scale=0.3), {"score": 0.3 * met}


def column_factor(q, k):
    table, factor = tensor(5, 3), tensor(B, HK, LK, 3)
    met = torch.einsum("bhjd,ijd->bhij", grouped(factor), rows_of(table, of_runs(DISTANCE)))
    term = terms.ColumnTable(table, RUNS, factor=factor)
    return [table, factor], term, {"score": met / math.sqrt(D)}


def value_table(q, k):
    table = tensor(9, DV)
    return [table], terms.ValueTable(table, -20), {"values": rows_of(table, clamped(-20, 9))}


def value_table_of_heads(q, k):
    table = tensor(H, 5, DV)
    return [table], terms.ValueTable(table, RUNS), {"values": rows_of(table, of_runs(DISTANCE))}


def key_bias(q, k):
    values = tensor(H, LK)
    return [values], terms.KeyBias(values), {"score": values[:, None]}


def key_bias_of_rows(q, k):
    values = tensor(B, H, LK)
    return [values], terms.KeyBias(values), {"score": values[:, :, None]}


def query_added(q, k):
    added = tensor(H, D)
    return [added], terms.QueryAdded(added), {"query": q + added[:, None]}


def sink(q, k):
    logit = tensor(H)
    return [logit], terms.Sink(logit), {"sink": logit[:, None].expand(H, LQ)}


def sink_of_queries(q, k):
    logit = tensor(B, H, LQ)
    return [logit], terms.Sink(logit), {"sink": logit}


def rotation(q, k, *, shape=(3,), layout="half", start=2):
    frequency = tensor(*shape)
    of_queries = frequency if len(shape) == 1 else frequency.repeat_interleave(H // HK, 0)
    at_q, at_k = OFFSET + torch.arange(LQ), torch.arange(LK)
    interleaved = layout == "interleaved"
    both = {
        "query": turned(q, at_q, of_queries, start, interleaved),
        "key": turned(k, at_k, frequency, start, interleaved),
    }
    return [frequency], terms.Rotation(frequency, layout=layout, start=start), both


def rotation_of_heads(q, k):
    return rotation(q, k, shape=(HK, 4), layout="interleaved", start=0)


def rotary_tables(q, k, *, heads=()):
    tables = [tensor(B, *heads, length, 3) for length in (LQ, LQ, LK, LK)]

    def given(x, cos, sin):
        cos, sin = (t.unsqueeze(1) if not heads else t for t in (cos, sin))
        if heads and x.shape[1] == H:
            cos, sin = (t.repeat_interleave(H // HK, 1) for t in (cos, sin))
        one, two = x[..., 1:4], x[..., 4:7]
        return torch.cat([x[..., :1], one * cos - two * sin, two * cos + one * sin, x[..., 7:]], -1)

    both = {"query": given(q, *tables[:2]), "key": given(k, *tables[2:])}
    return tables, terms.RotaryTables(*tables, layout="half", start=1), both


def rotary_tables_of_heads(q, k):
    return rotary_tables(q, k, heads=(HK,))


def _classes():
    return torch.randint(0, 7, (B, LQ, LK)).to(torch.uint8)


def pair_bias(q, k):
    table, classes = tensor(H, 7), _classes()
    score = table[:, classes.long()].transpose(0, 1)
    return [table], terms.PairBias(table, relpos.PairClasses(classes)), {"score": score}


def pair_bias_for_all_heads(q, k):
    table, classes = tensor(1, 40), torch.randint(0, 40, (LQ, LK)).to(torch.uint8)
    term = terms.PairBias(table, relpos.PairClasses(classes, hidden=3))
    score = table[:, classes.long()].masked_fill(classes == 3, -math.inf)
    return [table], term, {"score": score}


def pair_rows(q, k):
    table, classes = tensor(7, D), _classes()
    met = torch.einsum("bhid,bijd->bhij", q, table[classes.long()])
    term = terms.PairRows(table, relpos.PairClasses(classes))
    return [table], term, {"score": met / math.sqrt(D)}


def pair_rows_of_heads(q, k):
    table, factor, classes = tensor(H, 7, 3), tensor(B, H, LQ, 3), _classes()
    rows = table[:, classes.long()].transpose(0, 1)
    term = terms.PairRows(table, relpos.PairClasses(classes), factor=factor, scale=0.4)
    return [table, factor], term, {"score": 0.4 * torch.einsum("bhid,bhijd->bhij", factor, rows)}


TERMS = [
    *(distance_bias, one_bias_for_all_heads, more_rows_than_classes, along_a_coordinate),
    *(slopes, symmetric_slopes, row_table, row_table_of_heads, row_factor),
    *(column_table, column_factor, value_table, value_table_of_heads, key_bias, key_bias_of_rows),
    *(query_added, sink, sink_of_queries, rotation, rotation_of_heads),
    *(rotary_tables, rotary_tables_of_heads),
    *(pair_bias, pair_bias_for_all_heads, pair_rows, pair_rows_of_heads),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("make", TERMS, ids=lambda make: make.__name__)
def test_a_term_is_its_formula(make, causal):
    q, k, v = call()
    own, term, joins = make(q, k)
    out = relpos.attention(
        q, k, v, position=term, q_offset=OFFSET, is_causal=causal, enable_gqa=True
    )
    expected = plain(q, k, v, **joins, causal=causal)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-10)
    upstream = torch.randn_like(out)
    ours, theirs = (torch.autograd.grad(x, [q, k, v, *own], upstream) for x in (out, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("make", TERMS, ids=lambda make: make.__name__)
def test_a_term_in_float32_and_beside_bfloat16(make):
    """The fused path; tables stay float32 beside queries of bfloat16, and so do their gradients."""
    q, k, v = call()
    own, term, joins = make(q, k)
    expected = plain(q, k, v, **joins)
    theirs = torch.autograd.grad(expected.sum(), [q, k, v, *own])
    wide = [x.detach().float().requires_grad_() for x in own]
    changed = _with(term, own, wide)
    for dtype, off in ((torch.float32, 2e-4), (torch.bfloat16, 0.25)):
        tensors = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
        out = relpos.attention(*tensors, position=changed, q_offset=OFFSET, enable_gqa=True)
        assert out.dtype == dtype
        torch.testing.assert_close(out.double(), expected, rtol=off, atol=off)
        found = torch.autograd.grad(out.sum(), [*tensors, *wide])
        for a, b in zip(found, theirs, strict=True):
            most = max(1.0, float(b.abs().max()))
            assert float((a - b).abs().max()) < off * most
        assert all(gradient.dtype == torch.float32 for gradient in found[3:])


def _with(term, before, after):
    """The term with other tensors, which stand for those that it was made of."""
    replaced = []
    for held in term._values():
        found = held
        for old, new in zip(before, after, strict=True):
            if held.untyped_storage().data_ptr() == old.untyped_storage().data_ptr():
                found = new.as_strided(held.shape, held.stride(), held.storage_offset())
        replaced.append(found)
    other = type(term).__new__(type(term))
    other.__dict__.update(term.__dict__)
    other._tensors = replaced
    return other


def test_rows_that_no_pair_reads_get_exactly_zero():
    q, k, v = call()
    table = tensor(H, 400)
    out = relpos.attention(
        q, k, v, position=terms.DistanceBias(table, -200), q_offset=OFFSET, enable_gqa=True
    )
    (gradient,) = torch.autograd.grad(out.sum(), table)
    seen = torch.zeros(400, dtype=torch.bool)
    seen[(DISTANCE + 200).flatten()] = True
    assert gradient[:, ~seen].eq(0).all()


def test_terms_add_up_with_schemes():
    q, k, v = call()
    a, b = tensor(H, 11), tensor(H)
    t5 = relpos.T5Bias(heads=H).double()
    both = relpos.attention(
        q,
        k,
        v,
        position=t5 + terms.DistanceBias(a, -4) + terms.Sink(b),
        q_offset=OFFSET,
        enable_gqa=True,
    )
    expected = plain(
        q,
        k,
        v,
        score=t5.dense(LQ, LK, OFFSET) + cells_of(a, clamped(-4, 11)),
        sink=b[:, None].expand(H, LQ),
    )
    torch.testing.assert_close(both, expected, rtol=0, atol=1e-10)


def test_no_offset_is_asked_for_where_no_position_is_read():
    q, k, v = call()
    for term in (
        terms.KeyBias(tensor(H, LK)),
        terms.Sink(tensor(H)),
        terms.QueryAdded(tensor(H, D)),
    ):
        relpos.attention(q, k, v, position=term, enable_gqa=True)
    with pytest.raises(ValueError, match="q_offset: not given"):
        relpos.attention(q, k, v, position=terms.Slopes(tensor(H)), enable_gqa=True)


def test_one_graph_for_all_lengths():
    counter = CompileCounter()
    table = tensor(H, 2 * 40 - 1, dtype=torch.float32)

    @torch.compile(backend=counter, dynamic=True, fullgraph=True)
    def attend(q, k, v, table):
        return relpos.attention(q, k, v, position=terms.DistanceBias(table, 1 - q.shape[2]))

    for length in (40, 23, 17, 31, 37):
        q, k, v = (torch.randn(1, H, length, D) for _ in range(3))
        cut = table[:, : 2 * length - 1]
        eager = relpos.attention(q, k, v, position=terms.DistanceBias(cut, 1 - length))
        torch.testing.assert_close(attend(q, k, v, cut), eager)
    assert counter.frame_count <= 2


def test_meta_tensors_have_shapes():
    q, k, v = (torch.empty(1, H, 5, D, device="meta") for _ in range(3))
    table = torch.empty(H, 9, device="meta")
    assert relpos.attention(q, k, v, position=terms.DistanceBias(table, -4)).shape == q.shape
    assert relpos.attention(q, k, v, position=terms.DistanceBias(table, RUNS)).is_meta


BUCKETS = {
    "clamp": (Buckets.clamp(-3, 5), lambda d: min(max(d, -3), 5) + 3),
    "clamp reversed": (Buckets.clamp(-3, 5, reversed=True), lambda d: 5 - min(max(d, -3), 5)),
    "window": (Buckets.window(2, 6), lambda d: d - 2 if 2 <= d <= 6 else -1),
    "window reversed": (Buckets.window(2, 6, True), lambda d: 6 - d if 2 <= d <= 6 else -1),
    "runs": (RUNS, lambda d: int(of_runs(torch.tensor([d]))[0])),
    "of": (Buckets.of(lambda d: d // 4 + 2, -8, 7), lambda d: min(max(d, -8), 7) // 4 + 2),
    "of, none outside": (
        Buckets.of(lambda d: d // 4 + 2, -8, 7, outside="none"),
        lambda d: d // 4 + 2 if -8 <= d <= 7 else -1,
    ),
}


@pytest.mark.parametrize("name", BUCKETS)
def test_buckets(name):
    buckets, formula = BUCKETS[name]
    distance = torch.arange(-30, 31)
    expected = torch.tensor([formula(int(d)) for d in distance])
    assert torch.equal(buckets(distance), expected)
    assert torch.equal(buckets(DISTANCE), buckets(DISTANCE.flatten()).view(DISTANCE.shape))
    assert buckets.classes == int(expected.max()) + 1
    table = torch.randn(1, buckets.classes, dtype=torch.float64)
    shown = terms.DistanceBias(table, buckets).indices(LQ, LK, OFFSET)
    assert torch.equal(shown, buckets(DISTANCE))
    assert pickle.loads(pickle.dumps(buckets)) == buckets
    assert hash(pickle.loads(pickle.dumps(buckets))) == hash(buckets)
    assert len({buckets, *(other for other, _ in BUCKETS.values())}) == len(BUCKETS)
    assert repr(buckets).startswith("Buckets.")


@pytest.mark.parametrize(
    "options", [{}, {"buckets": 320, "max_distance": 800}, {"bidirectional": False}]
)
def test_t5_buckets_are_those_of_t5(options):
    t5 = relpos.T5Bias(heads=1, **options)
    distance = torch.arange(1000) - 500
    assert torch.equal(Buckets.t5(**options)(distance), t5.indices(1, 1000, 500)[0])


REFUSED = {
    "classes of int64": (
        lambda: relpos.PairClasses(torch.zeros(LQ, LK, dtype=torch.int64)),
        TypeError,
        r"PairClasses: classes: expected a uint8 tensor, got torch.int64: .*\.to\(torch.uint8\)",
    ),
    "no PairClasses": (
        lambda: terms.PairBias(tensor(H, 3), torch.zeros(LQ, LK, dtype=torch.uint8)),
        TypeError,
        "PairBias: classes: expected relpos.PairClasses, got Tensor",
    ),
    "a class beyond the table": (
        lambda: terms.PairBias(
            tensor(H, 3), relpos.PairClasses(torch.full((LQ, LK), 3, dtype=torch.uint8))
        ),
        ValueError,
        "class",
    ),
    "classes of another length": (
        lambda: terms.PairBias(
            tensor(H, 3), relpos.PairClasses(torch.zeros(LQ, LK + 1, dtype=torch.uint8))
        ),
        ValueError,
        "pair_bias: classes: expected",
    ),
    "rank": (
        lambda: terms.DistanceBias(tensor(3), 0),
        ValueError,
        r"DistanceBias: table: .* \[H, M\]",
    ),
    "no tensor": (
        lambda: terms.RowTable([1.0], 0),
        TypeError,
        "RowTable: table: expected a tensor",
    ),
    "integers": (
        lambda: terms.KeyBias(torch.zeros(H, LK, dtype=torch.int64)),
        TypeError,
        "KeyBias: values: expected a tensor of float32",
    ),
    "few rows": (
        lambda: terms.DistanceBias(tensor(H, 4), RUNS),
        ValueError,
        "DistanceBias: table: expected a table of 5 rows or more",
    ),
    "no rows": (lambda: terms.DistanceBias(tensor(H, 0), 3), ValueError, "expected a row or more"),
    "at": (
        lambda: terms.DistanceBias(tensor(H, 3), 1.5),
        TypeError,
        "DistanceBias: at: expected an int",
    ),
    "heads": (lambda: terms.DistanceBias(tensor(4, 3), 0), ValueError, "query has 6 heads"),
    "factor": (
        lambda: terms.RowTable(tensor(3, 2), 0, factor=tensor(B, H, LQ, 3)),
        ValueError,
        "RowTable: factor: expected 2 columns",
    ),
    "along": (
        lambda: terms.DistanceBias(tensor(H, 3), 0, along=(torch.arange(LQ),)),
        TypeError,
        "DistanceBias: along: expected",
    ),
    "along of floats": (
        lambda: terms.DistanceBias(tensor(H, 3), 0, along=(torch.zeros(LQ), torch.zeros(LK))),
        TypeError,
        "DistanceBias: along: expected two int64 tensors",
    ),
    "along of another length": (
        lambda: terms.DistanceBias(tensor(H, 3), 0, along=(torch.arange(3), torch.arange(LK))),
        ValueError,
        "q_along: expected",
    ),
    "layout": (lambda: terms.Rotation(tensor(3), layout="pairs"), ValueError, "Rotation: layout"),
    "too many pairs": (
        lambda: terms.Rotation(tensor(D), layout="half"),
        ValueError,
        "rotates dims 0 to 16 but query has head size 8",
    ),
    "runs": (
        lambda: Buckets.runs([3, 1], [0, 1, 2]),
        ValueError,
        "starts: expected distances that",
    ),
    "classes": (lambda: Buckets.runs([3], [0]), ValueError, "classes: expected 2, one more"),
    "interval": (lambda: Buckets.clamp(3, 1), ValueError, "hi: expected a distance from lo = 3"),
    "a function of floats": (
        lambda: Buckets.of(lambda d: d / 2, 0, 3),
        TypeError,
        r"Buckets.of: function: expected an int64 tensor .* convert it with .long\(\)",
    ),
    "a function of another length": (
        lambda: Buckets.of(lambda d: d[1:], 0, 3),
        ValueError,
        r"Buckets.of: function: expected \[4\]",
    ),
    "device": (
        lambda: terms.Slopes(torch.empty(H, device="meta")),
        ValueError,
        "slopes.past: expected a tensor on cpu",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_terms_are_named(name):
    make, kind, message = REFUSED[name]
    q, k, v = call()
    with pytest.raises(kind, match=message):
        relpos.attention(q, k, v, position=make(), q_offset=OFFSET, enable_gqa=True)
