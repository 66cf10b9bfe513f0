"""How many threads torch and relpos use."""

import contextlib

import torch


@contextlib.contextmanager
def threads(count):
    """So many, and as before at the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
