"""Calls that combine features, each pair of them at least once: `python -m tests.fuzz --help`."""
