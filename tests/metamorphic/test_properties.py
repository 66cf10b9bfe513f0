"""What calls owe each other, without a word on what is right: bits where relpos promises them, else
within the bounds of docs/accuracy.md. RELPOS_FULL=1 draws 500 calls for each property.

Rings against one process are in tests/distributed, and routes of tests/fuzz.
"""

import functools
import math

import pytest
import relpos
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.metamorphic.example import (
    LENGTHS,
    SCHEMES,
    Example,
    agree,
    few,
    pieces,
    same_bits,
    schemes,
    turns,
)
from tests.support.oracle import attend, exclusive, oracle_of
from tests.support.sample import PLAIN, trained

pytestmark = pytest.mark.usefixtures("one_thread")
SEEDS = st.integers(0, 2**31)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16])
WIDE = st.sampled_from([torch.float32, torch.float64])
RESULTS = ["out", "lse", "gradient of q", "gradient of k", "gradient of v"]


def part(chosen):
    return [] if chosen[0] == "none" else [chosen]


@functools.cache
def seen_from_afar(name, number=0):
    """Whether the oracle's scores are the same where both sides stand further on, as relpos lets
    them: not those of angles that are rounded to float32."""
    if name == "none":
        return True
    example = Example(3, 5, 7, [(name, number)], torch.float64)
    example.run(q_offset=2**21, k_offset=2**21)
    q, k, v = (x[:1] for x in example.inputs)
    at = torch.arange(5)[None] + 2, torch.arange(7)[None]
    allowed = torch.ones(1, 4, 5, 7, dtype=torch.bool)
    one, other = (
        attend(q, k, v, example.parts, at[0] + far, at[1] + far, allowed, scale=0.3).out
        for far in (0, 2**21)
    )
    return torch.allclose(one, other, rtol=1e-9, atol=1e-9)


RELATIVE = SCHEMES.filter(lambda chosen: pieces(chosen[0]) and seen_from_afar(*chosen))


@few
@given(SEEDS, LENGTHS, LENGTHS, RELATIVE, DTYPES, st.integers(-(2**20), 2**20), st.booleans())
def test_shift_of_both_positions(seed, queries, keys, chosen, dtype, far, causal):
    example = Example(seed, queries, keys, part(chosen), dtype, q_offset=3, is_causal=causal)
    shifted = example.run(q_offset=3 + far, k_offset=far)
    example.options["k_offset"] = 0
    bounds = Example(
        seed, queries, keys, part(chosen), dtype, q_offset=3 + far, k_offset=far, is_causal=causal
    ).bounds()
    agree(example.run(), shifted, bounds)


def test_properties_hold_of_many_schemes():
    relative = {name for name in PLAIN if pieces(name) and seen_from_afar(name)}
    assert len(relative) * 2 > len(PLAIN), relative
    assert {"t5", "bias_rpe"} <= set(filter(adds_numbers, PLAIN))
    assert sum(map(vanishes, PLAIN)) >= 6
    assert sum(map(turns, PLAIN)) >= 6


@few
@given(SEEDS, LENGTHS, LENGTHS, SCHEMES, DTYPES, st.permutations(range(3)), st.booleans())
def test_permuted_batch(seed, queries, keys, chosen, dtype, order, causal):
    draw = torch.Generator().manual_seed(seed)
    padding = torch.rand(3, keys, generator=draw) < 0.3
    mask = torch.randn(3, 1, queries, keys, generator=draw).to(dtype)
    example = Example(
        seed, queries, keys, part(chosen), dtype, batch=3, q_offset=0, is_causal=causal
    )
    one = example.run(key_padding_mask=padding, attn_mask=mask)
    other = example.run(
        [x[order] for x in example.inputs],
        example.dout[order],
        example.dlse[order],
        key_padding_mask=padding[order],
        attn_mask=mask[order],
    )
    same_bits({name: one[name][order] for name in RESULTS}, other, RESULTS)


@few
@given(SEEDS, LENGTHS, LENGTHS, DTYPES, st.permutations(range(2)), st.booleans())
def test_permuted_heads(seed, queries, keys, dtype, order, causal):
    """Key heads change places, and with them their groups of queries; so does what a mask adds."""
    draw = torch.Generator().manual_seed(seed)
    example = Example(seed, queries, keys, [], dtype, q_offset=0, is_causal=causal)
    q, k, v = example.inputs
    k, v = k[:, :2], v[:, :2]
    groups = [2 * n + i for n in order for i in range(2)]
    mask = torch.randn(1, 4, queries, keys, generator=draw).to(dtype)
    call = {"enable_gqa": True}
    one = example.run([q, k, v], attn_mask=mask, **call)
    other = example.run(
        [q[:, groups], k[:, order], v[:, order]],
        example.dout[:, groups],
        example.dlse[:, groups],
        attn_mask=mask[:, groups],
        **call,
    )
    own = {"out": groups, "lse": groups, "gradient of q": groups}
    same_bits({n: one[n][:, own.get(n, order)] for n in RESULTS}, other, RESULTS)


