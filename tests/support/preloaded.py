"""What forks of one process share: imported once, and left out of Python's collections, each of
which would copy it page by page."""

import gc

import torch.fx.experimental.symbolic_shapes  # noqa: F401  a first backward pass would otherwise

gc.collect()
gc.freeze()
