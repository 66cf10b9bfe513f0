"""Positions of one's own on 3 ranks, and on 4, against plain torch of the whole sequence."""

import pytest
import torch

from tests.distributed import own_tasks
from tests.distributed.own_tasks import NAMES, Case
from tests.support.near import close
from tests.support.own_positions import numbers
from tests.support.ranks import Failed, shared

pytestmark = pytest.mark.usefixtures("one_thread")

LAYOUTS = ("contiguous", "zigzag", "striped")


def check(ranks, wanted, **task):
    for found in shared(ranks).results(own_tasks.attend, **task):
        for name, want in wanted.items():
            close(torch.from_numpy(found[name]), want, 1e-10, name)


def wanted_of(sizes, at=None, causal=True):
    if sizes["name"] in ("terms", "added", "turned"):  # whose formulas tests/call/test_terms.py has
        case = Case(**sizes)
        return case.plain(None, only={"is_causal": causal})
    return Case(**sizes).plain(lambda at: at <= 0 if causal else at < 99, at)


def sizes_of(name, **sizes):
    # A key bias has a hidden state of keys, so that there are as many as queries; a picture has 12.
    return {"name": name, "queries": 12 if name == "picture" else 24} | sizes


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_ring(name, layout):
    sizes = sizes_of(name)
    causal = name != "picture"  # whose tokens do not stand one after another
    wanted = wanted_of(sizes, causal=causal)
    reduce = LAYOUTS.index(layout) == 1
    check(3, wanted, layout=layout, sizes=sizes, is_causal=causal, reduce_position=reduce)


@pytest.mark.parametrize("heads_of_keys", [1, 2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_ulysses(name, heads_of_keys):
    sizes = sizes_of(name, heads_of_keys=heads_of_keys)
    causal = name != "picture"
    wanted = wanted_of(sizes, causal=causal)
    task = {"function": "ulysses_attention", "layout": LAYOUTS[heads_of_keys % 3], "sizes": sizes}
    check(2, wanted, is_causal=causal, reduce_position=heads_of_keys == 2, **task)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotary_tables_of_key_heads(layout, causal):
    """They go round a ring with the keys; Ulysses, which divides heads of keys, refuses them."""
    sizes = sizes_of("turned")
    check(3, wanted_of(sizes, causal=causal), layout=layout, sizes=sizes, is_causal=causal)
    if causal:
        with pytest.raises(Failed, match="ring_attention takes it"):
            shared(2).results(own_tasks.attend, function="ulysses_attention", sizes=sizes)


@pytest.mark.parametrize("reduce", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_mesh(name, reduce):
    """Two shards of the keys, two of the heads."""
    sizes = sizes_of(name)
    causal = name != "picture"
    task = {"mesh": (2, 2), "layout": "zigzag", "sizes": sizes, "reduce_position": reduce}
    check(4, wanted_of(sizes, causal=causal), is_causal=causal, **task)


OPTIONS = {
    "all": ({}, lambda at: at < 99),
    "window": ({"window": (5, 2)}, lambda at: (at >= -5) & (at <= 2)),
    "all_gather": ({"mode": "all_gather", "is_causal": True}, lambda at: at <= 0),
    "lengths": ({"lengths": [3, 0, 21], "is_causal": True}, lambda at: at <= 0),
}


@pytest.mark.parametrize("name", ["kerple", "shaw", "gated", "key_gated"])
@pytest.mark.parametrize("option", OPTIONS)
def test_options(option, name):
    given, visible = OPTIONS[option]
    sizes = sizes_of(name)
    check(3, Case(**sizes).plain(visible), sizes=sizes, **given)


@pytest.mark.parametrize("name", ["kerple", "gated", "key_gated"])
def test_other_keys_offsets_and_positions(name):
    sizes = {"name": name, "queries": 17, "keys": 29}
    wanted = Case(**sizes).plain(lambda at: at <= 0)
    check(3, wanted, sizes=sizes, is_causal=True, q_offset=12)
    both = {"q_positions": torch.arange(17) * 2 - 3, "k_positions": torch.arange(29)}
    at = both["k_positions"] - both["q_positions"][:, None]
    wanted = Case(**sizes).plain(lambda at: at < 99, at)
    check(3, wanted, sizes=sizes, layout="striped", **both)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["kerple", "shaw", "gated", "key_gated"])
def test_packed_sequences(name, layout):
    starts = torch.tensor([0, 5, 5, 19, 24])
    document = torch.searchsorted(starts[1:], torch.arange(24), right=True)
    same = document[:, None] == document
    sizes = {"name": name, "queries": 24, "batch": 1}
    wanted = Case(**sizes).plain(lambda at: same & (at <= 0))
    check(3, wanted, sizes=sizes, layout=layout, cu_seqlens=starts, is_causal=True)


def test_the_method_runs_once_a_rank_for_the_whole_sequence():
    for counts in shared(3).results(own_tasks.evaluations, is_causal=True):
        assert counts == [24]
    for counts in shared(3).results(own_tasks.evaluations):
        assert counts == [47]
    for counts in shared(3).results(own_tasks.evaluations, window=(4, 3)):
        assert counts == [8]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("other", "position: expected the same on every rank"),
        ("built-in", "position: expected the same on every rank"),
        ("none", "position: expected the same on every rank"),
        ("text", "expected None, a relpos position or a list"),
        ("frozen", "parameters of position: expected the same on every rank"),
        ("heads", "parameters of position: expected the same on every rank"),
        ("inputs", "expected Gated called with hidden"),
    ],
)
def test_all_ranks_refuse_what_one_gives_otherwise(kind, said):
    for rank, answer in enumerate(shared(3).results(own_tasks.refused, bad_rank=1, kind=kind)):
        assert answer is not None, rank
        assert said in answer[1], (rank, answer)


def test_packed_grids_are_refused():
    sizes = {"name": "picture", "queries": 12, "batch": 1}
    with pytest.raises(Failed, match="Picture has a grid"):
        shared(3).results(own_tasks.attend, sizes=sizes, cu_seqlens=torch.tensor([0, 12]))


@pytest.mark.parametrize("mode", ["ring", "all_gather", "ulysses"])
@pytest.mark.parametrize("wrap", ["none", "ddp", "fsdp2"])
def test_a_layer_under_context_parallel(wrap, mode):
    x = numbers(8, 2, 24, 32)
    wanted = own_tasks.step_of_model(x)
    ranks = 2 if mode == "ulysses" else 3
    task = {"wrap": wrap, "layout": "contiguous", "mode": mode}
    for found in shared(ranks).results(own_tasks.trained, **task):
        for name, want in wanted.items():
            close(torch.from_numpy(found[name]), want, 1e-10, name)
