"""relpos.distributed in use: refusals, ranks that die, DDP, FSDP2, DTensor, meshes, traffic."""

import re
import subprocess
import sys

import pytest
import relpos
import torch

from tests import FULL, ROOT
from tests.distributed import ring_tasks
from tests.support import patience
from tests.support.ranks import Failed, Ranks, shared
from tests.support.ring_case import draw

LAYOUTS = ("contiguous", "zigzag", "striped")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def two():
    return shared(2)


DIFFERENT = {
    "key": ((1, 4, 12, 9), "key"),
    "query": ((2, 4, 12, 8), "query|key"),
    "value": ((1, 4, 12, 5), "value"),
    "dtype": (torch.float64, "float64"),
    "layout": ("zigzag", "layout"),
    "mode": ("all_gather", "mode"),
    "is_causal": (True, "is_causal"),
    "window": ((3, 3), "window"),
    "dropout_p": (0.1, "dropout_p"),
    "scale": (0.3, "scale"),
    "q_offset": (5, "q_offset"),
    "position": ("an ALiBi", "position"),
    "reduce_position": (True, "reduce_position"),
    "attn_mask": (torch.ones(12, 12), "attn_mask"),
    "return_weights": (True, "return_weights"),
    "key_padding_mask": (torch.zeros(1, 12).bool(), "key_padding_mask"),
    "cu_seqlens": (torch.tensor([0, 24]), "cu_seqlens"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_is_refused_by_name_on_every_rank(two, name):
    change, named = DIFFERENT[name]
    for bad_rank in (0, 1):
        for answer in two.results(ring_tasks.call, bad_rank=bad_rank, name=name, change=change):
            assert answer is not None, name
            kind, text, sent = answer
            assert kind in ("ValueError", "TypeError")
            assert any(part in text for part in named.split("|")), text
            assert sent == 0


def test_what_is_wrong_everywhere_is_refused(two):
    wrong = {"layout": "rings", "mode": "star", "q_positions": torch.arange(12)}
    for name, value in wrong.items():
        for kind, text, sent in two.results(
            ring_tasks.call, bad_rank=9, name="", change=0, **{name: value}
        ):
            assert (kind == "ValueError" and "positions" in text) or name in text
            assert sent == 0


def test_a_rank_that_dies_is_an_error_of_the_others(tmp_path):
    ranks = Ranks(2, tmp_path, seconds=patience.timeout(10))
    try:
        ranks.pipes[1].send((ring_tasks.die, {}))
        ranks.pipes[0].send((ring_tasks.die, {}))
        answer = ranks.answer(0)
        assert not isinstance(answer, Failed), answer
        assert "died" in answer
        assert "rank 1" in answer
    finally:
        ranks.close()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_shard_and_unshard_are_inverse(two, layout):
    for length in (1, 2, 7, 16):
        for same, gradient in two.results(ring_tasks.round_trip, layout=layout, length=length):
            assert same
            own = 2.0 * draw(2, 2, length, 3)  # both ranks ask for it, each for its own tokens
            shown = torch.from_numpy(gradient)
            assert ((shown - own).abs() < 1e-5).logical_or(shown == 0).all()


WRAPS = [
    ("ddp", "zigzag", "ring"),
    ("fsdp2", "contiguous", "ring"),
    ("none", "striped", "ring"),
    ("ddp", "contiguous", "ulysses"),
    ("none", "contiguous", "all_gather"),
]


@pytest.mark.parametrize(("wrap", "layout", "mode"), WRAPS)
def test_modules_train_under_context_parallel(two, wrap, layout, mode):
    """relpos.nn.MultiheadAttention shards by itself; DDP and FSDP2 add the gradients up."""
    loss, expected = ring_tasks.whole_gradients()
    for found_loss, found in two.results(ring_tasks.trained, wrap=wrap, layout=layout, mode=mode):
        assert abs(found_loss - loss) < 1e-5
        assert found.keys() == expected.keys()
        for name, gradient in found.items():
            torch.testing.assert_close(
                torch.from_numpy(gradient), expected[name], rtol=1e-4, atol=1e-6, msg=name
            )


def test_dtensors_keep_their_placements(two):
    q, k, v = (draw(n, 1, 4, 30, 8) for n in range(3))
    q.requires_grad_()
    out = relpos.attention(q, k, v, position=relpos.ALiBi(4), is_causal=True)
    out.square().sum().backward()
    for found, gradient in two.results(ring_tasks.dtensors, placement=2):
        torch.testing.assert_close(torch.from_numpy(found), out.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(torch.from_numpy(gradient), q.grad, rtol=1e-4, atol=1e-5)
    for placement in (1, None):
        assert all(
            "placements" in e or "sharded" in e
            for e in two.results(ring_tasks.dtensors, placement=placement)
        )


@pytest.mark.skipif(not FULL, reason="4 processes: with RELPOS_FULL=1")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["plain", "dropout"])
def test_ring_times_ulysses(layout, name):
    """On a mesh of 2 x 2: grouped heads dealt, keys travelling, the same masks of dropout."""
    expected = ring_tasks.grouped_heads(relpos.attention, lambda x: x, name, seed=5)
    for found in shared(4).results(ring_tasks.on_mesh, layout=layout, name=name):
        for one, want in zip(found, expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(one), want, rtol=1e-4, atol=1e-5)


def test_traffic_is_the_formula(two):
    """Keys and values of n - 1 other shards forward, and their gradients besides backward; a rank
    out of the window's reach is sent nothing."""
    block = 2 * 4 * 32 * 8 * 4  # k and v of 32 tokens, 4 heads of 8, float32

    def sent(**case):
        return two.results(ring_tasks.traffic, **case)

    for layout in LAYOUTS:
        assert sent(layout=layout) == [(block, 2 * block)] * 2
    assert sent(layout="contiguous", window=(-1, 0)) == [(block, block), (0, block)]
    half = (block // 2, block // 2 + block)  # gradients travel in float32
    assert sent(layout="zigzag", dtype=torch.bfloat16) == [half] * 2


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_memory_is_the_formula(layout):
    """Of a rank, beyond its inputs: docs/distributed.md in numbers."""
    for length in (3072, 6144) if FULL else (3072,):
        for peak, formula in shared(3).results(ring_tasks.memory, layout=layout, length=length):
            assert peak <= formula, (peak / 2**20, formula / 2**20)
            # Nothing of the whole sequence: 30 times a shard's queries.
            assert formula < 30 * ring_tasks.MEMORY_HEADS * (length // 3) * 64 * 4


@pytest.mark.skipif(not FULL, reason="minutes of training: with RELPOS_FULL=1")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_example_trains_as_one_process_does(layout):
    """examples/ring.py: the lab's model on 2 ranks, 8192 tokens of chorales; losses are equal."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--standalone", ROOT / "examples/ring.py", "--length", "8192"]
    command += ["--steps", "4", "--layout", layout]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=patience.timeout(900), check=False
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"losses ([0-9. ]+?)  ", done.stdout)
    ranks, alone = ([float(loss) for loss in losses.split()] for losses in found)
    assert len(ranks) == 4
    assert ranks == pytest.approx(alone, abs=2e-5)
    assert ranks[-1] < ranks[0]
