"""relpos.attention_varlen against the dense formula of each sequence by itself."""

import itertools

import pytest
import relpos
import torch

from tests.support.oracle import gradients, reads_length
from tests.support.sample import HEAD_DIM, HEADS, VALUE_DIM, configurations, position, trained
from tests.support.steps import step

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


CALLS = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"window": (2, 1)},
    "causal window": {"is_causal": True, "window": (3, -1)},
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["none", "sum"])
@pytest.mark.parametrize(("keys", "key_heads"), [(QUERIES, HEADS), (KEYS, 2)])
def test_equals_each_sequence_alone(name, call, keys, key_heads):
    """test_packed.py does so for every scheme, in float32, too."""
    module, _ = position(name, dtype=torch.float64)
    *inputs, dout = packed(QUERIES, keys, key_heads)
    dlse = torch.randn(len(dout), HEADS, dtype=torch.float64)
    offsets = [k - q for q, k in zip(QUERIES, keys, strict=True)]
    tables = [] if module is None else list(module.parameters())
    options = {"position": module, "enable_gqa": True, **CALLS[call]}
    leaves = [x.requires_grad_() for x in inputs]
    own = {} if keys is QUERIES else {"q_offset": torch.tensor(offsets)}
    of_keys = () if keys is QUERIES else (starts(keys, torch.int32),)
    out, lse = relpos.attention_varlen(
        *leaves, starts(QUERIES), *of_keys, return_lse=True, **own, **options
    )
    assert out.is_contiguous()
    found = [out, lse.T, *gradients([out, lse.T], [dout, dlse], leaves + tables)]
    sizes = (QUERIES, keys, keys, QUERIES, QUERIES)
    rows = [x.split(n) for x, n in zip((*inputs, dout, dlse), sizes, strict=True)]
    alone = []
    for *each, offset in zip(*rows, offsets, strict=True):
        q, k, v, seed, of_lse = (x.transpose(0, 1)[None] for x in each)
        alone.append(step(q, k, v, seed, dlse=of_lse, q_offset=offset, **options))
    wanted = []
    for n, results in enumerate(zip(*alone, strict=True)):
        of_tokens = [x[0].transpose(0, 1) for x in results] if n < 5 else results
        wanted.append(torch.cat(of_tokens) if n < 5 else sum(results))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_a_scheme_that_reads_the_length_takes_one_sequence():
    for name, number in configurations():
        module, part = trained(name, number, dtype=torch.float64)
        if reads_length(name, part.options):
            inputs = packed(QUERIES, QUERIES)[:3]
            with pytest.raises(ValueError, match=r"position: .* depends on the length of the call"):
                relpos.attention_varlen(*inputs, starts(QUERIES), position=[module])


def test_a_neighbours_nan_stays_there():
    query, key, value, _ = packed([3, 4], [3, 4], dtype=torch.float32)
    want = relpos.attention_varlen(query, key, value, starts([3, 4]))
    key[5], value[6] = torch.nan, torch.inf
    got = relpos.attention_varlen(query, key, value, starts([3, 4]))
    assert torch.equal(got[:3], want[:3])
    assert got[3:].isnan().any()


def test_compile_and_export():
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
    inputs, cu = packed([1, 5, 4, 2], [1, 5, 4, 2], dtype=torch.float32)[:3], starts([1, 5, 4, 2])
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


MASK = torch.ones(7, 7, dtype=torch.bool)
NO_OPTIONS = {
    "attn_mask": (MASK, r"'attn_mask': cu_seqlens_q .* by itself, .* with attn_mask or key_range"),
    "key_range": ((Q, Q), "'key_range': cu_seqlens_q .* with key_range, q_positions and"),
    "key_padding_mask": (MASK[:1], "'key_padding_mask': leave out the rows of padding"),
    "k_offset": (3, "'k_offset': positions start at 0 again in each sequence; q_offset says"),
    "q_positions": (torch.arange(7), "'q_positions': positions start at 0"),
    "return_weights": (True, "unexpected keyword argument 'return_weights'$"),
}


@pytest.mark.parametrize("name", NO_OPTIONS)
def test_options_that_it_lacks_name_a_way_out(name):
    value, text = NO_OPTIONS[name]
    with pytest.raises(TypeError, match=rf"^attention_varlen\(\) got an .*{text}"):
        relpos.attention_varlen(Q, K, V, starts([3, 4]), **{name: value})


def test_the_way_out_for_masks():
    """All rows at once, with positions that start again, are each sequence by itself."""
    lengths = [9, 1, 14]
    query, key, value, _ = packed(lengths, lengths)
    mask = torch.rand(24, 24, generator=torch.Generator().manual_seed(1)) < 0.7
    ids = torch.arange(3).repeat_interleave(torch.tensor(lengths))
    at = torch.cat([torch.arange(n) for n in lengths])
    alibi, rows = relpos.ALiBi(HEADS), [x.transpose(0, 1)[None] for x in (query, key, value)]
    documents = relpos.TileMask.documents(ids)
    seen = documents & relpos.from_mask_mod(lambda b, h, q, k: mask[q, k], 24, 24)
    both = {"position": alibi, "q_positions": at, "k_positions": at}
    whole = relpos.attention(*rows, attn_mask=seen, **both)
    dense = relpos.attention(*rows, attn_mask=documents.dense() & mask, **both)
    first = 0
    for n in lengths:
        own = [x[:, :, first : first + n] for x in rows]
        within = mask[first : first + n, first : first + n]
        alone = relpos.attention(*own, position=alibi, attn_mask=within)
        for found in (whole, dense):
            torch.testing.assert_close(found[:, :, first : first + n], alone, rtol=0, atol=1e-12)
        first += n
