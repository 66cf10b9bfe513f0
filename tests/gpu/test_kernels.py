"""Calls in the interpreter against the double oracle, within the bounds of the CPU."""

from itertools import pairwise

import pytest
import relpos
import torch
import triton
import triton.language as tl
from relpos._call.call import Call as Fields
from relpos.gpu import lower, run, tiles
from relpos.gpu.pairs.product import stored
from relpos.gpu.passes import forward_launches
from relpos.gpu.sums import pair_launches
from triton.runtime.interpreter import InterpreterBuilder

from tests.gpu.cases import FACTORS, PLAIN, SEED, Here, drawn, judged, number_of, on_the_cpu


@pytest.mark.parametrize("case", list(drawn()), ids=number_of)
def test_a_call_keeps_the_promise(case, garbage):
    assert not judged(case), case


GRID = PLAIN | {"position": "swin#0", "mask": ""}


@pytest.mark.parametrize("case", [PLAIN, GRID], ids=["distances", "grid"])
@pytest.mark.parametrize("dtype", FACTORS["dtype"])
def test_other_tiles_keep_it_too(case, dtype, garbage, monkeypatch):
    monkeypatch.setattr(tiles, "INTERPRETED", tiles.Tile(32, 32, 4, 1))
    assert not judged(case | {"dtype": dtype})


@pytest.mark.parametrize("side", [16, 32, 128])
def test_dropout_is_that_of_the_cpu_in_tiles_of(side, garbage, monkeypatch):
    monkeypatch.setattr(tiles, "INTERPRETED", tiles.Tile(side, side, 4, 1))
    case = PLAIN | {"dropout": 0.3, "mask": "window+padding", "heads": (2, 1), "batch": 2}
    assert not judged(case | {"queries": 33, "keys": 130})


def test_a_bias_that_is_large_where_there_is_no_query(garbage):
    assert not judged(PLAIN | {"table size": 300.0, "mask": ""})


@pytest.mark.parametrize("mask", ["", "window"])
def test_a_wide_map_and_a_tile_of_two_sides_keep_it(mask, garbage, monkeypatch):
    wanted = {"sum_diagonals": tiles.Tile(32, 32, 4, 1)}
    uneven = {"backward_keys": tiles.Tile(32, 64, 4, 1), "forward": tiles.Tile(64, 32, 4, 1)}
    rest = tiles.Tile(32, 64, 4, 1)
    table = wanted | uneven
    monkeypatch.setattr(run, "tile", lambda chip, kernel, *_: table.get(kernel, rest))
    assert not judged(PLAIN | {"position": "bias_rpe#3", "mask": mask, "queries": 129, "keys": 129})


def test_a_grid_whose_batch_rows_see_other_keys(garbage):
    case = GRID | {"mask": "range", "offsets": "zero", "queries": 16, "keys": 5, "batch": 2}
    case |= {"seed": SEED + 1}
    ranges = Here(case).masks["key_range"]
    assert all(edge.shape == (2, 16) and not torch.equal(*edge) for edge in ranges)
    assert not judged(case)


def test_a_grid_by_chunks_of_queries_keeps_it(garbage, monkeypatch):
    monkeypatch.setattr(pair_launches, "MOST_PAIRS", 1)
    before = relpos.gpu.launches().get("fold_pairs", 0)
    assert not judged(GRID | {"queries": 97})
    assert relpos.gpu.launches()["fold_pairs"] == before + 2


def tf32(x):
    """The nearest number with 10 bits of fraction."""
    bits = x.view("int32").astype("int64")
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).astype("int32").view("float32")


def test_products_of_three_tf32_keep_it(garbage, monkeypatch):
    """As `tf32x3` multiplies float32 numbers: in two parts of 11 bits, without the product of the
    small parts. One product of such parts does not keep the promise."""
    plain, parts = InterpreterBuilder.create_dot, [3]

    def create_dot(self, a, b, d, *rest):
        def pieces(x):
            big = tf32(x.data)
            return type(x)(big, x.dtype), type(x)(tf32(x.data - big), x.dtype)

        (a_big, a_small), (b_big, b_small) = pieces(a), pieces(b)
        for x, y in ((a_small, b_big), (a_big, b_small), (a_big, b_big))[-parts[0] :]:
            d = plain(self, x, y, d, *rest)
        return d

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
    assert not judged(PLAIN)
    parts[0] = 1
    assert judged(PLAIN)


