"""Packed sequences against relpos.attention on each of them alone, at random: every scheme in every
configuration, forward and backward, in one process, on a ring, and by Ulysses."""

import itertools
import random
import zlib

import pytest
import relpos
import torch
from relpos._position.part import text_of
from relpos.distributed._geometry import Side, placing
from relpos.distributed._layout import Run

from tests.support import ring_case
from tests.support.oracle import configs_of, exclusive, oracle_of, reads_length
from tests.support.ranks import shared
from tests.support.ring_case import HEAD_DIM, HEADS, VALUE_DIM, Case, joined
from tests.support.sample import BY_TOKENS, configurations, summed

pytestmark = pytest.mark.usefixtures("one_thread")

SCHEMES = {name: [] for name in BY_TOKENS}
for scheme, configuration in configurations(HEADS, HEAD_DIM, VALUE_DIM, BY_TOKENS):
    SCHEMES[scheme].append(configuration)
PLACING = [name for name in SCHEMES if "places" in exclusive(name)]
EXACT = 1e-10  # of float64
# Of float32: every result is within (64 + n / 64) eps of the sizes that it adds up
# (docs/accuracy.md), which are no smaller than itself.
BOUND = 80 * torch.finfo(torch.float32).eps / 2


def starts(lengths):
    return torch.tensor([0, *itertools.accumulate(lengths)])


def drawn(seed, chosen, longest, heads=HEADS):
    """The arguments of a Case of packed sequences that the schemes [(name, number)] take."""
    draw = random.Random(seed)
    lengths = [n for n in (0, 1, 2, 3, 5, 7, 9, 12, 16, 17, 26, 40, 65, 130) if n <= longest]
    oracles = [oracle_of(name) for name, _ in chosen]
    configs = [configs_of(n, heads, HEAD_DIM, VALUE_DIM)[number] for n, number in chosen]
    alone = any(reads_length(n, o) for (n, _), o in zip(chosen, configs, strict=True))
    queries = [draw.choice(lengths) for _ in range(1 if alone else draw.randint(1, 5))]
    keys = queries
    case = {"schemes": chosen, "heads": heads, "cu_seqlens": starts(queries)}
    if draw.random() < 0.5:
        keys = [draw.choice(lengths) for _ in queries]
        ends = zip(queries, keys, strict=True)
        offsets = [draw.choice([0, 3, max(k - q, 0)]) for q, k in ends]
        case |= {"cu_seqlens_k": starts(keys), "q_offset": torch.tensor(offsets)}
    case |= {"queries": sum(queries), "keys": sum(keys)}
    if draw.random() < 0.4 or any(hasattr(o, "GROWS") for o in oracles):
        case["is_causal"] = True
    if draw.random() < 0.4:
        case["window"] = (draw.choice([-1, 0, 2, 7, 30]), draw.choice([-1, 0, 3, 20]))
    if draw.random() < 0.3 and not any(hasattr(o, "UP_TO_QUERY") for o in oracles):
        case["softcap"] = 1.5
    if draw.random() < 0.3:
        case["scale"] = 0.37
    if draw.random() < 0.3 and not any(hasattr(o, "KEY_HEADS") for o in oracles):
        case["key_heads"] = heads // 2
    return case


def largest_errors(found, wanted):
    """{result: its largest error, in parts of its largest number}; where rows see nothing, -inf on
    both sides."""
    errors = {}
    for name, exact in wanted.items():
        value, unseen = found[name].double(), exact.isneginf()
        assert torch.equal(value.isneginf(), unseen), name
        difference = (value - exact).masked_fill(unseen, 0.0).abs()
        size = exact.masked_fill(unseen, 0.0).abs().max() if exact.numel() else 0.0
        errors[name] = float(difference.max() / max(size, 1e-30)) if exact.numel() else 0.0
    return errors


def check(*chosen):
    """In one process: all digits in double; in float32, over tiles of several sequences, as close
    as each sequence alone."""
    seed = zlib.crc32(repr(chosen).encode())
    case = drawn(seed, chosen, 26)
    exact = Case(**case).whole(torch.float64, apart=True)
    errors = largest_errors(Case(**case).whole(torch.float64), exact)
    assert max(errors.values()) < EXACT, (case, errors)
    case = drawn(seed + 1, chosen, 130)
    exact = Case(**case).whole(torch.float64, apart=True)
    alone, errors = (
        largest_errors(Case(**case).whole(torch.float32, apart=apart), exact)
        for apart in (True, False)
    )
    for name, error in errors.items():
        assert error <= 2 * alone[name] + BOUND, (case, name, error, alone[name])


