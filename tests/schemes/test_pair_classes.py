"""Biases and rows by a class for each pair, which are inputs of the call."""

import pytest
import relpos
import torch
from relpos.distributed._pieces import Inputs

from tests.support.oracle import gradients, naive, registry
from tests.support.sample import tensors
from tests.support.steps import same_bits, step

pytestmark = pytest.mark.usefixtures("one_thread")

HEADS, DIM = 4, 8
PairBias, PairRows = registry()["pair_bias"], registry()["pair_rows"]


def drawn(*shape, seed=1, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()


def classes_of(count, *shape, seed=2):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, count, shape, generator=draw).to(torch.uint8)


def by_head(rows, factor, scale):
    """scale <factor_i, rows_ij>: rows [Lq, Lk, r], [H, Lq, Lk, r] or [B, 1, Lq, Lk, r]."""
    return scale * (rows * factor[..., None, :]).sum(-1)


def compared(inputs, position, also, bias, *, dtype=torch.float64, **close):
    """Out and every gradient beside those of a dense bias, which `bias(*also, query)` makes."""
    q, k, v, dout = (x.detach().to(dtype) for x in inputs)
    leaves = [x.requires_grad_() for x in (q, k, v)] + also
    out = relpos.attention(q, k, v, position=position, enable_gqa=True)
    found = [out, *gradients([out], [dout], leaves)]
    wide = [x.detach().double().requires_grad_() for x in leaves]
    expected = naive(*wide[:3], bias(*wide[3:], wide[0])).out
    wanted = [expected, *gradients([expected], [dout.double()], wide)]
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got.double(), want, **close)


EXACT = {"dtype": torch.float64, "rtol": 1e-10, "atol": 1e-10}
FUSED = {"dtype": torch.float32, "rtol": 1e-4, "atol": 1e-4}


@pytest.mark.parametrize("close", [EXACT, FUSED], ids=["float64", "float32"])
@pytest.mark.parametrize("count", [1, 8, 32, 33, 64, 65, 128, 129, 255, 256])
def test_every_number_of_classes(count, close):
    sizes = {"batch": 2, "queries": 37, "keys": 135, "key_heads": 2, "value_dim": 5}
    inputs, dtype = tensors(**sizes, dtype=torch.float64), close["dtype"]
    shared, own = classes_of(count, 37, 135), classes_of(count, 2, 37, 135)
    for heads in (1, HEADS):
        table = drawn(heads, count, dtype=dtype)
        position = PairBias()(table, shared)
        compared(inputs, position, [table], lambda t, q: t[:, shared.long()], **close)
    table = drawn(count, DIM, dtype=dtype)
    position = PairRows(by_row=True)(table, own)
    rows = own.long()[:, None]  # [B, 1, Lq, Lk]
    compared(inputs, position, [table], lambda t, q: by_head(t[rows], q, DIM**-0.5), **close)
    table, factor = drawn(HEADS, count, 3, dtype=dtype), drawn(2, HEADS, 37, 3, dtype=dtype)
    given = {"table": table, "classes": shared, "factor": factor}
    for scale in (None, 0.3):
        position = PairRows(by_head=True, factor=True, scale=scale)(**given)
        by = DIM**-0.5 if scale is None else scale
        compared(
            inputs,
            position,
            [table, factor],
            lambda t, f, q, by=by: by_head(t[:, shared.long()], f, by),
            **close,
        )


@pytest.mark.parametrize("count", [16, 100])
def test_bytes_may_lie_anywhere(count):
    inputs, table = tensors(queries=70, keys=128), drawn(HEADS, count, dtype=torch.float32)
    classes = classes_of(count, 70, 128)
    apart = torch.zeros(70, 256, dtype=torch.uint8)
    apart[:, ::2] = classes
    wide = torch.zeros(71, 131, dtype=torch.uint8)
    wide[1:, 3:] = classes
    found = []
    for view in (classes, apart[:, ::2], classes.T.contiguous().T, wide[1:, 3:]):
        position = PairBias()(table, view)
        found.append(step(*inputs, position, also=[table]))
        same_bits(found[-1][:1], found[0][:1])
    for each in found:
        torch.testing.assert_close(each, found[0], rtol=1e-5, atol=1e-5)
    one = classes[:1].expand(70, 128)
    given = [PairBias()(table, x) for x in (one, one.contiguous())]
    same_bits(*(step(*inputs, position, also=[table]) for position in given))


