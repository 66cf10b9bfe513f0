"""Attention with relative positions: exact, trainable, linear in memory.

relpos.schemes(), relpos.show_config(), relpos.numpy and relpos.jax work without PyTorch; everything
else, as relpos.attention(query, key, value, position=relpos.T5Bias(heads=8)), needs it.
"""

from typing import Any

from relpos._core import __version__
from relpos._position.registry import schemes, show_config

_CLASSES = [scheme.class_name for scheme in schemes()]
__all__ = [
    "Buckets",
    "KVCache",
    "PairClasses",
    "Position",
    "Sum",
    "TileMask",
    "__version__",
    "attention",
    "attention_varlen",
    "check",
    "compat",
    "compose",
    "distributed",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "from_mask_mod",
    "from_score_mod",
    "gpu",
    "hf",
    "merge",
    "nn",
    "rope_permute",
    "schemes",
    "scores",
    "sdpa",
    "show_config",
    "skew",
    "terms",
    *_CLASSES,
]

try:
    import torch as _torch
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise

    def __getattr__(name: str) -> Any:
        if name in __all__:
            raise ImportError(
                f"relpos.{name} needs PyTorch, which is not installed: pip install 'relpos[torch]'"
            )
        raise AttributeError(f"module 'relpos' has no attribute {name!r}")

else:
    from relpos import compose, gpu, hf, nn, terms
    from relpos._call.attention import attention, scores
    from relpos._call.cache import KVCache
    from relpos._call.merge import merge
    from relpos._call.varlen import attention_varlen
    from relpos._flex.lowered import from_score_mod
    from relpos._mask.tile_mask import TileMask, from_mask_mod
    from relpos._position.buckets import Buckets
    from relpos._position.check import check
    from relpos._position.classes import CLASSES as _classes
    from relpos._position.layout import rope_permute, skew
    from relpos._position.own import Position
    from relpos._position.pairs import PairClasses
    from relpos._position.sum import Sum
    from relpos.compat import flash_attn_func, flash_attn_varlen_func, sdpa

    globals().update(_classes)
    del _torch

    def __getattr__(name: str) -> Any:
        if name != "distributed":  # imported when asked for: torch.distributed takes a second
            raise AttributeError(f"module 'relpos' has no attribute {name!r}")
        import importlib

        return importlib.import_module(f"{__name__}.distributed")