@pytest.mark.parametrize("name", SCHEMES)
def test_every_configuration(name):
    for number in SCHEMES[name]:
        check((name, number))


def test_without_a_position_and_in_a_sum():
    check()
    check(*((name, 0) for name in summed()))


@pytest.mark.parametrize("name", PLACING)
def test_beside_another(name):
    """A position that places tokens places those of the other parts, too."""
    draw = random.Random(name)
    fitting = [n for n in SCHEMES if not exclusive(n) & exclusive(name)]
    for other in draw.sample(fitting, 2):
        check((name, draw.choice(SCHEMES[name])), (other, draw.choice(SCHEMES[other])))
        check((other, SCHEMES[other][0]), (name, SCHEMES[name][0]))


@pytest.mark.parametrize("function", ["ring_attention", "ulysses_attention"])
@pytest.mark.parametrize("name", SCHEMES)
def test_on_ranks(name, function):
    """Shards of packed sequences, which begin and end within them, in each layout in turns."""
    turn = list(SCHEMES).index(name)
    size, layout = 2 + turn % 2, ("contiguous", "zigzag", "striped")[turn % 3]
    heads = 2 * size if function == "ulysses_attention" else HEADS
    for number in SCHEMES[name] if name in PLACING else SCHEMES[name][:1]:
        seed = zlib.crc32(f"{name} {number} {function}".encode())
        case = drawn(seed, [(name, number)], 40, heads)
        how = case | {"function": function, "layout": layout}
        check_on_ranks(size, **how)


def check_on_ranks(size, **case):
    answers = shared(size).results(ring_case.run, dtype=torch.float64, **case)
    exact = Case(**case).whole(torch.float64, apart=True)
    errors = largest_errors(joined(answers, **case), exact)
    assert max(errors.values()) < EXACT, (case, errors)


@pytest.mark.parametrize("layout", ["contiguous", "zigzag", "striped"])
def test_long_shards(layout):
    """On more than two ranks their keys are computed with, and their gradients sent, by halves."""
    case = {"schemes": [("rope", 0), ("t5", 0), ("shaw", 0)], "queries": 800, "layout": layout}
    check_on_ranks(3, **case, cu_seqlens=starts([130, 470, 200]), window=(99, 99))


def test_where_a_shard_stands():
    """From the least to the largest position, also where the first token stands behind others."""
    text = text_of(relpos.BeitBias(1, [3.0]))
    side = Side([[Run(0, 4, 1)]], make=placing(text, False, 0))
    positions = side.make(torch.arange(4))
    assert side.bounds(0, 0) == (int(positions.min()), int(positions.max()))
    assert positions[-1] > positions.min()


def test_a_grid_restarts_in_each_sequence():
    """Two windows of 3 x 3 pixels in one call: the table is read by offsets within a window."""
    position = relpos.SwinBias(1, [3.0])
    table = torch.arange(25.0, requires_grad=True)
    with torch.no_grad():
        position.relative_position_bias_table.copy_(table[:, None])
    nothing = torch.zeros(18, 1, 4)
    values = torch.eye(9).repeat(2, 1)[:, None, :]
    out = relpos.attention_varlen(nothing, nothing, values, starts([9, 9]), position=position)
    y, x = torch.arange(9) // 3, torch.arange(9) % 3
    offset = (y[:, None] - y + 2) * 5 + x[:, None] - x + 2
    torch.testing.assert_close(out[:9, 0], torch.softmax(table.detach()[offset], -1))
    torch.testing.assert_close(out[:9], out[9:])


def test_compiled_as_eager():
    """Placed tokens and sums that restart, in one graph for any lengths."""
    torch._dynamo.reset()
    swin, gate = relpos.SwinBias(2, [3.0]), relpos.ForgettingGate()
    with torch.no_grad():
        swin.relative_position_bias_table.normal_()

    def run(q, k, v, log_f, cu):
        return relpos.attention_varlen(
            q, k, v, cu, position=[swin, gate(log_f)], window=(9, 9), return_lse=True
        )

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    for lengths in ([9, 9], [4, 0, 7]):
        total = sum(lengths)
        inputs = [torch.randn(total, 2, 8) for _ in range(3)] + [-torch.rand(1, 2, total)]
        cu = starts(lengths)
        for got, want in zip(compiled(*inputs, cu), run(*inputs, cu), strict=True):
            torch.testing.assert_close(got, want)
