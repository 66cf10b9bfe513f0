"""relpos.attention_varlen against the dense formula of each sequence by itself."""

import itertools
from functools import partial

import pytest
import relpos
import torch
from call import Given
from oracle import gradients, reads_length
from promise import Bounded, missed, promised
from sample import HEAD_DIM, HEADS, NAMES, VALUE_DIM, configurations, position, trained

pytestmark = pytest.mark.usefixtures("one_thread")

QUERIES, KEYS = [5, 0, 1, 9, 0, 3, 2], [7, 2, 1, 9, 0, 1, 0]


def starts(lengths, dtype=torch.int64):
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=dtype)


def packed(lengths_q, lengths_k, key_heads=HEADS, dtype=torch.float64, seed=0):
    """query, key, value, dout."""
    draw = torch.Generator().manual_seed(seed)
    total_q, total_k = sum(lengths_q), sum(lengths_k)
    shapes = [
        (total_q, HEADS, HEAD_DIM),
        (total_k, key_heads, HEAD_DIM),
        (total_k, key_heads, VALUE_DIM),
        (total_q, HEADS, VALUE_DIM),
    ]
    return [torch.randn(s, generator=draw, dtype=torch.float64).to(dtype) for s in shapes]


def promises(inputs, parts, dout, dlse, lengths_q, lengths_k, offsets, **masks):
    """Of out, lse, and the gradients of q, k, v and tables, a sequence at a time: the formula in
    double and the bound of docs/accuracy.md. Sequences add up their gradients of tables."""
    of_q, of_k = (partial(torch.split, split_size_or_sections=n) for n in (lengths_q, lengths_k))
    q, k, v = inputs
    split = zip(of_q(q), of_k(k), of_k(v), of_q(dout), of_q(dlse.T), offsets, strict=True)
    found = []
    for *rows, dlse_rows, offset in split:
        *one, seed = (x.detach().transpose(0, 1)[None] for x in rows)
        one = [x.requires_grad_() for x in one]
        call = Given(one, parts, seed, dlse_rows.T[None], q_offset=offset, **masks)
        found.append(promised(call)[0].values())
    for n, of_result in enumerate(zip(*found, strict=True)):
        sides = zip(*((x.exact, x.bound) for x in of_result), strict=True)
        if n >= 5:
            yield Bounded(*(sum(side) for side in sides))
        else:
            yield Bounded(*(torch.cat([x[0].transpose(0, 1) for x in side]) for side in sides))


def compare(module, parts, lengths_q, lengths_k, offsets, key_heads, dtype, **masks):
    """Forward and backward, against the promise about each sequence."""
    *inputs, dout = packed(lengths_q, lengths_k, key_heads, dtype)
    dlse = torch.randn(HEADS, len(dout), generator=torch.Generator().manual_seed(3)).to(dtype)
    leaves = [x.requires_grad_() for x in inputs]
    tables = [] if module is None else list(module.parameters())
    call = {"q_offset": torch.as_tensor(offsets)} if offsets is not None else {}
    same = lengths_q is lengths_k
    out, lse = relpos.attention_varlen(
        *leaves,
        starts(lengths_q),
        None if same else starts(lengths_k, torch.int32),
        position=module,
        enable_gqa=key_heads != HEADS,
        return_lse=True,
        **call,
        **masks,
    )
    assert out.is_contiguous()
    offsets = [0] * len(lengths_q) if offsets is None else offsets
    got = [out, lse, *gradients([out, lse], [dout, dlse], leaves + tables)]

    given = lengths_q, lengths_k, offsets
    wanted = promises(inputs, [part for part, _ in parts], dout, dlse, *given, **masks)
    got[1] = got[1].T
    for n, (value, promise) in enumerate(zip(got, wanted, strict=True)):
        assert missed(f"result {n}", value, promise) is None


CALLS = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"window": (2, 1)},
    "causal window": {"is_causal": True, "window": (3, -1)},
}


