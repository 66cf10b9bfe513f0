"""attn_implementation="relpos" for the attention interface of transformers."""

import contextvars
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from relpos._base.errors import kind_of, wrong_type, wrong_value
from relpos._call.attention import attention
from relpos._call.distances import lowered_within
from relpos._call.options import OPTIONS
from relpos._mask.tile_mask import TileMask
from relpos._position.sum import Composed, flatten, lowers
from relpos.hf._lazy import Bias, Mask
from relpos.hf._mask import mask_function
from relpos.hf._transformers import interfaces

NAME = "relpos"

# Keywords by which a model requests more than softmax attention over an interval of keys.
_FOREIGN = {
    "block_indices": "a choice of key blocks for each query",
    "cache": "a paged cache",
    "cu_seq_lens_q": "sequence lengths in place of position_ids that restart",
}


# What is told of each call; set in trials alone.
_WATCHER: contextvars.ContextVar[Callable | None] = contextvars.ContextVar("watch", default=None)


@contextmanager
def watched(watcher: Callable) -> Iterator[None]:
    """Calls watcher() in every call of attention_function within."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


# The positions of attention implementations that have one, by name.
POSITIONS: dict[str, Any] = {}

Position = Composed | Sequence[Composed]


def register(
    name: str = NAME,
    *,
    position: Position | Callable[[torch.nn.Module], Position | None] | None = None,
) -> None:
    """Makes attn_implementation="relpos" and its mask function known to transformers.

    With a name and a position, attn_implementation=name is attention with this position, beside
    those that the model computes itself. The same name may be given another position later.

    Args:
      name: "relpos", without a position; or a name that transformers does not have.
      position: a position of relpos, one of your own too, or a list of them; or a function that
        gives the position of an attention module, or None for one without, such as
        lambda module: module.position. The model holds no position by itself: assign it to a module
        of the model before optimizers, state dicts and devices are to know its parameters.

    It works for every model on the attention interface whose mask is causal, windowed, chunked,
    packed or padded, also with blocks of tokens that see each other; other models raise
    NotImplementedError with the reason when they run. The model still computes its positions;
    relpos.hf.fuse moves them into the kernel.

    Raises:
      ImportError: transformers is absent, or a version without what relpos needs.
    """
    found = interfaces()
    if position is None:
        if name != NAME:
            raise wrong_value("position", f"one for attn_implementation={name!r}", None)
    else:
        _check_name(name, found.attention_functions)
        if isinstance(position, type) or not callable(position):
            flatten(position)  # raises for what is no position
        POSITIONS[name] = position
    function = attention_function
    if position is not None:
        function = functools.partial(attention_function, relpos_position=position)
    found.attention_functions.register(name, function)
    found.mask_functions.register(name, mask_function)


def _check_name(name: Any, functions: Any) -> None:
    if not isinstance(name, str):
        raise wrong_type("name", "a string", kind_of(name))
    if not re.fullmatch(r"[A-Za-z][\w-]*", name):  # others mean kernels of the hub to transformers
        raise wrong_value("name", "letters, digits, _ and -", repr(name))
    if name in (NAME, "eager") or (name not in POSITIONS and name in functions().valid_keys()):
        raise wrong_value("name", "one that transformers and relpos do not have", repr(name))


def _position_of(position: Any, module: torch.nn.Module) -> Any:
    """That of an attention module."""
    if not isinstance(position, Composed) and callable(position):
        return position(module)
    if getattr(getattr(module, "config", None), "is_encoder_decoder", False):
        raise NotImplementedError(
            f"relpos.hf: {type(module).__name__} is of an encoder-decoder model, some of whose "
            "attention is between two sequences: give register a function of the module, "
            "position=lambda module: ..., which returns None for one without this position"
        )
    return position


def attention_function(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Mask | Tensor | TileMask | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Bias | Tensor | None = None,
    output_attentions: bool = False,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    relpos_rotation: Composed | None = None,
    relpos_position: Any = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """The function that a model calls, with query [B, H, Lq, D], key and value [B, Hk, Lk, D].
    Returns the output [B, Lq, H, Dv], and the weights if output_attentions.

    softcap: as in relpos.attention. s_aux: its sinks, [H]; sinks: the same, or [B, H, Lq, 1].

    relpos_rotation: a rotation to be applied here. relpos_position: what register was given. Of
    the others, options of relpos.attention apply, too.
    """
    if not torch.compiler.is_compiling() and (watcher := _WATCHER.get()) is not None:
        watcher()
    for name, what in _FOREIGN.items():
        if others.get(name) is not None:
            raise NotImplementedError(
                f"relpos.hf: {type(module).__name__} asks for {what} ({name}), which relpos does "
                'not have: use attn_implementation="sdpa" or "eager" for this model'
            )
    chosen = others.get("indices")
    if attention_mask is None:
        # The rule of the interface: a model that passes no mask relies on is_causal, whose
        # queries and keys both start at 0.
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if causal and query.shape[2] > 1:
            attention_mask = mask_function(
                query.shape[0], query.shape[2], key.shape[2], device=query.device
            )
    if chosen is not None:
        attention_mask = _chosen(chosen, attention_mask, query, key)
    position, positions = relpos_rotation, None
    q_start: int | Tensor | None = None
    if isinstance(position_bias, Bias):
        bias = position_bias.make()
        position = [*flatten(position), *flatten(bias)] if position is not None else bias
        positions = position_bias.positions
        q_start, position_bias = position_bias.q_start, None
    if relpos_position is not None:
        own = flatten(_position_of(relpos_position, module))
        _check_place(module, query, key, attention_mask if own and positions is None else None)
        position = [*flatten(position), *own] or None
    out = attend(
        query,
        key,
        value,
        attention_mask,
        position=position,
        positions=positions,
        q_start=q_start,
        bias=position_bias,
        dropout=dropout,
        scale=scaling,
        softcap=softcap,
        sinks=_sinks(s_aux if sinks is None else sinks),
        weights=bool(output_attentions),
        **{name: others[name] for name in OPTIONS if name in others},
    )
    out, weights = out if output_attentions else (out, None)
    return out.transpose(1, 2).contiguous(), weights


def _chosen(indices: Tensor, mask: Mask | Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    """The mask of a choice of keys [B, Lq, count] among those that a mask shows."""
    shape = query.shape[0], 1, query.shape[2], key.shape[2]
    seen = torch.zeros(shape, dtype=torch.bool).scatter(-1, indices[:, None].long(), True)
    if isinstance(mask, Mask):
        return seen & (mask.dense() == 0)
    if mask is None or mask.dtype == torch.bool:
        return seen if mask is None else seen & mask
    return mask.masked_fill(~seen, torch.finfo(mask.dtype).min)


def _check_place(
    module: torch.nn.Module, query: Tensor, key: Tensor, mask: Mask | Tensor | None
) -> None:
    """Raises where a dense mask does not say which of more keys the queries are."""
    if isinstance(mask, Tensor) and query.shape[2] != key.shape[2]:
        raise NotImplementedError(
            f"relpos.hf: {type(module).__name__} gives a dense mask for {query.shape[2]} queries "
            f"and {key.shape[2]} keys, which does not say where the queries stand: leave the mask "
            "to transformers, or give position=lambda module: ... that returns None here"
        )


def _sinks(sinks: Tensor | None) -> Tensor | None:
    return sinks.squeeze(-1) if sinks is not None and sinks.dim() == 4 else sinks


def both_at(position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of queries and of keys, which are equal, from position_ids [B or 1, L]."""
    rows = position_ids[0] if position_ids.shape[0] == 1 else position_ids
    return rows, rows


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | Tensor | TileMask | None,
    *,
    position: Composed | None = None,
    positions: tuple[Tensor, Tensor] | None = None,
    q_start: int | Tensor | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
    softcap: float | None = None,
    lse: bool = False,
    weights: bool = False,
    **options: Any,
) -> Any:
    """relpos.attention with a mask of transformers. Returns out [B, H, Lq, Dv], and lse or weights
    after it where they are requested.

    mask: a Mask, a 4-D tensor (bool, True = attend, or added), a TileMask, or None. bias: added to
    the scores.
    q_start: position of query 0, counted from key 0; None means that of the mask. options: those
    of relpos.attention that a mask does not say.
    """
    if isinstance(mask, Mask):
        key, value = mask.fit(query, key, value)
        options["key_range"] = mask.key_range
        options["key_padding_mask"] = mask.padding
        q_start = mask.q_start if q_start is None else q_start
        mask = None
    elif isinstance(mask, Tensor) and mask.dim() != 4:
        raise ValueError(
            f"relpos.hf: expected an attention mask made by relpos or of rank 4, got "
            f"{list(mask.shape)}: register the mask function, too (relpos.hf.register())"
        )
    if isinstance(mask, Tensor) and mask.shape[2] == 1 < query.shape[2]:  # one query for all
        mask = mask.expand(-1, -1, query.shape[2], -1)
    if bias is not None:
        if softcap is not None:
            raise NotImplementedError(
                "relpos.hf: a dense position bias is added as a mask is, after the softcap; give "
                "it as a relpos position, or use another attn_implementation"
            )
        if isinstance(mask, TileMask):
            raise NotImplementedError(
                "relpos.hf: a dense position bias is added as a mask is, so it cannot stand beside "
                "a TileMask: give it as a relpos position, or the mask as a tensor, mask.dense()"
            )
        if mask is not None:
            hidden = torch.finfo(bias.dtype).min
            mask = torch.where(mask, bias, hidden) if mask.dtype == torch.bool else mask + bias
        else:
            mask = bias
    if positions is not None:
        options["q_positions"], options["k_positions"] = positions
    elif position is not None:
        options["q_offset"] = 0 if q_start is None else q_start
        if lowers(position):
            position = _terms(query, key, position, options)
    return attention(
        query,
        key,
        value,
        position=position,
        attn_mask=mask,
        dropout_p=dropout,
        scale=scale,
        softcap=softcap,
        enable_gqa=query.shape[1] != key.shape[1],
        return_lse=lse,
        return_weights=weights,
        **options,
    )


def _terms(query: Tensor, key: Tensor, position: Any, options: dict[str, Any]) -> list[Any]:
    """The terms of a position for the distances of the keys that are seen, which the kernel is told
    by key_range. options: q_offset and key_range."""
    start, seen = options["q_offset"], options.get("key_range")
    bounds = None, None
    if seen is not None and query.shape[2] and not torch.compiler.is_compiling():
        first = start[:, None] if isinstance(start, Tensor) and start.dim() else start
        at = torch.arange(query.shape[2], device=query.device) + first
        left, right = (at - seen[0]).max(), (seen[1] - 1 - at).max()
        bounds = tuple(max(int(bound), 0) for bound in (left, right))
    return lowered_within(query, key, {"position": position, "q_offset": start}, bounds)
