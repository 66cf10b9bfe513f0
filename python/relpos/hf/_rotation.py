"""Whether relpos rotates as a model does: tested by comparing numbers, not by names of classes."""

import inspect
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from relpos._position.part import text_of
from relpos._position.position import SchemePosition
from relpos.hf import _trial
from relpos.hf._adapter import Unfused
from relpos.hf._interface import NAME

ROTATE = "apply_rotary_pos_emb"
_INTERFACE = "ALL_ATTENTION_FUNCTIONS"
# Of a trial of attention: how many tokens are given at once (more than one number: into a cache),
# the first position, and the window, None for a causal mask.
_PIECES = (
    ((1,), 1000, None),
    ((6,), 3, 4),
    ((35,), 0, 7),
    ((18, 1), 100, None),
)


def gives(rotation: SchemePosition, position_ids: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether the kernel's rotation at position_ids [B or 1, L] has the model's own cosines and
    sines [B or 1, L, rotary_dim or half of it].

    All layers of a forward pass share these tables, so the answer is stored with them. It is False
    while tracing and for meta tensors, where code cannot branch on numbers.
    """
    if torch.compiler.is_compiling() or cos.is_meta:
        return False
    tensors = (cos, sin, position_ids)
    versions = [None if tensor.is_inference() else tensor._version for tensor in tensors]
    text, seen, refs, answer = _answers.get(cos, ("", [], (), False))
    same = (text, seen) == (text_of(rotation), versions)
    if same and all(ref() is now for ref, now in zip(refs, tensors[1:], strict=True)):
        return answer
    answer = _gives(rotation, *tensors)
    refs = tuple(weakref.ref(tensor) for tensor in tensors[1:])
    _answers[cos] = (text_of(rotation), versions, refs, answer)
    return answer


_answers: Any = WeakIdKeyDictionary()


@torch.no_grad()
def _gives(rotation: Any, cos: Tensor, sin: Tensor, position_ids: Tensor) -> bool:
    pairs = rotation.rotary_dim // 2
    if cos.shape != sin.shape or cos.shape[-1] % pairs or cos.shape[:-1] != position_ids.shape:
        return False
    positions = position_ids.flatten().to(torch.int64)
    first = torch.zeros(rotation.head_dim)  # every pair at angle 0
    half = rotation.layout == "half"
    turning = first[:pairs] if half else first[: 2 * pairs : 2]
    turning.fill_(1.0)
    turned = rotation.rotate(first.repeat(1, 1, len(positions), 1), positions=positions)[0, 0]
    turned = turned[:, : 2 * pairs].unflatten(-1, (2, pairs) if half else (pairs, 2))
    ours = turned.unbind(1 if half else 2)
    # A frequency may be off by an ulp or two; the angle's error is that times the position.
    rates = rotation.base ** -(torch.arange(pairs) / pairs)
    exact = 0.0 if cos.dtype in (torch.float32, torch.float64) else torch.finfo(cos.dtype).eps
    allowed = 1e-5 + exact + 2.0**-22 * positions.abs()[:, None] * rates
    for mine, theirs in zip(ours, (cos, sin), strict=True):
        theirs = theirs.detach().flatten(0, -2).unflatten(-1, (-1, pairs))
        if not bool(((theirs.float() - mine[:, None]).abs() <= allowed[:, None]).all()):
            return False
    return True


def unrotated(forward: Callable, **others: Any) -> Callable:
    """The forward with an apply_rotary_pos_emb that does nothing."""
    return with_globals(forward, **{ROTATE: _leave}, **others)


def with_globals(function: Any, **replaced: Any) -> Callable:
    """The function with some of its globals replaced."""
    made = types.FunctionType(
        function.__code__,
        {**function.__globals__, **replaced},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _leave(query: Tensor, key: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    return query, key


@dataclass(frozen=True)
class _Tokens:
    """States [2, L, width] at position_ids [2, L], with the model's cosines and sines, given in
    pieces. window: that of the mask, None for a causal one."""

    states: Tensor
    position_ids: Tensor
    tables: tuple[Tensor, Tensor]
    pieces: tuple[int, ...]
    window: int | None


class Trial:
    """Ways to call an attention module on the interface of transformers, which should agree.

    rotate(position_ids) returns the model's own cosines and sines. short: with the longest calls
    only.
    """

    def __init__(self, module: nn.Module, rotate: Callable, *, short: bool = False) -> None:
        self._rotate = rotate
        self._own = type(module).forward
        self._width = module.config.hidden_size
        self._lengths = _trial.lengths(self._width, module, module.config)[-1 if short else 0 :]
        self._numbers = [] if short else _trial.numbers(module, module.config)
        self._eager = _trial.on(_trial.twin(module), "eager")
        self._relpos = _trial.on(_trial.again(self._eager), NAME)
        self._given = [
            self._tokens(_positions(sum(pieces), first), pieces, window)
            for pieces, first, window in _PIECES[-2 if short else 0 :]
        ]
        self._eagerly: list[Tensor] = []
        self._wide: list[tuple[_Tokens, Tensor, dict[str, Any]]] = []

    def attention(self) -> None:
        """Raises Unfused, for the whole model, unless the module's forward on relpos, with the
        model's rotation, gives what it gives on eager attention, with caches and without."""
        errors = []
        with _trial.quick(self._eager):
            for given, theirs in zip(self._given, self._theirs(), strict=True):
                errors.append(_trial.difference(self._fed(self._relpos, given), theirs))
            self._wide = list(self._widely())
        for error in errors:
            _trial.agree(error, "its eager one", attention=False)

    def _theirs(self) -> list[Tensor]:
        """What the module's forward gives on eager attention."""
        if not self._eagerly:
            self._eagerly = [self._fed(self._eager, given) for given in self._given]
        return self._eagerly

    def rotation(self, found: SchemePosition) -> None:
        """Raises Unfused unless the module's forward gives the same when the kernel rotates instead
        of the module's apply_rotary_pos_emb."""
        names = () if hasattr(self._own, "__wrapped__") else self._own.__code__.co_names
        if not {ROTATE, _INTERFACE} <= {*names}:
            raise Unfused(
                f"its forward does not call {ROTATE} and the attention interface: "
                "the model rotates",
                attention=True,
            )
        try:
            with _trial.quick(self._eager):
                errors, effects = zip(*self._rotations(found), strict=True)
        except Exception as error:
            raise Unfused(
                f"its attention could not be tried with the rotation in the kernel "
                f"({type(error).__name__}: {error}): the model rotates",
                attention=True,
            ) from error
        if not max(effects) >= 1e-2:
            raise Unfused(
                "its attention does not show a rotation: the model rotates", attention=True
            )
        for error in errors:
            _trial.agree(error, f"{text_of(found)} in the kernel", attention=True)

    def _rotations(self, found: SchemePosition) -> Iterator[tuple[float, float]]:
        """Of each trial the difference made by the kernel's rotation, and that by none at all."""
        without = unrotated(self._own)
        for given, theirs in zip(self._given, self._theirs(), strict=True):
            if len(given.pieces) == 1:
                ours = self._fed(self._relpos, given, without, relpos_rotation=found)
                none = self._fed(self._eager, given, without)
                yield _trial.difference(ours, theirs), _trial.difference(none, theirs)
        for given, theirs, passed in self._wide:
            kernel = _Interface(_Turned())
            own = unrotated(self._own, **{_INTERFACE: kernel})
            ours = self._fed(self._relpos, given, own, relpos_rotation=found)
            if not (kernel.calls == 1 and kernel.function.given == passed):
                raise RuntimeError("it does not call the attention interface once, and alike")
            yield _trial.difference(ours, theirs), 0.0

    def _widely(self) -> Iterator[tuple[_Tokens, Tensor, dict[str, Any]]]:
        """Many tokens, or some around the lengths that the config names; what the forward gives for
        them with sums in place of attention, and what it passes to these."""
        wide = [_positions(length, length % 2 * 1000) for length in self._lengths]
        if self._numbers:
            wide.append(torch.tensor(self._numbers)[:, None].add(torch.arange(-1, 3)).flatten())
        for at in wide:
            given, turned = self._tokens(at, (len(at),), None), _Interface(_Turned())
            own = with_globals(self._own, **{_INTERFACE: turned})
            yield given, self._fed(self._relpos, given, own), turned.function.given

    def _tokens(self, at: Tensor, pieces: tuple[int, ...], window: int | None) -> _Tokens:
        position_ids = torch.stack([at, at + 3])
        states = _trial.draw(2, len(at), self._width)
        return _Tokens(states, position_ids, self._rotate(position_ids), pieces, window)

    def _fed(
        self, module: nn.Module, given: _Tokens, way: Callable | None = None, **more: Any
    ) -> Tensor:
        """The output [2, L, width] of the module's forward, or of another way."""
        from transformers import DynamicCache, masking_utils

        function = None
        if given.window is not None:
            function = masking_utils.sliding_window_causal_mask_function(given.window)
        if len(given.pieces) > 1:
            names = inspect.signature(self._own).parameters
            more["layer_past" if "layer_past" in names else "past_key_values"] = DynamicCache()
        mask = _trial.lazy_mask if module is self._relpos else _trial.dense_mask
        outs, start = [], 0
        for piece in given.pieces:
            now = slice(start, start + piece)
            out = (way or type(module).forward)(
                module,
                given.states[:, now],
                position_embeddings=tuple(each[:, now] for each in given.tables),
                attention_mask=mask(piece, now.stop, function),
                position_ids=given.position_ids[:, now],
                **more,
            )
            outs.append(out[0])
            start = now.stop
        return torch.cat(outs, dim=1)


def _positions(length: int, first: int) -> Tensor:
    """int64 [length]: positions from `first` on, some of them left out."""
    steps = torch.arange(length)
    return first + steps + (steps + 2) // 5


class _Turned:
    """In place of attention: sums of queries, keys and values after the rotation, at a cost that
    grows with the length alone. given: the other arguments of the last call."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        relpos_rotation: SchemePosition | None = None,
        **given: Any,
    ) -> tuple[Tensor, None]:
        if relpos_rotation is not None:
            query, key = (
                torch.stack(
                    [
                        relpos_rotation.rotate(row, positions=at)
                        for row, at in zip(x, given["position_ids"], strict=True)
                    ]
                )
                for x in (query, key)
            )
        self.given = {
            name: value.tolist() if isinstance(value, Tensor) else value
            for name, value in given.items()
        }
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        weights = _trial.draw(2, query.shape[-1])
        out = value + (query @ weights[0] + key @ weights[1])[..., None]
        return out.transpose(1, 2).contiguous(), None


class _Interface:
    """Replaces the registry of attention functions: it returns one function for every name."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.calls = 0

    def get_interface(self, *_: Any) -> Callable:
        self.calls += 1
        return self.function