def modules_of(module, parts):
    """(oracle part, its module) of a position or a sum."""
    if module is None:
        return []
    held = module.parts if isinstance(module, relpos.Sum) else [module]
    return list(zip(parts, held, strict=True))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", NAMES)
def test_equals_each_sequence_alone(name, call):
    module, parts = position(name, dtype=torch.float64)
    pairs = modules_of(module, parts)
    setting = (HEADS, torch.float64)
    compare(module, pairs, QUERIES, QUERIES, None, *setting, **CALLS[call])
    ends = [k - q for q, k in zip(QUERIES, KEYS, strict=True)]
    compare(module, pairs, QUERIES, KEYS, ends, 2, torch.float64, **CALLS[call])


@pytest.mark.parametrize(("name", "number"), configurations())
def test_every_configuration(name, number):
    module, part = trained(name, number, dtype=torch.float64)
    ends = [k - q for q, k in zip(QUERIES, KEYS, strict=True)]
    if reads_length(name, part.options):
        inputs = packed(QUERIES, QUERIES)[:3]
        with pytest.raises(ValueError, match=r"position: .* depends on the length of the call"):
            relpos.attention_varlen(*inputs, starts(QUERIES), position=[module])
        compare(module, [(part, module)], [9], [9], None, HEADS, torch.float64, is_causal=True)
        return
    compare(module, [(part, module)], QUERIES, KEYS, ends, HEADS, torch.float64, is_causal=True)


@pytest.mark.parametrize("name", NAMES)
def test_float32_over_many_tiles(name):
    module, parts = position(name)
    lengths = [70, 1, 130, 64, 3, 200]
    pairs = modules_of(module, parts)
    compare(module, pairs, lengths, lengths, None, 2, torch.float32, is_causal=True)
    compare(module, pairs, lengths, lengths, None, 2, torch.float32)


def test_a_neighbours_nan_stays_there():
    query, key, value, _ = packed([3, 4], [3, 4], dtype=torch.float32)
    want = relpos.attention_varlen(query, key, value, starts([3, 4]))
    key[5], value[6] = torch.nan, torch.inf
    got = relpos.attention_varlen(query, key, value, starts([3, 4]))
    assert torch.equal(got[:3], want[:3])
    assert got[3:].isnan().any()


def test_dropout_follows_the_default_generator():
    query, key, value, _ = packed([3, 4], [3, 4], dtype=torch.float32)
    torch.manual_seed(1)
    first = relpos.attention_varlen(query, key, value, starts([3, 4]), dropout_p=0.5)
    torch.manual_seed(1)
    again = relpos.attention_varlen(query, key, value, starts([3, 4]), dropout_p=0.5)
    assert torch.equal(first, again)
    assert not torch.equal(first, relpos.attention_varlen(query, key, value, starts([3, 4])))


def test_gradcheck():
    query, key, value, _ = (x.requires_grad_() for x in packed([2, 3], [3, 2]))
    summed = position("sum", dtype=torch.float64)[0]

    def run(*leaves):
        return relpos.attention_varlen(
            *leaves,
            starts([2, 3]),
            starts([3, 2]),
            position=summed,
            q_offset=torch.tensor([1, 0]),
            is_causal=True,
            return_lse=True,
        )

    assert torch.autograd.gradcheck(run, (query, key, value), nondet_tol=0.0)


