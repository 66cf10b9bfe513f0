"""The command line of `relpos lab`."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from relpos.lab import compare, data, experiment, kept, report
from relpos.lab.positions import RUNS, CannotRun, check, split_texts
from relpos.lab.progress import leave_unwritten, show

OK, FAILED_CHECK, USAGE, INTERRUPTED = 0, 1, 2, 130

_EXAMPLES = """\
examples:
  relpos lab                               seven schemes on the Bach chorales, about five minutes
  relpos lab --text book.txt               the same on your own text, bytes as tokens
  relpos lab --schemes rope,alibi,t5 --steps 400
  relpos lab --schemes "kerple_log,xpos,rope+alibi,alibi(slopes=geometric)"
  relpos lab --positions t5,mymodule:KERPLE    a relpos.Position of your own
  relpos lab --check                       exit status 1 if the expected order does not come out

The chorales are read from an installed music21 (pip install --no-deps music21==10.5.1).
Exit status: 0 done, 1 a check or a job failed, 2 usage, missing data or results that cannot
be written, 130 interrupted (with a report).
"""


_MOST = 2**31 - 1


def _names(text: str) -> list[str]:
    names = split_texts(text)
    if not names:
        raise argparse.ArgumentTypeError(f"expected positions, such as rope,alibi; came {text!r}")
    return names


def _lengths(text: str) -> list[int]:
    try:
        lengths = sorted({int(part) for part in text.split(",")})
    except ValueError:
        lengths = [0]
    if lengths[0] < data.SCORED or lengths[-1] > _MOST:
        raise argparse.ArgumentTypeError(
            f"expected lengths of at least {data.SCORED} tokens, such as 256,512; came {text!r}"
        )
    return lengths


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        digits = text if text.isdecimal() and len(text) <= 20 else "-1"
        if not least <= int(digits) <= most:
            raise argparse.ArgumentTypeError(
                f"expected a whole number from {least} to {most}, came {text!r}"
            )
        return int(digits)

    return read


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError(f"expected a finite number above 0, came {text!r}")
    return rate


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="relpos lab",
        description="Train short, test long: which position still works? Trains one small causal "
        "Transformer per scheme on the same batches and tests it at lengths it never saw.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--text", type=Path, metavar="FILE", help="train on the bytes of FILE, not on the chorales")
    add("--align", type=_whole(1, _MOST), default=1, metavar="N",
        help="windows of FILE begin at multiples of N bytes: give a scheme with grid=[16, 16] "
        "files of images of 256 (default: %(default)s)")  # fmt: skip
    add(
        "--chorales", type=Path, metavar="DIR", help="read .mxl chorales from DIR, not from music21"
    )
    add("--out", type=Path, default=Path("relpos-lab"), metavar="DIR",
        help="folder for the report (default: %(default)s)")  # fmt: skip
    add("--schemes", "--positions", type=_names, default=list(RUNS), metavar="A,B",
        help="positions to train: schemes of `relpos list`, also with options as in "
        "'alibi(slopes=geometric)', classes of your own as module:Class, and sums as 'rope+alibi' "
        f"(default: {', '.join(RUNS)})")  # fmt: skip
    for name, default, what in (
        ("steps", 200, "training steps"),
        ("batch", 16, "windows in each step"),
        ("length", 256, "tokens in each training window"),
        ("windows", 32, "test windows"),
        ("layers", 3, "layers of the model"),
        ("width", 128, "width of the model"),
        ("heads", 4, "heads of each layer"),
        ("threads", 2, "threads of each process; results depend on it"),
    ):
        add(f"--{name}", type=_whole(1, _MOST), default=default, metavar="N",
            help=f"{what} (default: %(default)s)")  # fmt: skip
    add("--tests", type=_lengths, default=[256, 512, 1024, 2048], metavar="N,N",
        help="lengths of the tests in tokens (default: 256,512,1024,2048)")  # fmt: skip
    add("--rate", type=_rate, default=2e-3, metavar="X",
        help="learning rate (default: %(default)s)")  # fmt: skip
    add(
        "--seed",
        type=_whole(0, 2**63 - 1),
        default=0,
        metavar="N",
        help="random seed (default: %(default)s)",
    )
    add("--compare", default="t5", metavar="SCHEME",
        help="scheme whose training step is compared with PyTorch's own attention, or 'off' "
        "(default: %(default)s)")  # fmt: skip
    add("--check", action="store_true", help="exit status 1 if a check of the result fails")
    add("--resume", action="store_true", help="go on with the run of these options in --out that "
        "stopped or failed: at most its current step is lost")  # fmt: skip
    add("--json", action="store_true", help="print the results as JSON")
    add("--quiet", action="store_true", help="no progress")
    return made


def main(arguments: list[str] | None = None) -> int:
    made = parser()
    options = made.parse_args(arguments)
    if options.width % (2 * options.heads):
        made.error(f"--width {options.width} must be a multiple of twice --heads {options.heads}")
    _check_positions(made, options)
    try:
        with _unwinding():
            return _run(options)
    except (data.MissingData, compare.NoBias, kept.CannotResume) as error:
        show(f"relpos lab: {error}")
        return USAGE
    except kept.CannotWrite as error:
        show(f"relpos lab: {error}; {error.then}")
        return USAGE
    except KeyboardInterrupt:  # before the first job or while writing the report
        return INTERRUPTED
    finally:
        leave_unwritten()


def _check_positions(made: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    asked = [("--schemes", scheme, options.tests) for scheme in options.schemes]
    if options.compare != "off":
        asked.append(("--compare", options.compare, []))
    for option, text, tests in asked:
        sizes = {"heads": options.heads, "head_dim": options.width // options.heads}
        try:
            check(text, lengths=[options.length, *tests], **sizes)
        except CannotRun as error:
            made.error(f"{option}: {error}")


@contextlib.contextmanager
def _unwinding() -> Iterator[None]:
    """SIGTERM and SIGHUP end the job, then this process."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(options: argparse.Namespace) -> int:
    plan = experiment.make_plan(options)
    report.check_folder(options.out)
    with kept.run_folder(options.out, plan.asked(), resume=options.resume) as work:
        outcome = experiment.run(plan, work)
        try:
            page = report.write(outcome, options.out)
        except kept.CannotWrite as error:
            error.then = "once it can be, --resume goes on with what is left"
            raise
        if not (outcome.interrupted or outcome.failures):
            kept.remove(work)
    if outcome.failures:
        show("relpos lab: --resume runs the failed jobs again")
    try:
        if options.json:
            print(json.dumps(outcome.as_json(), indent=1), flush=True)
        else:
            print(f"{report.text_table(outcome)}\n\nreport: {page}", flush=True)
    except OSError as error:
        show(f"relpos lab: cannot write standard output: {error.strerror}; the report is {page}")
        return USAGE
    if outcome.interrupted:
        return INTERRUPTED
    failed = outcome.failures or (options.check and not outcome.passed)
    return FAILED_CHECK if failed else OK
