"""What the tests share."""

import os

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports transformers
os.environ.setdefault(
    "RELPOS_BF16", "float32"
)  # what the tests expect; test_bfloat16.py has its own

SUMMARY = pytest.StashKey[list]()  # request.config.stash[SUMMARY].append(line): printed at the end

LONGEST = ["toy_scheme", "lab", "conformance", "accuracy", "torch_op", "leaks", "torch_compile"]


def pytest_configure(config):
    config.stash[SUMMARY] = []


def pytest_collection_modifyitems(items):
    """The longest files first: a process that ends with one of them would end alone."""
    first = {f"test_{name}": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: first.get(item.path.stem, len(first)))


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):  # a process of pytest-xdist
        session.config.workeroutput["summary"] = session.config.stash[SUMMARY]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    node.config.stash[SUMMARY] += getattr(node, "workeroutput", {}).get("summary", [])


def pytest_terminal_summary(terminalreporter, config):
    for line in config.stash[SUMMARY]:
        terminalreporter.write_line(line)


@pytest.fixture
def one_thread():
    """For thousands of calls too small to share between threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
