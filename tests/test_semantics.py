"""The promises about rows without keys, odd sizes, odd memory, and equal answers by other roads."""

import itertools
import warnings

import pytest
import relpos
import torch
from call import Given
from oracle import allowed_pairs, attend, exclusive, gradients, oracle_of, positions
from promise import missed, promised
from sample import HEADS, NAMES, UNBOUND, configurations, position, tensors, trained

pytestmark = pytest.mark.usefixtures("one_thread")

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def run(q, k, v, dout, module, **call):
    """out, lse and the gradients of q, k, v and of every table."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    tables = list(module.parameters()) if module is not None else []
    out, lse = relpos.attention(*leaves, position=module, return_lse=True, **call)
    return [out.detach(), lse.detach(), *gradients([out], [dout], leaves + tables)]


def same_bits(one, other):
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
        assert torch.equal(a.contiguous().view(width), b.contiguous().view(width))


def no_keys(kind, queries, keys):
    """A call in which some or all rows see no key."""
    place = {"q_offset": 0}
    if kind == "before the first key":
        return {"q_offset": -5, "is_causal": True}
    if kind == "window past the keys":
        return {"q_offset": keys - 3, "window": (0, 4)}
    if kind == "padding":
        return place | {"key_padding_mask": torch.tensor([[True] * keys, [False] * keys])}
    if kind == "range":
        low = torch.arange(queries) % keys
        return place | {"key_range": (low, low + (low % 3) - 1)}
    seen = torch.rand(2, HEADS, queries, keys, generator=torch.Generator().manual_seed(1)) < 0.5
    seen[:, :, ::3] = False
    if kind == "bool mask":
        return place | {"attn_mask": seen}
    return place | {"attn_mask": torch.where(seen, 0.25, -torch.inf)}


EMPTY_ROWS = [
    "before the first key",
    "window past the keys",
    "padding",
    "range",
    "bool mask",
    "float mask",
]


@pytest.mark.parametrize(("kind", "name"), list(itertools.product(EMPTY_ROWS, NAMES)))
def test_rows_without_keys(kind, name):
    queries, keys = 67, 66
    call = no_keys(kind, queries, keys)
    masks = {n: x for n, x in call.items() if n != "q_offset"}
    pos_q, pos_k = positions(2, queries, keys, q_offset=call["q_offset"])
    alive = allowed_pairs(pos_q, pos_k, heads=HEADS, **masks).any(-1)
    assert not alive.all()
    for dtype in DTYPES:
        module, _ = position(name, dtype=dtype)
        q, k, v, dout = tensors(batch=2, queries=queries, keys=keys, dtype=dtype)
        q[0, 0, ~alive[0, 0]] = torch.nan
        typed = dict(call)
        if kind == "float mask":
            typed["attn_mask"] = call["attn_mask"].to(dtype)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        out, lse = relpos.attention(*leaves, position=module, return_lse=True, **typed)
        assert (out[~alive] == 0).all()
        assert torch.equal(lse == -torch.inf, ~alive)
        assert out[alive].isfinite().all()
        tables = [x for x in module.parameters()] if module is not None else []
        seeds = [dout, torch.ones_like(lse)]
        grads = gradients([out, lse], seeds, leaves + tables)
        assert all(grad.isfinite().all() for grad in grads)
        assert (grads[0][~alive] == 0).all()


SIZES = [(0, 3, 4), (2, 0, 4), (2, 3, 0), (2, 0, 0)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("causal", [False, True])
def test_empty_tensors(name, causal):
    module, _ = position(name)
    for batch, queries, keys in SIZES:
        q, k, v, dout = tensors(batch=batch, queries=queries, keys=keys)
        call = {"q_offset": 0, "is_causal": causal}
        out, lse, dq, dk, dv, *tables = run(q, k, v, dout, module, **call)
        assert out.shape == dout.shape
        assert lse.shape == dout.shape[:3]
        assert (out == 0).all()
        assert (lse == -torch.inf).all()
        for grad, x in zip((dq, dk, dv), (q, k, v), strict=True):
            assert torch.equal(grad, torch.zeros_like(x))
        assert all((grad == 0).all() for grad in tables)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_key_and_one_dimension(dtype):
    q, k, v, dout = tensors(queries=5, keys=1, head_dim=1, value_dim=1, dtype=dtype)
    out, lse, dq, dk, dv = run(q, k, v, dout, None)
    assert torch.equal(out, v.expand_as(out))
    torch.testing.assert_close(lse, (q * k)[..., 0].to(lse.dtype), rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(dv, dout.double().sum(2, keepdim=True).to(dtype))
    assert torch.equal(dk.abs() < 1e-6, torch.ones_like(dk, dtype=torch.bool))
    assert torch.equal(dq.abs() < 1e-6, torch.ones_like(dq, dtype=torch.bool))


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_strides_alignment_and_read_only_inputs(name, dtype):
    module, _ = position(name, dtype=dtype)
    q, k, v, dout = tensors(batch=2, queries=33, keys=33, dtype=dtype)
    plain = run(q, k, v, dout, module)
    strange = zip(*(other_memory(x) for x in (q, k, v, dout)), strict=True)
    tight = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {}
    for places in strange:
        held = [x.clone() for _, x in places]
        for got, was in zip(run(*(x for _, x in places), module), plain, strict=True):
            torch.testing.assert_close(got, was, **tight, msg=lambda m, p=places: f"{p[0][0]}: {m}")
        same_bits(held, [x for _, x in places])


def test_overlapping_and_broadcast_inputs():
    base = torch.randn(500, generator=torch.Generator().manual_seed(3))
    q = base.as_strided((1, HEADS, 40, 8), (0, 3, 2, 1))
    k = base[7:8].expand(1, HEADS, 40, 8)
    v = base.as_strided((1, HEADS, 40, 6), (0, 0, 1, 0), 50)
    dout = base[9:10].expand(1, HEADS, 40, 6)
    copies = [x.clone(memory_format=torch.contiguous_format) for x in (q, k, v, dout)]
    for got, was in zip(run(q, k, v, dout, None), run(*copies, None), strict=True):
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
    plain = [run(*inputs, module, **call) for call in calls]
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        assert torch.empty(3).isnan().all()
        filled = [run(*inputs, module, **call) for call in calls]
    finally:
        torch.use_deterministic_algorithms(False)
    for one, other in zip(plain, filled, strict=True):
        same_bits(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_row_does_not_depend_on_the_batch(name, dtype):
    module, _ = position(name, dtype=dtype)
    inputs = tensors(batch=5, queries=70, keys=90, dtype=dtype)
    offsets = torch.tensor([20, 0, 3, -4, 50])
    padding = torch.arange(90)[None, :] >= torch.tensor([90, 1, 64, 65, 40])[:, None]
    whole = run(*inputs, module, q_offset=offsets, is_causal=True, key_padding_mask=padding)
    for b in range(5):
        row = slice(b, b + 1)
        alone = run(
            *(x[row] for x in inputs),
            module,
            q_offset=int(offsets[b]),
            is_causal=True,
            key_padding_mask=padding[row],
        )
        same_bits([x[row] for x in whole[:5]], alone[:5])


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
    offsets = torch.tensor([0, 150, 227])
    whole = run(*inputs, module, q_offset=offsets)
    for b in range(3):
        row = slice(b, b + 1)
        alone = run(*(x[row] for x in inputs), module, q_offset=int(offsets[b]))
        same_bits([x[row] for x in whole[:5]], alone[:5])


def broken(got, inputs, parts, **call):
    """None, or how an output breaks the promise of docs/accuracy.md."""
    return missed("out", got, promised(Given(inputs, parts, **call))[0]["out"])


def formula(inputs, parts, dtype, **call):
    q, k, v = (x.detach().to(dtype) for x in inputs)
    place = {n: call[n] for n in call if "offset" in n or "positions" in n}
    masks = {n: call[n] for n in call if n not in place}
    pos_q, pos_k = positions(q.shape[0], q.shape[2], k.shape[2], **place)
    seen = allowed_pairs(pos_q, pos_k, heads=q.shape[1], **masks)
    cast = [part.cast(dtype, set()) for part in parts]
    return attend(q, k, v, cast, pos_q, pos_k, seen, scale=q.shape[-1] ** -0.5)


@pytest.mark.parametrize("name", NAMES)
def test_a_decode_row_equals_the_prefill_row(name):
    module, parts = position(name)
    length = 150
    q, k, v, _ = tensors(queries=length, keys=length, key_heads=2)
    prefill = relpos.attention(q, k, v, position=module, is_causal=True, enable_gqa=True)
    for at in (0, 1, 63, 64, 65, 100, length - 1):
        row = [q[:, :, at : at + 1], k[:, :, : at + 1], v[:, :, : at + 1]]
        decoded = relpos.attention(
            *row, position=module, q_offset=at, is_causal=True, enable_gqa=True
        )
        for got in (decoded, prefill[:, :, at : at + 1]):
            assert broken(got, row, parts, q_offset=at, is_causal=True) is None


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
        assert broken(out, inputs, parts, **call) is None


@pytest.mark.parametrize(("name", "number"), configurations())
def test_unused_rows_have_gradient_exactly_zero(name, number):
    for call in ({"is_causal": True}, {"window": (3, 1)}, {"q_offset": 4, "is_causal": True}):
        for dtype in (torch.float32, torch.bfloat16):
            module, part = trained(name, number, dtype=dtype)
            q, k, v, dout = tensors(batch=2, queries=11, keys=11, dtype=dtype)
            got = run(q, k, v, dout, module, **call)[5:]
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


def test_tables_may_be_wider_than_the_inputs():
    for name in UNBOUND:
        module, _ = trained(name)
        for dtype in (torch.bfloat16, torch.float16):
            q, k, v, dout = tensors(queries=9, keys=9, dtype=dtype)
            (
                out,
                _,
                dq,
                *_,
            ) = run(q, k, v, dout, module)
            assert out.dtype == dq.dtype == dtype
            grads = run(q, k, v, dout, module)[5:]
            assert all(grad.dtype == torch.float32 for grad in grads)


FAR = [10**6, 2**40]


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("name", NAMES)
def test_far_positions_shift_nothing(name, far):
    """Only distances count. A rotation's angles are doubles: 2^40 leaves them 1e-4 radians."""
    module, _ = position(name)
    inputs = tensors(queries=70, keys=80)
    near = run(*inputs, module, q_offset=10, is_causal=True)
    moved = run(*inputs, module, q_offset=far + 10, k_offset=far, is_causal=True)
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
