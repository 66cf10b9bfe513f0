"""Attention over one run of queries and one run of keys, by the kernels, and what joins pieces."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from relpos import _core
from relpos._call.call import Call
from relpos._call.merge import shares
from relpos.distributed._geometry import Geometry, within
from relpos.distributed._layout import resized


def wide(tensor: Tensor) -> Tensor:
    """16-bit numbers as float32, in which the kernels compute."""
    return tensor.to(wide_dtype(tensor))


@dataclass
class Inputs:
    """How the tensors of a position go with queries and keys."""

    tensors: Sequence[Tensor]
    key_axis: dict[int, int] = field(default_factory=dict)  # of those that belong to keys
    query_axis: dict[int, int] = field(default_factory=dict)
    cumulative: set[int] = field(default_factory=set)  # given as their sums so far, in double
    of_heads: set[int] = field(default_factory=set)  # have heads on axis 1
    of_key_heads: set[int] = field(default_factory=set)  # have those of keys there
    by_head: set[int] = field(default_factory=set)  # belong to no tokens, and have heads on axis 0
    sinks: bool = False  # some of them are, or become, sinks

    @classmethod
    def of(cls, text: str, tensors: Sequence[Tensor]) -> "Inputs":
        found = cls(tensors, sinks=bool(text) and "sink" in _core.term_kinds(text))
        for n, (name, axes, cumulative) in enumerate(_core.list_tensors(text) if text else []):
            if "keys" in axes and "queries" in axes:
                raise ValueError(
                    f"position: {name} has an axis of queries and one of keys, expected inputs of "
                    "tokens alone on several ranks; use relpos.attention on one"
                )
            if "keys" in axes:
                found.key_axis[n] = axes.index("keys")
            if "queries" in axes:
                found.query_axis[n] = axes.index("queries")
            if axes[1:2] == ("heads",):
                found.of_heads.add(n)
            if axes == ("batch", "any", "keys", "any"):
                found.of_key_heads.add(n)
            if axes[:1] == ("heads",):
                found.by_head.add(n)
            if cumulative:
                found.cumulative.add(n)
        return found

    def trained(self) -> list[int]:
        """Those that are no inputs of the call."""
        return [
            n
            for n in range(len(self.tensors))
            if n not in self.key_axis and n not in self.query_axis
        ]


@dataclass
class Pieces:
    """What all pieces of a call share. A block is a rank's [key, value, tensors that belong to
    keys, padding, positions], the last two where there are any."""

    geometry: Geometry
    call: Call  # options that hold for every piece
    inputs: Inputs
    padded: bool = False

    def block(self, key: Tensor, value: Tensor, padding: Tensor | None) -> list[Tensor]:
        own = [key, value, *(self.inputs.tensors[n] for n in self.inputs.key_axis)]
        own += [padding] if padding is not None else []
        given = self.geometry.k.given
        return [t.contiguous() for t in (own if given is None else [*own, given])]

    def empty_block(self, like: Sequence[Tensor], rank: int) -> list[Tensor]:
        """For the block of another rank."""
        length = sum(run.count for run in self.geometry.k.runs[rank])
        return [t.new_empty(resized(t.shape, self.axis(n), length)) for n, t in enumerate(like)]

    def axis(self, n: int) -> int:
        """Of the keys in tensor n of a block."""
        if n < 2:
            return 2
        axes = list(self.inputs.key_axis.values())
        return axes[n - 2] if n - 2 < len(axes) else -1

    def of_keys(self, block: Sequence[Any], rank: int, j: int) -> list[Any]:
        """Run j of a rank's block, or of the gradients of one, of which there may be none."""
        at = self.geometry.k.place(rank, j)
        count = at.stop - at.start
        cut = (
            None if t is None else t.narrow(self.axis(n), at.start, count)
            for n, t in enumerate(block)
        )
        return list(cut)

    def of_queries(self, tensor: Tensor, i: int, axis: int = 2) -> Tensor:
        at = self.geometry.q.place(self.geometry.rank, i)
        return tensor.narrow(axis, at.start, at.stop - at.start)

    def call_of(self, i: int, rank: int, j: int, run: Sequence[Tensor]) -> Call:
        """The call of run i of the queries and run j, cut as `run`, of a rank's keys."""
        geometry, own = self.geometry, self.geometry.rank
        q_run, k_run = geometry.q.runs[own][i], geometry.k.runs[rank][j]
        said: dict[str, Any] = {"parameters": self._parameters(i, run)}
        rest = list(run[2 + len(self.inputs.key_axis) :])
        if self.padded:
            said["key_padding_mask"] = rest.pop(0)
        said |= self._places(i)
        if geometry.q.explicit:
            said["k_positions"] = rest.pop(0) if rest else geometry.k.positions(rank, j)
        else:
            said |= _offset("k_offset", geometry.k.offset, k_run.start)
        if geometry.lo is not None and geometry.hi is not None:
            bounds = (self.of_queries(b, i, -1) for b in (geometry.lo, geometry.hi))
            said["key_lo"], said["key_hi"] = (within(b, k_run) for b in bounds)
        if self.call.dropout_p:
            said["dropout_rows"], said["dropout_columns"] = q_run.tokens(), k_run.tokens()
        return self.call._replace(**said)

    def _places(self, i: int) -> dict[str, Any]:
        """Where run i of the queries stands."""
        q, rank = self.geometry.q, self.geometry.rank
        if q.explicit:
            return {"q_positions": q.own(rank, i)}
        return _offset("q_offset", q.offset, q.runs[rank][i].start)

    def _parameters(self, i: int, run: Sequence[Tensor]) -> list[Tensor]:
        found = [wide(t) for t in self.inputs.tensors]
        for at, n in enumerate(self.inputs.key_axis):
            found[n] = wide(run[2 + at])
            if n in self.inputs.cumulative:
                found[n] = found[n].diff(dim=-1, prepend=torch.zeros_like(found[n][..., :1]))
        for n, axis in self.inputs.query_axis.items():
            found[n] = self.of_queries(found[n], i, axis)
        return found

    def of_sinks(self, i: int, own: Sequence[Tensor]) -> tuple[list[Tensor], Call]:
        """No keys, and the call with them of run i of the queries, in which sinks take part."""
        none = [t.narrow(self.axis(n), 0, 0) for n, t in enumerate(own)]
        said: dict[str, Any] = {"is_causal": False, "window": None, "dropout_p": 0.0}
        said |= {"parameters": self._parameters(i, none), **self._places(i)}
        if "q_positions" in said:
            said["k_positions"] = said["q_positions"][..., :0]
        return none, self.call._replace(adds_sinks=True, **said)

    def forward(self, query: Tensor, run: Sequence[Tensor], call: Call) -> tuple[Tensor, Tensor]:
        """(out, lse in double)."""
        q, k, v = (wide(t) for t in (query, *run[:2]))
        out = q.new_empty((*q.shape[:3], v.shape[3]))
        lse = q.new_empty(q.shape[:3], dtype=torch.float64)
        _core.attention(q, k, v, call, out, lse, None)
        return out, lse

    def backward(
        self,
        queries: Sequence[Tensor | None],
        run: Sequence[Tensor],
        call: Call,
        needs: Sequence[bool],
        places: Sequence[Tensor | None],
    ) -> list[Tensor | None]:
        """Gradients of query, key, value and the position's tensors, None where not needed.
        queries: query, out, lse, dout, dlse. places: where the first three are written, None: in
        new tensors."""
        query, out, lse, dout, dlse = queries
        q, k, v, out, dout = (wide(t) for t in (query, *run[:2], out, dout))
        like = [q, k, v, *call.parameters]
        gradients: list[Tensor | None] = [None] * len(like)
        for n, (t, need) in enumerate(zip(like, needs, strict=True)):
            if need:
                given = places[n] if n < len(places) else None
                new = given is None
                gradients[n] = (
                    torch.empty_like(t, memory_format=torch.contiguous_format) if new else given
                )
        laid_out = [*gradients[:3], None, *gradients[3:]]
        _core.attention_backward((q, k, v, out, lse, dout, dlse), call, laid_out)
        for n in self.inputs.cumulative:
            gradient = gradients[3 + n]
            if gradient is not None:
                gradients[3 + n] = -gradient.diff(
                    dim=-1, append=torch.zeros_like(gradient[..., :1])
                )
        return gradients


def join(out: Tensor, lse: Tensor, piece: Tensor, piece_lse: Tensor) -> None:
    """Adds a piece of a softmax, with the log of its sum, to what is there, in place."""
    weights, total = shares([lse, piece_lse])
    for part, weight in zip((out, piece), weights, strict=True):
        part *= weight.to(part.dtype).unsqueeze(-1)
    out += piece
    lse.copy_(total)


def wide_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.element_size() == 2 else tensor.dtype


def _offset(name: str, offset: int | Tensor, start: int) -> dict[str, Any]:
    if isinstance(offset, Tensor):
        return {f"{name}s": offset + start}
    return {name: offset + start}
