"""What the tests share."""

import functools
import gc
import os

import pytest

from tests.support import near

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports transformers
os.environ.setdefault(
    "RELPOS_BF16", "float32"
)  # what the tests expect; test_bfloat16.py has its own

RATIOS = pytest.StashKey[dict]()  # near.ratios of all processes
SUMMARY = pytest.StashKey[list]()  # lines that are printed at the end

LONGEST = [
    "process",
    "toy_scheme",
    "lab",
    "conformance",
    "accuracy",
    "torch_op",
    "leaks",
    "torch_compile",
]


def _called(function):
    return function()


# Python's stack grows by 16 KiB and shrinks at once, so that a loop of calls at the edge of a piece
# maps and unmaps memory in each of them: a third of the time of Triton's interpreter. This frame of
# half a megabyte is given a megabyte, which the calls below it share.
_called.__code__ = _called.__code__.replace(co_stacksize=2**16 + 2**10)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    test = pyfuncitem.obj
    pyfuncitem.obj = functools.wraps(test)(lambda **given: _called(lambda: test(**given)))


def pytest_addoption(parser):
    parser.addoption(
        "--nearest",
        action="store_true",
        help="print the five comparisons of near.py that came nearest to their bounds, and fail "
        "where one needed more than half of its bound",
    )


def pytest_configure(config):
    config.stash[SUMMARY], config.stash[RATIOS] = [], near.ratios


def pytest_collection_modifyitems(items):
    """The longest files first: a process that ends with one of them would end alone."""
    first = {f"test_{name}": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: first.get(item.path.stem, len(first)))


def pytest_collection_finish():
    """What is imported by now stays: Python's collector, a tenth of all time, need not visit it."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()  # the interpreter collects what it leaves


def pytest_sessionfinish(session):
    stash = session.config.stash
    if hasattr(session.config, "workeroutput"):  # a process of pytest-xdist
        session.config.workeroutput |= {"summary": stash[SUMMARY], "ratios": stash[RATIOS]}
        return
    over = max(stash[RATIOS].values(), default=0.0) > near.MOST
    if session.config.getoption("nearest") and over and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    found = getattr(node, "workeroutput", {})
    node.config.stash[SUMMARY] += found.get("summary", [])
    node.config.stash[RATIOS].update(found.get("ratios", {}))


def pytest_terminal_summary(terminalreporter, config):
    for line in config.stash[SUMMARY]:
        terminalreporter.write_line(line)
    if not config.getoption("nearest"):
        return
    ratios = sorted(config.stash[RATIOS].items(), key=lambda item: -item[1])
    terminalreporter.write_line(f"nearest to their bounds, of {len(ratios)} tests that compare:")
    for test, ratio in ratios[:5]:
        over = ", which is more than half of it" if ratio > near.MOST else ""
        terminalreporter.write_line(f"  {ratio:.3f} of the bound{over}: {test}")


@pytest.fixture(scope="session")
def summary(request):
    """A list of lines that are printed at the end."""
    return request.config.stash[SUMMARY]


@pytest.fixture
def one_thread():
    """For thousands of calls too small to share between threads."""
    from tests.support.threads import threads

    with threads(1):
        yield
