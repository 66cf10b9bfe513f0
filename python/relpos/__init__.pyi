"""Written by the build from the registry of schemes."""

from collections.abc import Sequence

from torch import Tensor

from relpos import compat as compat
from relpos import hf as hf
from relpos import nn as nn
from relpos._attention import attention as attention
from relpos._attention import scores as scores
from relpos._cache import KVCache as KVCache
from relpos._check import check as check
from relpos._merge import merge as merge
from relpos._position import SchemePosition, _Rotary
from relpos._position import Sum as Sum
from relpos._registry import schemes as schemes
from relpos._registry import show_config as show_config
from relpos._tools import rope_permute as rope_permute
from relpos._tools import skew as skew
from relpos._varlen import attention_varlen as attention_varlen
from relpos.compat import flash_attn_func as flash_attn_func
from relpos.compat import flash_attn_varlen_func as flash_attn_varlen_func
from relpos.compat import sdpa as sdpa

__version__: str
__all__ = [
    "KVCache",
    "Sum",
    "__version__",
    "attention",
    "attention_varlen",
    "check",
    "compat",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "hf",
    "merge",
    "nn",
    "rope_permute",
    "schemes",
    "scores",
    "sdpa",
    "show_config",
    "skew",
    "ALiBi",
    "BiasRPE",
    "DeBERTa",
    "ForgettingGate",
    "KerpleLog",
    "KerplePower",
    "MusicTransformer",
    "RoPE",
    "Llama3RoPE",
    "Shaw",
    "SwinBias",
    "SwinV2Bias",
    "T5Bias",
    "TransformerXL",
]

class ALiBi(SchemePosition):
    """a penalty that grows linearly with the distance, with a slope for each head"""

    def __init__(
        self,
        heads: int,
        *,
        slopes: str | Sequence[float] | Tensor = "paper",
        symmetric: bool = True,
        learned: bool = False,
    ) -> None: ...

class BiasRPE(SchemePosition):
    """a learned number for each head and clipped distance"""

    def __init__(
        self,
        heads: int,
        max_distance: int,
    ) -> None: ...

class DeBERTa(SchemePosition):
    """queries meet rows of distances, and so do keys, in logarithmic buckets"""

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        buckets: int = 256,
        max_distance: int = 512,
        terms: str = "both",
    ) -> None: ...

class ForgettingGate(SchemePosition):
    """gates that each key's token sets let the past fade, by an input of the call"""

    def __init__(
        self,
    ) -> None: ...

class KerpleLog(SchemePosition):
    """a penalty that grows with the logarithm of the distance, learned for each head"""

    def __init__(
        self,
        heads: int,
        *,
        symmetric: bool = True,
    ) -> None: ...

class KerplePower(SchemePosition):
    """a penalty that grows with a power of the distance, learned for each head"""

    def __init__(
        self,
        heads: int,
        *,
        symmetric: bool = True,
    ) -> None: ...

class MusicTransformer(SchemePosition):
    """a learned row for every distance up to max_length, none beyond"""

    def __init__(
        self,
        max_length: int,
        head_dim: int,
        *,
        heads: int | None = None,
        bidirectional: bool = False,
    ) -> None: ...

class RoPE(_Rotary, SchemePosition):
    """queries and keys turn by their positions"""

    def __init__(
        self,
        head_dim: int,
        *,
        layout: str,
        base: float = 10000.0,
        rotary_dim: int | None = None,
        angle: str = "double",
    ) -> None: ...

class Llama3RoPE(_Rotary, SchemePosition):
    """RoPE for longer contexts: slow pairs turn slower, fast ones as before"""

    def __init__(
        self,
        head_dim: int,
        *,
        layout: str,
        base: float = 500000.0,
        rotary_dim: int | None = None,
        angle: str = "double",
        factor: float = 8.0,
        low_freq_factor: float = 1.0,
        high_freq_factor: float = 4.0,
        original_max_position_embeddings: int = 8192,
    ) -> None: ...

class Shaw(SchemePosition):
    """learned rows of clipped distances join the keys and the values"""

    def __init__(
        self,
        max_distance: int,
        head_dim: int,
        *,
        heads: int | None = None,
        values: bool = True,
        value_dim: int | None = None,
        distance: str = "key-query",
        init: str = "xavier_uniform",
    ) -> None: ...

class SwinBias(SchemePosition):
    """a learned number for each head and two-dimensional offset within a window"""

    def __init__(
        self,
        heads: int,
        window: float | Sequence[float],
    ) -> None: ...

class SwinV2Bias(SchemePosition):
    """the bias of a two-dimensional offset within a window, by a small network"""

    def __init__(
        self,
        heads: int,
        window: float | Sequence[float],
        *,
        pretrained_window: int | None = None,
        hidden: int = 512,
    ) -> None: ...

class T5Bias(SchemePosition):
    """a learned number for each head and bucket of distances"""

    def __init__(
        self,
        heads: int,
        buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        scale: float = 1.0,
    ) -> None: ...

class TransformerXL(SchemePosition):
    """projected sinusoids of the distance join the keys, with two learned query biases"""

    def __init__(
        self,
        heads: int,
        head_dim: int,
        width: int | None = None,
        *,
        clamp_len: int | None = None,
    ) -> None: ...
