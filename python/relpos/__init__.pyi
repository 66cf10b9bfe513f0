"""Written by `python -m relpos._stubs` from the registry of schemes."""

from collections.abc import Sequence

from torch import Tensor

from relpos import nn as nn
from relpos._attention import attention as attention
from relpos._attention import scores as scores
from relpos._position import SchemePosition, _Rotary
from relpos._position import Sum as Sum
from relpos._registry import schemes as schemes
from relpos._registry import show_config as show_config
from relpos._tools import rope_permute as rope_permute
from relpos._tools import skew as skew

__version__: str

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
