"""`python -m tests.fuzz --quick` as tests, and what refuses as the table says."""

import itertools

import pytest

from tests.fuzz.cover import Cover
from tests.fuzz.factors import FACTORS, case_of, plain_case, text_of
from tests.fuzz.judge import line_of, problems_of, shrunk
from tests.fuzz.plan import quick_cases
from tests.fuzz.rules import REFUSED, makes_sense, refusal
from tests.fuzz.tally import Tally

pytestmark = pytest.mark.usefixtures("one_thread")
SHARDS = 8
MOST = 5  # failures of a shard that are shrunk


@pytest.mark.parametrize("shard", range(SHARDS))
def test_pairs_of_features(shard, summary):
    cases, note = quick_cases()
    failed = [(case, problems) for case in cases[shard::SHARDS] if (problems := problems_of(case))]
    if shard == 0:
        summary.append(f"fuzz: {len(cases)} cases; {note}")
    lines = [line_of(*shrunk(case, problems)) for case, problems in failed[:MOST]]
    assert not failed, f"{len(failed)} cases failed:\n" + "\n".join(lines)


@pytest.mark.parametrize("entry", REFUSED, ids=lambda entry: entry.name)
def test_the_table_of_refusals(entry):
    """Its example is refused, for this reason alone."""
    case = case_of(f"{entry.example} seed=1")
    assert makes_sense(case)
    assert refusal(case) == [entry]
    assert not problems_of(case)


def test_cases_are_text():
    case = plain_case(position="t5", mask="float:b1qk", window="3,-1", seed="7")
    assert text_of(case) == "position=t5 window=3,-1 mask=float:b1qk seed=7"
    assert case_of(text_of(case)) == case
    with pytest.raises(ValueError, match="mask=bool: expected one of"):
        case_of("mask=bool")


def test_a_failure_shrinks():
    """To the features that it needs."""

    def judge(case):
        return ["wrong"] if case["causal"] == "yes" and case["softcap"] != "none" else []

    case = {name: values[-1] for name, values in FACTORS.items()} | {"seed": "3"}
    case |= {"route": "call", "place": "aligned", "lengths": "5x17", "mask": "none"}
    case |= {"position": "t5", "beside": "none", "wants": "all"}
    case, problems = shrunk(case, judge(case), judge)
    assert text_of(case) == "causal=yes softcap=2.5 seed=3"
    assert problems == ["wrong"]


def test_a_tally_goes_on(tmp_path):
    """Where it stopped; a run of another seed starts anew."""
    path = tmp_path / "below" / "tally.json"
    tally = Tally.at(path, 1)
    tally.add(None, "3 of 9 pairs")
    tally.add("a failure", None)
    tally.write()
    again = Tally.at(path, 1)
    assert (again.done, again.failures) == (2, ["a failure"])
    assert again.verdict() == "2 cases, 1 failed; 3 of 9 pairs"
    assert Tally.at(path, 2).done == 0


def test_a_cover_visits_every_pair():
    """But those that are no call; a pair that is always refused meets in a refused case."""
    factors = {name: ("0", "1", "2") for name in "abcd"}

    def holds(case):
        return not (case["a"] == "1" and case["b"] == "1")

    def refused(case):
        return case["c"] == "2" and case["d"] == "2"

    cover = Cover(factors, holds, refused, 1)
    rows = list(cover.rows())
    met = [row for row in rows if not refused(row)]
    wanted = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(factors, 2)
        for x, y in itertools.product("012", "012")
    }
    missing = wanted.difference(*(itertools.combinations(row.items(), 2) for row in met))
    assert missing == {(("a", "1"), ("b", "1")), (("c", "2"), ("d", "2"))}
    assert (cover.misfits, cover.refusals) == ([{"a": "1", "b": "1"}], [{"c": "2", "d": "2"}])
    assert sum(map(refused, rows)) == 1
    assert len(met) <= 14  # of 81; 9 are the least