@few
@given(SEEDS, LENGTHS, LENGTHS, schemes(pieces), WIDE, st.floats(0, 1), st.booleans())
def test_keys_in_two_calls(seed, queries, keys, chosen, dtype, share, causal):
    """Merged by their log-sum-exp; what gradients reach through it is the gradient of the whole."""
    assume(chosen[0] == "none" or "rows" not in exclusive(chosen[0]))
    cut = round(share * keys)
    call = {"q_offset": 2, "is_causal": causal}
    example = Example(seed, queries, keys, part(chosen), dtype, **call)
    leaves = [x.detach().requires_grad_() for x in example.inputs]
    q, k, v = leaves
    done = [
        relpos.attention(
            *(q, k[:, :, own], v[:, :, own]),
            position=example.position,
            k_offset=own.start,
            return_lse=True,
            **call,
        )
        for own in (slice(0, cut), slice(cut, keys))
    ]
    merged = example.results(*relpos.merge(*zip(*done, strict=True)), leaves)
    # Two calls and their sum, each with its errors, beside the whole with its own.
    agree(example.run(), merged, example.bounds(), times=3)


@few
@given(SEEDS, LENGTHS, schemes(pieces), DTYPES, st.floats(0, 1))
def test_prefix_of_a_causal_call(seed, length, chosen, dtype, share):
    own = max(1, round(share * length))
    whole = Example(seed, length, length, part(chosen), dtype, is_causal=True)
    whole.dout[:, :, own:], whole.dlse[:, :, own:] = 0.0, 0.0
    short = [x[:, :, :own] for x in whole.inputs]
    found, bounds = whole.run(), whole.bounds()
    alone = whole.run(short, whole.dout[:, :, :own], whole.dlse[:, :, :own])
    for name in RESULTS:
        found[name], bounds[name] = found[name][:, :, :own], bounds[name][:, :, :own]
    agree(found, alone, bounds)


def adds_numbers(name):
    """A bias that is a table of its own, which may be 0 or any constant."""
    if name == "none":
        return False
    example = Example(3, 5, 7, [(name, 0)], torch.float64)
    if len(example.parts[0].parameters) != 1 or not example.modules[0].state_dict():
        return False
    table = next(iter(example.parts[0].parameters.values()))
    with torch.no_grad():
        table.fill_(2.0)
        terms = oracle_of(name).terms(
            example.parts[0].options, example.parts[0].parameters, torch.arange(5), torch.arange(7)
        )
    return set(terms) == {"bias"} and bool((terms["bias"] == 2.0).all())


def chosen_scale(example):
    """What multiplies the table."""
    return example.parts[0].options.get("bias_scale", 1.0)


TABLES = schemes(lambda name: pieces(name) and adds_numbers(name))


@few
@given(SEEDS, LENGTHS, LENGTHS, TABLES, DTYPES, st.sampled_from([0.0, 0.75, -3.0]), st.booleans())
def test_constant_bias(seed, queries, keys, chosen, dtype, constant, causal):
    """Is none to the softmax: the log-sum-exp is larger by it."""
    example = Example(seed, queries, keys, [chosen], dtype, q_offset=1, is_causal=causal)
    with torch.no_grad():
        for table in example.modules[0].parameters():
            table.fill_(constant)
    found, bounds = example.run(), example.bounds()
    none = example.run(position=None)
    none["lse"] = none["lse"].double() + constant * chosen_scale(example)
    agree({n: found[n] for n in RESULTS}, none, {n: bounds[n] for n in RESULTS})


def vanishes(name):
    """Its terms are 0 where all parameters are but single numbers, such as FIRE's length."""
    module = None if name == "none" else trained(name)[0]
    if module is None or not list(module.parameters()) or list(module.buffers()):
        return False
    held = {n: torch.zeros_like(x) if x.numel() > 1 else x for n, x in module.named_parameters()}
    options = trained(name)[1].options
    terms = oracle_of(name).terms(options, held, torch.arange(5), torch.arange(7))
    return not any(callable(x) or x.any() for x in terms.values())


@few
@given(SEEDS, LENGTHS, LENGTHS, schemes(vanishes), DTYPES, st.booleans())
def test_tables_of_zeros(seed, queries, keys, chosen, dtype, causal):
    assume(pieces(chosen[0]))
    example = Example(seed, queries, keys, [chosen], dtype, q_offset=1, is_causal=causal)
    with torch.no_grad():
        for table in example.modules[0].parameters():
            table.mul_(0.0 if table.numel() > 1 else 1.0)
    found, bounds = example.run(), example.bounds()
    none = example.run(position=None)
    agree({n: found[n] for n in RESULTS}, none, {n: bounds[n] for n in RESULTS})


