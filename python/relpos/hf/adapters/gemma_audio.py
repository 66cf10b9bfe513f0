"""The audio encoders of Gemma 3n and Gemma 4: rows of projected features in a window, softcap."""

import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from relpos._position.buckets import Buckets
from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._interface import NAME
from relpos.hf._lazy import Mask
from relpos.hf._module import attended, by_head
from relpos.hf._trial import Compared, copied, draw, masks, padded, prove
from relpos.terms import RowTable


class _Gemma3n:
    """Gemma3nAudioAttention.forward on relpos. mask: bool [B, L], True for padding."""

    def forward(self, hidden_states: Tensor, mask: Tensor) -> Tensor:
        query, key, value = by_head(
            hidden_states, self.head_dim, self.q_proj, self.k_proj, self.v_proj
        )
        query = query * self.q_scale * nn.functional.softplus(self.per_dim_scale)
        features = self.relative_position_embedding
        past, future = features.max_backward, features.max_forward
        at = torch.arange(past, -future - 1, -1, device=query.device)[None]
        rows = features.pos_proj(features._get_timing_signal_1d_pos(at, dtype=query.dtype))
        out, _ = attended(
            query,
            key,
            value,
            None,
            window=(past, future),
            key_padding_mask=mask,
            position=_rows(rows, self.num_heads, past),
            scale=1.0,
            softcap=float(self.attention_logits_soft_cap),
            weights=False,
        )
        return out.unflatten(-1, (self.num_heads, self.head_dim))


class _Gemma4:
    """Gemma4AudioAttention.forward on relpos, with the model's mask before it is cut in blocks."""

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Tensor,
        attention_mask: Mask | Tensor | None = None,
    ) -> tuple[Tensor, None]:
        if not isinstance(attention_mask, Mask):
            return super().forward(hidden_states, position_embeddings, attention_mask)
        query, key, value = (
            each if each.dtype == torch.float64 else each.float()
            for each in by_head(hidden_states, self.head_dim, self.q_proj, self.k_proj, self.v_proj)
        )
        rows = self.relative_k_proj(position_embeddings).to(query.dtype)
        out, _ = attended(
            query * self.q_scale * nn.functional.softplus(self.per_dim_scale),
            key * self.k_scale,
            value,
            attention_mask,
            position=_rows(rows, self.num_heads, self.max_past_horizon),
            scale=1.0,
            softcap=float(self.attention_logits_soft_cap),
            weights=False,
        )
        return self.post(out.to(hidden_states.dtype)), None


def _rows(rows: Tensor, heads: int, past: int) -> RowTable:
    """Of projected features [1, M, H D] of the distances from `past` before the query on."""
    table = rows[0].unflatten(-1, (heads, -1)).transpose(0, 1)
    return RowTable(table, Buckets.window(-past, table.shape[1] - 1 - past))


def _plan_3n(module: nn.Module, owner: nn.Module) -> Plan:
    plan = Plan(_what(module), _Gemma3n)
    prove(module, plan, _calls_3n(module), implementation=NAME)
    return plan


def _what(module: nn.Module) -> str:
    past, future = module.max_past_horizon, module.max_future_horizon
    return f"rows of projected features, a window of {past} and {future}, softcap in the kernel"


def _calls_3n(module: nn.Module) -> Iterator[Compared]:
    for length in _lengths(module):
        seen = padded(2, length)
        given = {"hidden_states": draw(2, length, module.hidden_size), "mask": ~seen}
        yield Compared(given, given, seen[..., None])


def _lengths(module: nn.Module) -> tuple[int, ...]:
    return 1, module.chunk_size - 1, module.chunk_size, 2 * module.context_size + 3


_BLOCKED = "_convert_4d_mask_to_blocked_5d"


def _unblocked(mask: Mask) -> Mask:
    """Replaces _convert_4d_mask_to_blocked_5d."""
    return mask


def _plan_4(module: nn.Module, owner: nn.Module) -> Plan:
    window = getattr(sys.modules[type(module).__module__], "sliding_window_mask_function", None)
    if window is None or not hasattr(owner, _BLOCKED):
        raise Unfused(f"no {_BLOCKED} in its model", attention=False)
    plan = Plan(_what(module), _Gemma4, also=((owner, {_BLOCKED: _unblocked}),))
    reach = (module.max_past_horizon, module.max_future_horizon)
    prove(module, plan, _calls_4(module, owner, window(reach)), implementation=NAME)
    return plan


def _calls_4(module: nn.Module, owner: nn.Module, window: Callable) -> Iterator[Compared]:
    """With the model's masks and random features."""
    cut = getattr(copied(owner, children=False), _BLOCKED)
    width = module.num_heads * module.head_dim
    features = draw(1, module.context_size // 2 + 1, width)
    for length in _lengths(module):
        seen = padded(2, length)
        dense, mask = masks(length, length, window, seen)
        given = {"hidden_states": draw(2, length, width), "position_embeddings": features}
        ours = {**given, "attention_mask": mask}
        yield Compared({**given, "attention_mask": cut(dense)}, ours, seen)


ADAPTERS = [
    Adapter(("Gemma3nAudioAttention",), _plan_3n),
    Adapter(("Gemma4AudioAttention",), _plan_4),
]
