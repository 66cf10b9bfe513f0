"""The text of __init__.pyi: editors know the classes of the registry. The build writes it."""

import json

from relpos import __all__ as names
from relpos._position.registry import Option, Scheme, schemes

_HEAD = '''"""Written by the build from the registry of schemes."""

from collections.abc import Sequence

from torch import Tensor

from relpos import compat as compat
from relpos import compose as compose
from relpos import distributed as distributed
from relpos import gpu as gpu
from relpos import hf as hf
from relpos import nn as nn
from relpos import terms as terms
from relpos._call.attention import attention as attention
from relpos._call.attention import scores as scores
from relpos._call.cache import KVCache as KVCache
from relpos._call.merge import merge as merge
from relpos._call.varlen import attention_varlen as attention_varlen
from relpos._flex.lowered import from_score_mod as from_score_mod
from relpos._mask.tile_mask import TileMask as TileMask
from relpos._mask.tile_mask import from_mask_mod as from_mask_mod
from relpos._position.buckets import Buckets as Buckets
from relpos._position.check import check as check
from relpos._position.classes import Rotary
from relpos._position.layout import rope_permute as rope_permute
from relpos._position.layout import skew as skew
from relpos._position.own import Position as Position
from relpos._position.pairs import PairClasses as PairClasses
from relpos._position.position import SchemePosition
from relpos._position.registry import schemes as schemes
from relpos._position.registry import show_config as show_config
from relpos._position.sum import Sum as Sum
from relpos.compat import flash_attn_func as flash_attn_func
from relpos.compat import flash_attn_varlen_func as flash_attn_varlen_func
from relpos.compat import sdpa as sdpa

__version__: str
'''
_TYPES = {
    "bool": "bool",
    "int": "int",
    "float": "float",
    "choice": "str",
    "choice or values": "str | Sequence[float] | Tensor",
    "values": "float | Sequence[float]",
}


def _annotation(option: Option) -> str:
    optional = "" if option.required or option.default is not None else " | None"
    return _TYPES[option.type] + optional


def _argument(option: Option) -> str:
    value = option.default
    text = json.dumps(value) if isinstance(value, str) else repr(value)
    default = "" if option.required else f" = {text}"
    return f"{option.name}: {_annotation(option)}{default}"


def _class(scheme: Scheme) -> str:
    placed = [_argument(option) for option in scheme.options if option.positional]
    named = [_argument(option) for option in scheme.options if not option.positional]
    arguments = ["self", *placed, *(["*", *named] if named else [])]
    rotary = scheme.describe(**scheme.example()).rotary_dims > 0
    base = "Rotary" if rotary else "SchemePosition"
    lines = [f"\nclass {scheme.class_name}({base}):", f'    """{scheme.headline}"""', ""]
    lines += ["    def __init__(", *(f"        {argument}," for argument in arguments)]
    return "\n".join([*lines, "    ) -> None: ...", ""])


def stubs() -> str:
    exported = "".join(f'    "{name}",\n' for name in names)
    return f"{_HEAD}__all__ = [\n{exported}]\n" + "".join(_class(s) for s in schemes())
