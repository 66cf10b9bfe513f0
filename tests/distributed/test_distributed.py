"""relpos.distributed on 2 and 3 processes (4 with RELPOS_FULL=1) against one process."""

import pytest
import torch
from relpos.distributed._geometry import HALVED_FROM

from tests import FULL
from tests.distributed.ring_promise import expected, shares_of_bounds, times_alone
from tests.support import ring_case
from tests.support.oracle import configs_of
from tests.support.ranks import shared
from tests.support.ring_case import HEAD_DIM, HEADS, VALUE_DIM, joined
from tests.support.sample import BY_TOKENS, configurations

SIZES = (2, 3, 4) if FULL else (2, 3)
LENGTHS = (70, 260) if FULL else (70,)
LAYOUTS = ("contiguous", "zigzag", "striped")
ROWS = 20  # of queries and heads, from which on two errors are compared
pytestmark = pytest.mark.usefixtures("one_thread")


CONFIGURATIONS = configurations(HEADS, HEAD_DIM, VALUE_DIM, BY_TOKENS)
FOUND = {"bounds": {}, "times": {}}  # {kind of result: numbers of all cases}


@pytest.fixture(scope="module", autouse=True)
def worst_errors(summary):
    """A line at the end of the tests: how far the ranks were from the exact results."""
    yield
    for name, said in (("bounds", "of the bound of one process"), ("times", "of its error")):
        worst = ", ".join(f"{kind} {max(of):.2f}" for kind, of in sorted(FOUND[name].items()))
        count = max(map(len, FOUND[name].values()), default=0)
        line = f"relpos.distributed, {count} cases, largest error in parts {said}: {worst}"
        summary.append(line)


def keep(kind, values):
    for name, value in values.items():
        FOUND[kind].setdefault(name.rstrip("0123456789"), []).append(value)


def check(size, dtype=torch.float32, **case):
    """That no number is off by more than twice what one process promises; and that the numbers of
    a result are off by at most twice those of one process, in root mean squares, where they come
    from so many rows that chance does not decide. Of a parameter's numbers, each a sum of terms
    that cancel, few are independent."""
    answers = shared(size).results(ring_case.run, dtype=dtype, **case)
    found = joined(answers, **case)
    wanted = expected(dtype, **case)
    shares = shares_of_bounds(found, wanted)
    keep("bounds", shares)
    assert max(shares.values()) <= 2.0, (case, shares)
    times = {n: x for n, x in times_alone(found, wanted).items() if not n.startswith("dparameter")}
    if found["lse"].numel() >= ROWS:
        keep("times", times)
        assert max(times.values()) <= 2.0, (case, times)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", SIZES)
def test_every_scheme(size, layout):
    """Forward and every gradient, tables, inputs and lse included, alone."""
    turn = LAYOUTS.index(layout) + len(LAYOUTS) * (size - 2)
    for n, (name, number) in enumerate(CONFIGURATIONS):
        if FULL or n % 6 == turn:
            for length in LENGTHS:
                case = {"queries": length + n % 3, "is_causal": n % 2 == 0}
                case |= {"schemes": [(name, number)], "layout": layout}
                check(size, **case)


