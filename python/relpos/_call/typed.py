"""The types of functions whose results follow from their flags."""

from collections.abc import Callable
from typing import Any, Literal, Protocol, overload

from torch import Tensor
from typing_extensions import Unpack

from relpos._call.options import OfSoftmax, Options, takes

# out, then the log-sum-exp and the weights where they are wanted.
Results = Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]


class Attending(Protocol):
    """Attention over one sequence of queries and one of keys in each batch row."""

    @overload
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        return_lse: Literal[False] = False,
        return_weights: Literal[False] = False,
        **options: Unpack[Options],
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        return_lse: Literal[True],
        return_weights: Literal[False] = False,
        **options: Unpack[Options],
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        return_lse: Literal[False] = False,
        return_weights: Literal[True],
        **options: Unpack[Options],
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        return_lse: Literal[True],
        return_weights: Literal[True],
        **options: Unpack[Options],
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    @overload
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        return_lse: bool = False,
        return_weights: bool = False,
        **options: Unpack[Options],
    ) -> Results: ...


class AttendingPacked(Protocol):
    """Attention over packed sequences."""

    @overload
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor | None = None,
        *,
        return_lse: Literal[False] = False,
        **options: Unpack[OfSoftmax],
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor | None = None,
        *,
        return_lse: Literal[True],
        **options: Unpack[OfSoftmax],
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor | None = None,
        *,
        return_lse: bool = False,
        **options: Unpack[OfSoftmax],
    ) -> Tensor | tuple[Tensor, Tensor]: ...


class OnRanks(Options, total=False):
    group: Any
    layout: str
    mode: str  # of ring_attention
    reduce_position: bool
    cu_seqlens: Tensor | None
    cu_seqlens_k: Tensor | None


class AttendingOnRanks(Protocol):
    """Attention over a sequence that lies on many ranks."""

    @overload
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        return_lse: Literal[False] = False,
        **options: Unpack[OnRanks],
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        return_lse: Literal[True],
        **options: Unpack[OnRanks],
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        return_lse: bool = False,
        **options: Unpack[OnRanks],
    ) -> Tensor | tuple[Tensor, Tensor]: ...


def attending(**shown: Any) -> Callable[[Any], Attending]:
    """Gives a function that takes all options by **options its signature and its type. shown: as
    in takes."""

    def typed(function: Any) -> Attending:
        return takes(Options, **shown)(function)

    return typed


def attending_packed(function: Any) -> AttendingPacked:
    """The same of a function over packed sequences."""
    return takes(OfSoftmax)(function)


def attending_on_ranks(function: Any) -> AttendingOnRanks:
    """The same of a function that ranks call together."""
    return takes(Options)(function)
