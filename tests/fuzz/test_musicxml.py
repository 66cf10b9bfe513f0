"""The lab's reader of scores takes any bytes: a few thousand of `python -m tests.fuzz.musicxml`."""

import io
import zipfile

import pytest
from relpos.lab.chorales import NotAChorale, read_chorale

from tests.fuzz.musicxml import CONTAINER, NOTE, archive, problem_of, score


def packed(text, method=zipfile.ZIP_DEFLATED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as out:
        out.writestr("META-INF/container.xml", CONTAINER)
        out.writestr("score.xml", text)
    return file.getvalue()


def refusal(tmp_path, data):
    path = tmp_path / "score.mxl"
    path.write_bytes(data)
    with pytest.raises(NotAChorale) as caught:
        read_chorale(path)
    return str(caught.value)


def test_the_score_is_one(tmp_path):
    path = tmp_path / "score.mxl"
    path.write_bytes(packed(score()))
    assert read_chorale(path).shape == (16, 4)


def test_damaged_scores(tmp_path):
    found = [(seed, problem_of(archive(seed), tmp_path)) for seed in range(600)]
    assert not [line for line in found if line[1]]


def test_entities_are_refused_in_every_encoding(tmp_path):
    text = score().replace("<s", '<!DOCTYPE s [<!ENTITY e "4">]><s', 1)
    assert "entities" in refusal(tmp_path, packed(text))
    wide = text.replace("utf-8", "utf-16").encode("utf-16")
    assert "zero bytes" in refusal(tmp_path, packed(wide))


def test_what_zipfile_and_expat_raise(tmp_path):
    """LookupError, LZMAError and OSError among them."""
    assert "encoding" in refusal(tmp_path, packed(score().replace("utf-8", "unheard-of")))
    assert "deflated" in refusal(tmp_path, packed(score(), zipfile.ZIP_LZMA))
    moved = bytearray(packed(score()))
    moved[-6:-2] = b"\xff\xff\xff\x7f"  # where the archive's directory starts
    assert "not a compressed MusicXML file" in refusal(tmp_path, bytes(moved))


def test_time_does_not_run_backwards(tmp_path):
    """A note as long as the way back would be gigabytes of tokens."""
    text = score().replace("<duration>4<", "<duration>-9000000000<", 1)
    text = text.replace("<duration>4<", "<duration>9000000000<", 1)
    assert "ends before it begins" in refusal(tmp_path, packed(text))


def test_a_piece_has_an_end(tmp_path):
    """Also where no note of it is long."""
    long = NOTE.format("C", 4 * 300)  # 1,200 sixteenths
    pieces = [score().replace("</measure>", long * count + "</measure>") for count in (54, 55)]
    path = tmp_path / "score.mxl"
    path.write_bytes(packed(pieces[0]))
    assert read_chorale(path).shape == (16 + 54 * 1200, 4)
    assert "longer than 65536 sixteenths" in refusal(tmp_path, packed(pieces[1]))