@triton.jit
def _round(to, x, WIDEN: tl.constexpr, COUNT: tl.constexpr):
    n = tl.arange(0, COUNT)
    tl.store(to + n, stored(tl.load(x + n), to.dtype.element_ty, WIDEN))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_are_rounded_to_nearest_even(dtype):
    x = torch.randn(1024) * torch.logspace(-12, 4, 1024)
    x[:8] = torch.tensor(
        [1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 0.0, -0.0, torch.inf, -torch.inf, 3e38]
    )
    to = torch.empty(1024, dtype=dtype)
    _round[(1,)](to, x, True, 1024)
    assert torch.equal(to, x.to(dtype))
    x[0] = torch.nan
    _round[(1,)](to, x, True, 1024)
    assert to[0].isnan()


def test_weights_are_rounded_before_they_meet_values():
    """As on the GPU: exp(-0.375) is 0.68729, in bfloat16 0.6875."""
    q = torch.ones(1, 1, 1, 1, dtype=torch.bfloat16)
    k, v = (torch.tensor(x).bfloat16()[None, None, :, None] for x in ([0, -0.375], [-0.6875, 1]))
    assert relpos.attention(q, k, v, scale=1.0, q_offset=0) == 0
    wide = relpos.attention(q.float(), k.float(), v.float(), scale=1.0, q_offset=0)
    assert -1e-3 < wide < -1e-5


def test_two_runs_have_the_same_bits_and_triton_computes_them():
    before = relpos.gpu.launches()
    first, second = (Here(PLAIN).computed() for _ in range(2))
    for name, result in first.items():
        assert torch.equal(result, second[name]), name
    grown = {n: count - before.get(n, 0) for n, count in relpos.gpu.launches().items()}
    grown = {name: count for name, count in grown.items() if count}
    assert grown == {
        "forward": 4,  # anew, too, for what is not finite
        "row_sums": 2,
        "backward_keys": 4,
        "backward_queries": 4,
        "mark_rows": 6,
        "sum_diagonals": 2,
        "fold_diagonals": 2,
        "fold_ends": 2,
        "write_table_gradient": 2,
        "write_cells": 4,
    }
    before = relpos.gpu.launches().get("sum_pairs", 0)
    first, second = (Here(GRID).computed() for _ in range(2))
    for name, result in first.items():
        assert torch.equal(result, second[name]), name
    assert relpos.gpu.launches()["sum_pairs"] == before + 2


def test_what_needs_no_gradient_costs_none():
    q = torch.randn(1, 2, 5, 8)
    t5 = relpos.T5Bias(2)
    k = q.clone().requires_grad_()
    before = relpos.gpu.launches()
    t5.requires_grad_(False)
    relpos.attention(q, k, q, position=t5).sum().backward()
    after = relpos.gpu.launches()
    for name in ("backward_queries", "sum_diagonals", "write_table_gradient"):
        assert after.get(name, 0) == before.get(name, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_cpu_has_the_same_results(dtype):
    """Also at positions far from 0, and where some rows see nothing."""
    q, k, v = (torch.randn(2, 4, n, 16).to(dtype) for n in (40, 70, 70))
    t5 = relpos.T5Bias(4).to(dtype)
    for more in (
        {"q_offset": 2**60, "k_offset": 2**60 - 35},
        {"q_offset": torch.tensor([-20, 30]), "k_offset": 5, "is_causal": True},
        {"q_offset": 200, "window": (170, 0)},
    ):
        out, lse = relpos.attention(q, k, v, position=t5, return_lse=True, **more)
        want, wanted_lse = torch.empty_like(out), torch.empty_like(lse)
        call = Fields.of("attention", q, k, {"position": t5, **more})
        relpos._core.attention(q, k, v, call, want, wanted_lse, None)
        limit = 3e-6 if dtype == torch.float32 else 3e-2
        torch.testing.assert_close(out, want, rtol=limit, atol=limit)
        torch.testing.assert_close(lse, wanted_lse, rtol=3e-6, atol=3e-6)
        assert (lse == -torch.inf).any() == ("q_offset" in more and more.get("is_causal", False))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("which", ["query", "key", "value", "dout"])
def test_what_a_pair_does_not_see_does_not_reach_it(which, value, dtype):
    """Of a number that is not finite, in one tile with others, as on the CPU."""
    tensors = [torch.randn(1, 1, 40, 8).to(dtype) for _ in range(4)]
    tensors[1][0, 0, 19, 3] = -1.0  # so that no row has scores of -inf alone
    tensors[1][0, 0, 21, 3] = 1.0
    tensors[["query", "key", "value", "dout"].index(which)][0, 0, 20, 3] = value
    options = {"window": (3, 1)}
    leaves = [x.clone().requires_grad_() for x in tensors[:3]]
    out = relpos.attention(*leaves, **options)
    found = [out, *torch.autograd.grad(out, leaves, tensors[3])]
    sizes = []
    for ours, theirs in zip(found, on_the_cpu(*tensors, **options), strict=True):
        limit = 1e-5 if dtype == torch.float32 else 5e-2
        torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=limit, atol=limit)
        sizes.append(int((~ours.isfinite()).sum()))
    assert 0 < max(sizes) < 40 * 8 / 2


