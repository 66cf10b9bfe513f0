"""Lines that tests leave for the end of the run: `request.config.stash[SUMMARY].append(line)`."""

import pytest

SUMMARY = pytest.StashKey[list]()


def pytest_configure(config):
    config.stash[SUMMARY] = []


def pytest_terminal_summary(terminalreporter, config):
    for line in config.stash[SUMMARY]:
        terminalreporter.write_line(line)