SUM = [("rope", 0), ("t5", 0), ("shaw", 0)]
MEDIUM = {"schemes": SUM, "queries": 72}
OPTIONS = {
    "causal": {"is_causal": True},
    "window": {"window": (9, 3)},
    "causal window": {"window": (20, -1), "is_causal": True},
    "padding": {"padding": True, "batch": 2},
    "padding, causal": {"padding": True, "batch": 3, "is_causal": True},
    "grouped heads": {"key_heads": 2, "is_causal": True},
    "one key head": {"key_heads": 1},
    "scale": {"scale": 0.37},
    "softcap": {"softcap": 1.5, "is_causal": True},
    "other lengths": {"queries": 41, "keys": 77, "q_offset": 36, "is_causal": True},
    "other lengths from 0": {"queries": 90, "keys": 31, "q_offset": 0},
    "offsets of rows": {
        "batch": 2,
        "queries": 40,
        "keys": 60,
        "q_offset": torch.tensor([20, 7]),
        "k_offset": torch.tensor([0, 3]),
        "window": (30, 0),
    },
    "few tokens": {"queries": 5, "is_causal": True},
    "fewer tokens than ranks": {"queries": 1},
    "dropout": {"dropout_p": 0.3, "queries": 150, "batch": 2, "is_causal": True},
    "dropout, no position": {"dropout_p": 0.5, "queries": 200, "schemes": []},
    "a sink for every query": {"schemes": [("attention_sink", 1), ("t5", 0)], "batch": 3},
    "key range": {"key_range": (torch.arange(72) // 2, torch.arange(72) // 2 + 20)},
    "positions": {
        "q_positions": torch.arange(72) * 3,
        "k_positions": torch.arange(72) * 3,
        "is_causal": True,
    },
    "positions, sinks beside grids": {
        "schemes": [("attention_sink", 0), ("swin", 0), ("beit", 0)],
        "q_positions": torch.arange(72) % 40,
        "k_positions": torch.arange(72) % 50,
    },
    "sinks far before 0": {
        "schemes": [("attention_sink", 0), ("rope_dynamic", 1), ("fire", 0)],
        "q_offset": -60,
        "k_offset": -60,
    },
    "all_gather": {"mode": "all_gather", "is_causal": True},
    "tiny": {"queries": 300, "window": (40, 0), "batch": 2, "key_heads": 2, "padding": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    """On 2 and 3 ranks, each option in each layout (in turns, without RELPOS_FULL)."""
    for n, layout in enumerate(LAYOUTS):
        for size in SIZES if FULL else [(2, 3)[(n + len(name)) % 2]]:
            check(size, **MEDIUM | OPTIONS[name] | {"layout": layout})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("packed", [False, True])
def test_gates_of_keys_that_none_sees_have_no_gradient(packed, layout):
    """Not even a rounding error: those behind the last that is seen, of each sequence. In float64:
    sums of float32 numbers are often exact in double, in any order."""
    case = {"schemes": [("forgetting", 0)], "queries": 72, "keys": 90, "layout": layout}
    if packed:
        case |= {"cu_seqlens": torch.tensor([0, 30, 72]), "cu_seqlens_k": torch.tensor([0, 45, 90])}
        case |= {"q_offset": torch.zeros(2, dtype=torch.int64), "is_causal": True}
        seen = [*range(30), *range(45, 87)]
    else:
        high = torch.arange(72) // 3
        case |= {"q_offset": 18, "key_range": (torch.zeros_like(high), high)}
        seen = [*range(23)]
    hidden = [key for key in range(90) if key not in seen]
    for size in SIZES:
        answers = shared(size).results(ring_case.run, dtype=torch.float64, **case)
        gradient = joined(answers, **case)["dinput0"]
        assert gradient[..., seen[1:]].ne(0).any()
        assert gradient[..., hidden].eq(0).all(), gradient[..., hidden].abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    """Merged in float32: as close as one call, however many ranks."""
    check(3, dtype=dtype, queries=100, schemes=SUM, is_causal=True, layout="zigzag")


@pytest.mark.parametrize("lengths", [[10, 62], [0, 72], [71, 1]])
def test_uneven_shards(lengths):
    for options in ({"is_causal": True}, {"padding": True}, {"dropout_p": 0.2}):
        check(2, lengths=lengths, **MEDIUM, **options)


def test_uneven_shards_of_which_some_are_long():
    """The keys of one rank are one run, those of the others two."""
    lengths = [300, HALVED_FROM - 1, 373]
    check(3, lengths=lengths, queries=sum(lengths), schemes=SUM, is_causal=True)


LONG = {  # and the layout without RELPOS_FULL
    "causal": ("zigzag", {"is_causal": True, "key_heads": 2}),
    "padding": ("striped", {"padding": True, "batch": 2}),
    "window": ("contiguous", {"window": (150, 0), "schemes": [("alibi", 4)]}),
    "a sum of inputs": (
        "striped",
        {"schemes": [("forgetting", 0), ("t5", 0)], "is_causal": True},
    ),
    "positions, window": (
        "zigzag",
        {
            "q_positions": torch.arange(800) * 3,
            "k_positions": torch.arange(800) * 3,
            "window": (90, 0),
        },
    ),
    "dropout": ("zigzag", {"dropout_p": 0.3}),
}


@pytest.mark.parametrize("name", LONG)
def test_long_shards(name):
    """On more than two ranks their keys are computed with, and their gradients sent, by halves."""
    own_layout, options = LONG[name]
    case = {"schemes": SUM, "queries": 800} | options
    assert HALVED_FROM <= 800 // 6
    for layout in LAYOUTS if FULL else [own_layout]:
        check(3, layout=layout, **case)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_bits_on_every_run(layout):
    case = {"schemes": SUM, "queries": 130, "is_causal": True, "layout": layout}
    first, second = (shared(3).results(ring_case.run, **case) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        for name, values in one.items():
            assert (values == other[name]).all(), name


def test_reduce_position():
    """Every rank has the sum of all shares, the same bits."""
    case = MEDIUM | {"is_causal": True}
    shares = shared(3).results(ring_case.run, **case)
    sums = shared(3).results(ring_case.run, reduce_position=True, **case)
    for name in (n for n in shares[0] if n.startswith("dparameter")):
        assert all((rank[name] == sums[0][name]).all() for rank in sums)
        total = sum(torch.from_numpy(rank[name]) for rank in shares)
        torch.testing.assert_close(torch.from_numpy(sums[0][name]), total, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_ulysses(size):
    """Heads dealt over the ranks, with the position's parameters of all of them. Each scheme once;
    with RELPOS_FULL each of its configurations on both sizes."""
    heads = 2 * size
    for n, (name, number) in enumerate(CONFIGURATIONS):
        if configs_of(name, 4, 8, 6)[number].get("kv_heads"):
            continue  # refused: each rank would need other heads of the tables
        if FULL or (number == 0 and n % 2 == size % 2):
            case = {
                "schemes": [(name, number)],
                "queries": 61 + n // 2 % 2,
                "is_causal": n // 2 % 2 == 0,
                "heads": heads,
                "layout": LAYOUTS[n % 3],
                "function": "ulysses_attention",
            }
            check(size, **case)


@pytest.mark.parametrize("name", OPTIONS)
def test_ulysses_options(name):
    case = MEDIUM | OPTIONS[name] | {"layout": LAYOUTS[len(name) % 3]}
    case.pop("mode", None)
    check(2, function="ulysses_attention", **case)