def test_compile_export_and_transforms():
    torch._dynamo.reset()
    module = position("t5")[0]
    query, key, value, _ = (x.requires_grad_() for x in packed([3, 4], [3, 4], dtype=torch.float32))

    class Attend(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.position = module

        def forward(self, q, k, v, cu):
            return relpos.attention_varlen(
                q, k, v, cu, position=self.position, is_causal=True, window=(3, 0)
            )

    run = Attend()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    for lengths in ([3, 4], [2, 0, 7], [1, 5, 4, 2]):
        inputs = packed(lengths, lengths, dtype=torch.float32)[:3]
        cu = starts(lengths)
        torch.testing.assert_close(compiled(*inputs, cu), run(*inputs, cu))
    with pytest.raises(RuntimeError, match="cu_seqlens_q: expected"):
        compiled(*inputs, starts([1, 5, 4, 1]))

    cu = starts([3, 4])
    inputs = tuple(x.detach() for x in (query, key, value))
    total = torch.export.Dim("total", min=2, max=64)
    program = torch.export.export(
        run,
        (*inputs, cu),
        dynamic_shapes=[*[{0: total}] * 3, {0: torch.export.Dim("starts", min=3)}],
    )
    longer = packed([5, 6, 2], [5, 6, 2], dtype=torch.float32)[:3]
    want = run(*longer, starts([5, 6, 2]))
    assert torch.equal(program.module()(*longer, starts([5, 6, 2])), want)

    loss = run(query, key, value, cu).square().sum()
    (gradient,) = torch.autograd.grad(loss, query)
    got = torch.func.grad(lambda q: run(q, key, value, cu).square().sum())(query)
    torch.testing.assert_close(got, gradient)
    stacked = [torch.stack([x, 2 * x]) for x in inputs]
    mapped = torch.vmap(lambda q, k, v: run(q, k, v, cu))(*stacked)
    for n in range(2):
        torch.testing.assert_close(mapped[n], run(*(x[n] for x in stacked), cu))


Q, K, V, _ = packed([3, 4], [3, 4])
REFUSED = [
    ((Q[0], K, V, starts([3, 4])), {}, ValueError, "query: expected rank 3"),
    ((Q, K, V, [0, 3, 7]), {}, TypeError, "cu_seqlens_q: expected a tensor, got list"),
    ((Q, K, V, starts([3, 4]).float()), {}, TypeError, "cu_seqlens_q: expected int32 or int64"),
    ((Q, K, V, starts([3, 4])[None]), {}, ValueError, r"cu_seqlens_q: expected \[S \+ 1\]"),
    ((Q, K, V, starts([3, 3])), {}, ValueError, r"end at 7, the rows of query, got \[0, 3, 6\]"),
    ((Q, K, V, starts([9, -2])), {}, ValueError, "never decrease"),
    ((Q, K, V, starts([3, 4]) + 1), {}, ValueError, "start at 0"),
    ((Q, K[:6], V[:6], starts([3, 4])), {}, ValueError, "cu_seqlens_k: expected it where key"),
    ((Q, K, V, starts([3, 4]), starts([7])), {}, ValueError, "cu_seqlens_k: expected 3 entries"),
    (
        (Q, K, V, starts([3, 4]), starts([4, 3])),
        {"is_causal": True},
        ValueError,
        r"q_offset = cu_seqlens_k.diff\(\) - cu_seqlens_q.diff\(\).*q_offset = 0",
    ),
    (
        (Q, K, V, starts([3, 4])),
        {"q_offset": torch.zeros(3, dtype=torch.int64), "is_causal": True},
        ValueError,
        r"q_offset: expected an int or int64 \[2\]",
    ),
    ((Q, K, V, starts([3, 4])), {"q_offset": 1.5, "is_causal": True}, TypeError, "q_offset"),
    ((Q, K, V, starts([3, 4])), {"window": (1,)}, TypeError, "window: expected a pair"),
    ((Q, K, V, starts([3, 4])), {"window": (1, -2)}, ValueError, "window: expected bounds"),
    ((Q, K, V, starts([3, 4])), {"window": (1, 0.5)}, TypeError, "window: expected two ints"),
]


@pytest.mark.parametrize(("args", "options", "kind", "text"), REFUSED)
def test_refuses(args, options, kind, text):
    with pytest.raises(kind, match=text):
        relpos.attention_varlen(*args, **options)


def test_without_positions_no_offset_is_asked():
    query, key, value, _ = packed([3, 4], [5, 2])
    relpos.attention_varlen(query, key, value, starts([3, 4]), starts([5, 2]))
    relpos.attention_varlen(query, key, value, starts([3, 4]), starts([3, 4]), is_causal=True)
