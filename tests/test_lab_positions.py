"""The positions of the lab by their texts."""

from relpos.lab import positions
from relpos.lab.positions import RUNS


def test_texts_are_divided_outside_brackets():
    text = "rope, alibi(slopes=[1, 0.5]) ,shaw(a=1, b=',') + t5,,rope"
    assert positions.split_texts(text) == [
        "rope",
        "alibi(slopes=[1, 0.5])",
        "shaw(a=1, b=',') + t5",
    ]


def test_runs_have_labels_and_colours_of_their_own():
    texts = ["rope", "alibi(slopes=geometric)", "alibi(slopes=geometric, heads=4)", "rope+t5"]
    runs = positions.runs_of(texts)
    assert runs["rope"] is RUNS["rope"]
    for of in ("label", "colour"):
        assert len({getattr(run, of) for run in runs.values()}) == len(texts)
    assert max(len(run.label) for run in runs.values()) <= 24
