import pytest


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A text to train the lab on."""
    path = tmp_path_factory.mktemp("text") / "own.txt"
    path.write_text("Wer nur den lieben Gott lässt walten <&>. " * 200)
    return path