@pytest.mark.parametrize("beside", [None, ("key", torch.inf), ("value", torch.nan)], ids=str)
@pytest.mark.parametrize("sink", [None, 1.0, -torch.inf])
def test_a_row_whose_scores_are_all_minus_infinity_sees_nothing(sink, beside):
    """By a query that is not finite: it reaches no gradient of a key, as on the CPU."""
    q, k, v, dout = torch.randn(4, 1, 1, 40, 8)
    q[0, 0, 20, 3] = -torch.inf
    k[0, 0, 16:22, 3] = k[0, 0, 16:22, 3].abs() + 1
    if beside is not None:
        {"key": k, "value": v}[beside[0]][0, 0, 20, 5] = beside[1]
    options = {"window": (3, 1)}
    if sink is not None:
        options["position"] = relpos.AttentionSink(1)
        torch.nn.init.constant_(options["position"].sinks, sink)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = relpos.attention(*leaves, **options)
    found = [out, *torch.autograd.grad(out, leaves, dout)]
    if beside is None and sink != 1.0:
        assert all(x.isfinite().all() for x in found)
    for ours, theirs in zip(found, on_the_cpu(q, k, v, dout, **options), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [(1, 0), (0, 1)])
def test_a_window_that_needs_one_key_of_one_more_tile(window):
    """The second block of queries sees 65 keys, and the second block of keys is seen by as many."""
    q, k, v, dout = torch.randn(4, 1, 1, 130, 8)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = relpos.attention(q, k, v, window=window)
    apart = torch.arange(130)[None, :] - torch.arange(130)[:, None]
    hidden = (apart < -window[0]) | (apart > window[1])
    score = (q.double() @ k.double().mT * 8**-0.5).masked_fill(hidden, -torch.inf)
    want = score.softmax(-1) @ v.double()
    found = [out, *torch.autograd.grad(out, leaves, dout)]
    for ours, exact in zip(
        found, [want, *torch.autograd.grad(want, leaves, dout.double())], strict=True
    ):
        torch.testing.assert_close(ours, exact.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "more",
    [
        {"mask": "window", "position": "t5#0+attention_sink#0"},
        {"mask": "padding+range", "position": "attention_sink#0", "dropout": 0.3, "queries": 1},
        {"mask": "float", "heads": (3, 1), "dtype": "bfloat16", "queries": 16},
    ],
    ids=["window", "padding", "mask"],
)
def test_few_queries_and_chunks_of_their_keys(more, garbage, monkeypatch):
    monkeypatch.setattr(forward_launches, "LEAST_CHUNK", 64)
    monkeypatch.setattr(forward_launches, "PROGRAMS", 24)
    before = relpos.gpu.launches().get("merge_chunks", 0)
    assert not judged(PLAIN | {"queries": 5, "keys": 330} | more)
    assert relpos.gpu.launches()["merge_chunks"] == before + 1


