"""`python -m tests.fuzz --quick` as tests, and what refuses as the table says."""

import pytest

from tests.fuzz.factors import FACTORS, case_of, plain_case, text_of
from tests.fuzz.judge import line_of, problems_of, shrunk
from tests.fuzz.plan import quick_cases
from tests.fuzz.rules import REFUSED, makes_sense, refusal

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
