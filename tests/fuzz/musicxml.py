"""Damaged scores for the lab's reader: `python -m tests.fuzz.musicxml --seconds 60`.

Each is an array of tokens or NotAChorale, in little time and memory. A failure prints the seed that
repeats it, as `--seed N --count 1` does.
"""

import argparse
import io
import random
import resource
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from relpos.lab.chorales import NotAChorale, read_chorale

NOTE = "<note><pitch><step>{}</step><octave>4</octave></pitch><duration>{}</duration></note>"
NUMBERS = ["-1", "0", "1e308", "-1e308", "nan", "inf", "-inf", "9" * 400, "0.1", "-1000000000", "x"]
NUMBERS += ["1000000000", "65537", "\u0663", ""]
CONTAINER = '<container><rootfiles><rootfile full-path="score.xml"/></rootfiles></container>'
MEMORY = 2 << 30  # bytes that a reader may add to the process


def score():
    """Four voices of one measure."""
    measure = "<attributes><divisions>4</divisions></attributes>" + "".join(
        NOTE.format(step, 4) for step in "CDEF"
    )
    part = f"<part><measure>{measure}</measure></part>"
    return f'<?xml version="1.0" encoding="utf-8"?>\n<score-partwise>{part * 4}</score-partwise>'


def of_text(draw, text):
    """A score changed as text: its numbers, elements that go or come twice, its encoding."""
    for _ in range(draw.randint(0, 3)):
        pieces = text.replace("<", "\0<").split("\0")
        at = draw.randrange(len(pieces))
        kind = draw.randrange(5)
        if kind == 0:
            name, _, value = pieces[at].partition(">")
            pieces[at] = f"{name}>{draw.choice(NUMBERS)}" if value.strip() else pieces[at]
        elif kind == 1:
            del pieces[at]
        elif kind == 2:
            pieces[at:at] = pieces[at : at + draw.randint(1, 30)] * draw.randint(1, 40)
        elif kind == 3:
            pieces[at:at] = [f"<{draw.choice(['backup', 'forward', 'note', 'chord', 'tie'])}>"]
        else:
            pieces[at:at] = ["<x>"] * draw.choice([5, 20000])
        text = "".join(pieces)
    if draw.random() < 0.1:
        entity = '<!DOCTYPE s [<!ENTITY e "4">]><s'
        text = text.replace("<s", entity, 1).replace(">4<", ">&e;<")
    encoding = draw.choice(["utf-8"] * 5 + ["utf-16", "utf-32", "cp037", "utf-7", "unheard-of"])
    text = text.replace("utf-8", encoding)
    return text.encode("latin-1" if encoding == "unheard-of" else encoding, "replace")


def of_bytes(draw, data):
    data = bytearray(data)
    for _ in range(draw.choice([0, 1, 1, 3, 10])):
        at = draw.randrange(len(data))
        kind = draw.randrange(3)
        if kind == 0:
            data[at] = draw.randrange(256)
        elif kind == 1:
            del data[at : at + draw.choice([1, 2, 50])]
        else:
            data[at:at] = bytes(draw.randrange(256) for _ in range(draw.randint(1, 8)))
        if not data:
            return b""
    return bytes(data)


def archive(seed):
    """The bytes of a .mxl file."""
    draw = random.Random(seed)
    file = io.BytesIO()
    method = draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
    method = draw.choice([method, zipfile.ZIP_LZMA])
    with zipfile.ZipFile(file, "w", method) as out:
        data = of_bytes(draw, of_text(draw, score()))
        out.writestr("META-INF/container.xml", of_bytes(draw, CONTAINER.encode()))
        out.writestr("score.xml", data)
    whole = file.getvalue()
    return of_bytes(draw, whole) if draw.random() < 0.5 else whole


def problem_of(data, folder):
    """None, or what is wrong with reading these bytes."""
    path = Path(folder) / "damaged.mxl"
    path.write_bytes(data)
    begun = time.process_time()
    try:
        read_chorale(path)
    except NotAChorale:
        pass
    except (Exception, RecursionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"
    spent = time.process_time() - begun
    return f"took {spent:.0f} s" if spent > 20 else None


def limit_memory():
    """A reader that wants gigabytes gets a MemoryError."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.musicxml", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=sys.maxsize)
    options = parser.parse_args(arguments)
    limit_memory()
    end, done, failed = time.monotonic() + options.seconds, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        while done < options.count and time.monotonic() < end:
            problem = problem_of(archive(options.seed + done), folder)
            if problem is not None:
                failed += 1
                again = f"--seed {options.seed + done} --count 1"
                print(f"{problem}\n    python -m tests.fuzz.musicxml {again}")
            done += 1
    print(f"fuzz: musicxml: {done} inputs, {failed or 'none'} fail{'' if failed else 's'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