@pytest.mark.parametrize("left", [100, 301, 444])
def test_a_window_that_starts_within_a_tile_of_a_chunk(left, monkeypatch):
    monkeypatch.setattr(forward_launches, "LEAST_CHUNK", 64)
    q, k, v, dout = (torch.randn(1, 1, length, 8) for length in (3, 500, 500, 3))
    options = {"window": (left, 0), "q_offset": 497}
    out = relpos.attention(q, k, v, **options)
    torch.testing.assert_close(out, on_the_cpu(q, k, v, dout, **options)[0])


def test_the_chunks_of_keys():
    q, k = torch.zeros(1, 2, 5, 8), torch.zeros(1, 2, 5000, 8)

    def chunks(q, k):
        lowered = lower.Lowered(q, k, k, Fields.of("attention", q, k, {}))
        return forward_launches.chunks_of(run.Run(lowered, q, k, k))

    assert chunks(q, k) == (16, 320)
    assert chunks(q, k[:, :, :511]) == (1, 511)
    assert chunks(q.expand(132, 2, 5, 8), k.expand(132, 2, 5000, 8)) == (1, 5000)
    assert chunks(q.expand(44, 2, 5, 8), k.expand(44, 2, 5000, 8)) == (3, 1728)
    assert chunks(k, k) == (1, 5000)


def test_empty_tensors():
    q, none = torch.randn(1, 2, 3, 8, requires_grad=True), torch.empty(1, 2, 0, 8)
    out, lse = relpos.attention(
        q, none, none, q_offset=0, position=relpos.T5Bias(2), return_lse=True
    )
    out.sum().backward()
    assert not out.any()
    assert (lse == -torch.inf).all()
    assert not q.grad.any()
    assert relpos.attention(none, q, q, q_offset=0).shape == none.shape
    sinks = torch.tensor([0.5, -2.0], requires_grad=True)
    out, lse = relpos.attention(q, none, none, q_offset=0, sinks=sinks, return_lse=True)
    torch.testing.assert_close(lse, sinks[:, None].expand(1, 2, 3))
    lse.sum().backward()
    assert not out.any()
    torch.testing.assert_close(sinks.grad, torch.full((2,), 3.0))


def test_packed_sequences_are_each_by_itself():
    """Also where the position of a token is that of others of its row, and a table is trained."""
    starts = torch.tensor([0, 40, 40, 75, 107])
    q, k, v = (torch.randn(107, heads, 16, requires_grad=True) for heads in (4, 2, 2))
    dout = torch.randn(107, 4, 16)
    t5 = relpos.T5Bias(4)
    leaves = [q, k, v, *t5.parameters()]
    options = {"position": t5, "is_causal": True, "window": (30, 0), "enable_gqa": True}
    packed = relpos.attention_varlen(q, k, v, starts, **options)
    found = torch.autograd.grad(packed, leaves, dout)
    each = [
        relpos.attention(*(x[n:m].transpose(0, 1)[None] for x in (q, k, v)), **options)
        for n, m in pairwise(starts)
    ]
    each = torch.cat([out[0].transpose(0, 1) for out in each])
    for ours, alone in zip(
        (packed, *found), (each, *torch.autograd.grad(each, leaves, dout)), strict=True
    ):
        torch.testing.assert_close(ours, alone, rtol=1e-4, atol=1e-5)


def test_vmap_and_compile_reach_the_kernels():
    q = torch.randn(3, 1, 2, 5, 8)
    t5 = relpos.T5Bias(2)
    each = torch.func.vmap(lambda x: relpos.attention(x, x, x, position=t5))(q)
    whole = relpos.attention(q[:, 0], q[:, 0], q[:, 0], position=t5)
    torch.testing.assert_close(each[:, 0], whole)


@pytest.mark.parametrize("position", [relpos.SwinBias(2, window=2), relpos.ALiBi2D(2, grid=[2, 2])])
def test_a_grid_without_keys(position, garbage):
    q, none = torch.randn(1, 2, 4, 8, requires_grad=True), torch.zeros(1, 2, 0, 8)
    out = relpos.attention(q, none, none, position=position, q_offset=0)
    assert not out.any()
    (gradient,) = torch.autograd.grad(out.sum(), q)
    assert not gradient.any()