@pytest.mark.parametrize("hidden", [3, 200])
@pytest.mark.parametrize(("queries", "keys"), [(70, 192), (2, 300), (50, 77)])
def test_a_hidden_class_is_a_mask(hidden, queries, keys):
    """The same bits, whatever stands behind the hidden pairs."""
    inputs = tensors(queries=queries, keys=keys)
    table, rows = drawn(HEADS, 20, dtype=torch.float32), drawn(20, DIM, dtype=torch.float32)
    classes = classes_of(20, queries, keys)
    classes[classes == 3] = hidden
    classes[1] = hidden  # a query that sees nothing
    classes[:, 5] = hidden
    seen = classes != hidden
    shown = torch.where(seen, classes, 0).to(torch.uint8)
    with torch.no_grad():
        for x in inputs[1:3]:
            x[:, :, 5] = torch.nan
    for made, own in ((PairBias, table), (PairRows, rows)):
        masked = step(*inputs, made()(own, shown), also=[own], attn_mask=seen)
        found = step(*inputs, made(hidden=hidden)(own, classes), also=[own])
        same_bits(found, masked)
        assert not any(x.isnan().any() for x in found)
        wide = [x.double() for x in inputs]
        scores = relpos.scores(*wide[:2], position=made(hidden=hidden)(own.double(), classes))
        assert torch.equal(scores == -torch.inf, ~seen.expand(scores.shape))
    with torch.no_grad():
        table[:, 3] = torch.nan  # which no visible pair reads
    out = relpos.attention(*inputs[:3], position=PairBias(hidden=hidden)(table, classes))
    assert not out.isnan().any()


def test_few_queries_are_rows_of_many():
    q, k, v, _ = tensors(batch=2, queries=40, keys=300)
    table, classes = drawn(HEADS, 50, dtype=torch.float32), classes_of(50, 2, 40, 300)
    bias = PairBias(by_row=True)
    whole = relpos.attention(q, k, v, position=bias(table, classes))
    for n in (0, 17, 39):
        row = slice(n, n + 1)
        out = relpos.attention(q[:, :, row], k, v, position=bias(table, classes[:, row]))
        torch.testing.assert_close(out, whole[:, :, row], rtol=1e-5, atol=1e-5)


def test_bfloat16_and_sums():
    inputs = [x.bfloat16() for x in tensors(queries=100, keys=100)]
    table, rows = drawn(HEADS, 30, dtype=torch.float32), drawn(30, DIM, dtype=torch.float32)
    classes, rope = classes_of(30, 100, 100), relpos.RoPE(DIM, layout="half")
    both = [rope, PairBias()(table, classes), PairRows()(rows, classes)]
    out = relpos.attention(*inputs[:3], position=both)
    q, k, v = (x.double() for x in inputs[:3])
    at = classes.long()
    bias = table.double()[:, at] + by_head(rows.double()[at], q, DIM**-0.5)
    expected = naive(rope.rotate(q), rope.rotate(k), v, bias).out
    torch.testing.assert_close(out.double(), expected, rtol=0.03, atol=0.03)


def test_packed_sequences_have_classes_of_all_their_tokens():
    lengths = [3, 70, 20]
    starts = torch.tensor([0, 3, 73, 93])
    q, k, v, _ = (x[0].transpose(0, 1) for x in tensors(queries=93, keys=93))
    table, classes = drawn(HEADS, 20, dtype=torch.float32), classes_of(20, 93, 93)
    out = relpos.attention_varlen(q, k, v, cu_seqlens_q=starts, position=PairBias()(table, classes))
    for first, count in zip(starts.tolist(), lengths, strict=False):
        own = slice(first, first + count)
        alone = [x[own].transpose(0, 1)[None] for x in (q, k, v)]
        position = PairBias()(table, classes[own, own])
        expected = relpos.attention(*alone, position=position)[0].transpose(0, 1)
        torch.testing.assert_close(out[own], expected, rtol=1e-5, atol=1e-5)


def test_ranks_refuse_what_belongs_to_pairs():
    with pytest.raises(ValueError, match=r"pair_bias\.classes has an axis of queries"):
        Inputs.of("pair_bias()", [torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.uint8)])


def test_what_is_refused():
    q, k, v, _ = tensors(queries=6, keys=9)
    table, classes = drawn(HEADS, 5, dtype=torch.float32), classes_of(5, 6, 9)
    bias, rows = PairBias(), PairRows()

    def run(position):
        return relpos.attention(q, k, v, position=position)

    run(bias(table, classes))  # no q_offset: positions play no part
    beyond = classes.clone()
    beyond[4, 8] = 5
    for wrong, words in (
        (bias(table, beyond), r"classes: expected classes below 5.*got 5 for query 4"),
        (bias(table, classes[:, 1:]), r"classes: expected \[6, 9\], got \[6, 8\]"),
        (bias(table[:3], classes), r"expected a table \[4 or 1, classes\].*got \[3, 5\]"),
        (bias(drawn(HEADS, 257, dtype=torch.float32), classes), "1 to 256 classes, got 257"),
        (bias(table, classes[None]), r"classes: expected \[6, 9\]"),
        (rows(drawn(5, 3, dtype=torch.float32), classes), r"table: expected \[any, 8\]"),
        (
            PairRows(factor=True)(drawn(5, 3, dtype=torch.float32), classes, drawn(1, HEADS, 6, 4)),
            r"expected a table \[classes, 4\] or \[4, classes, 4\], got \[5, 3\]",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            run(wrong)
    for wrong in (classes.long(), classes.bool(), classes.float()):
        with pytest.raises(TypeError, match="classes: expected uint8"):
            run(bias(table, wrong))
    with pytest.raises(ValueError, match="hidden"):
        PairBias(hidden=256)
    with pytest.raises(ValueError, match="hidden"):
        PairBias(hidden=-1)