@few
@given(SEEDS, LENGTHS, LENGTHS, SCHEMES, SCHEMES, DTYPES, st.booleans())
def test_order_of_a_sum(seed, queries, keys, first, second, dtype, causal):
    for name in (first[0], second[0]):
        assume(name != "none")
    assume(not exclusive(first[0]) & exclusive(second[0]))
    call = {"q_offset": 2, "is_causal": causal}
    one = Example(seed, queries, keys, [first, second], dtype, **call)
    other = Example(seed, queries, keys, [second, first], dtype, **call)
    turned = {
        name.replace("part 0", "part X").replace("part 1", "part 0").replace("part X", "part 1"): x
        for name, x in other.run().items()
    }
    agree(one.run(), turned, one.bounds())


@few
@given(SEEDS, LENGTHS, LENGTHS, schemes(turns), WIDE, st.integers(0, 500), st.booleans())
def test_rotated_outside(seed, queries, keys, chosen, dtype, offset, causal):
    call = {"q_offset": offset, "is_causal": causal}
    example = Example(seed, queries, keys, [chosen], dtype, **call)
    module = example.modules[0]
    assume(pieces(chosen[0]) and not hasattr(oracle_of(chosen[0]), "decays"))
    leaves = [x.detach().requires_grad_() for x in example.inputs]
    q, k, v = leaves
    try:
        turned = module.rotate(q, offset=offset), module.rotate(k)
    except ValueError:
        assume(False)
    out, lse = relpos.attention(*turned, v, return_lse=True, **call)
    outside = example.results(out, lse, leaves)
    agree(example.run(), outside, example.bounds())


@few
@given(
    SEEDS,
    st.lists(st.sampled_from([0, 1, 3, 17, 40, 65]), min_size=1, max_size=4),
    schemes(pieces),
    DTYPES,
    st.booleans(),
)
def test_packed_sequences(seed, lengths, chosen, dtype, causal):
    """Each as by itself."""
    total = sum(lengths)
    assume(total > 0)
    example = Example(seed, total, total, part(chosen), dtype, batch=1, is_causal=causal)
    starts = torch.tensor([0, *lengths]).cumsum(0)
    leaves = [x.detach().requires_grad_() for x in example.inputs]
    packed = [x[0].transpose(0, 1) for x in leaves]
    out, lse = relpos.attention_varlen(
        *packed, starts, position=example.position, is_causal=causal, return_lse=True
    )
    whole = example.results(out.transpose(0, 1)[None], lse[None], leaves)
    for first, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        own = Example(
            seed, end - first, end - first, part(chosen), dtype, batch=1, is_causal=causal
        )
        own.inputs = [x[:, :, first:end] for x in example.inputs]
        own.dout, own.dlse = example.dout[:, :, first:end], example.dlse[:, :, first:end]
        mine = {name: whole[name][:, :, first:end] for name in RESULTS}
        agree(mine, own.run(), own.bounds())


@few
@given(SEEDS, LENGTHS, LENGTHS, SCHEMES, WIDE)
def test_repeated_keys(seed, queries, keys, chosen, dtype):
    """Every key twice, at its position: out is the same, and the sum of the softmax doubles."""
    assume(chosen[0] == "none" or not exclusive(chosen[0]) - {"rotates"})
    at = {"q_positions": torch.arange(queries) + 2}
    example = Example(seed, queries, keys, part(chosen), dtype)
    example.options = at | {"k_positions": torch.arange(keys)}
    twice = [example.inputs[0], *(torch.cat([x, x], 2) for x in example.inputs[1:])]
    found = example.run(twice, **at | {"k_positions": torch.arange(keys).repeat(2)})
    found["lse"] = found["lse"].double() - math.log(2.0)
    bounds = example.bounds()
    for name in ("gradient of k", "gradient of v"):
        found[name] = found[name].unflatten(2, (2, keys)).sum(2)
    agree(example.run(), found, bounds)


@few
@given(SEEDS, LENGTHS, LENGTHS, WIDE, st.integers(-3, 3), st.booleans())
def test_powers_of_two_in_the_scale(seed, queries, keys, dtype, power, causal):
    """Exact in binary: the same bits."""
    example = Example(seed, queries, keys, [], dtype, q_offset=0, is_causal=causal)
    q, k, v = example.inputs
    one = example.run(scale=0.25)
    other = example.run([q * 2.0**power, k, v], scale=0.25 / 2.0**power)
    one["gradient of q"] = one["gradient of q"] / 2.0**power
    same_bits(one, other, RESULTS)
