"""Falcon: ALiBi (the models of 2023 with `alibi`) or a rotation."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from relpos._position.part import text_of
from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._interface import NAME, both_at
from relpos.hf._lazy import Mask
from relpos.hf._module import attended
from relpos.hf._rotation import ROTATE, gives, rotation_of, tables_of
from relpos.hf._trial import Compared, draw, masks, prove


class _Attention:
    """FalconAttention.forward on relpos.

    The model rounds its ALiBi to bfloat16, so that it is not linear in the distance. The kernel
    gets it unchanged, as a number for each head and key, broadcast over the queries.
    """

    def forward(
        self,
        hidden_states: Tensor,
        alibi: Tensor | None,
        attention_mask: Mask | Tensor,
        position_ids: Tensor | None = None,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        split = self._split_heads(self.query_key_value(hidden_states))
        query, key, value = (x.transpose(1, 2) for x in split)
        bias = position = positions = None
        if alibi is not None:
            bias = alibi.view(query.shape[0], self.num_heads, 1, -1) * self.inv_norm_factor
        elif (
            layer_past is None
            and self._relpos_rotation is not None
            and gives(self._relpos_rotation, position_ids, *position_embeddings)
        ):
            position, positions = self._relpos_rotation, both_at(position_ids)
        else:
            base = type(self).__bases__[1]
            rotate = getattr(sys.modules[base.__module__], ROTATE)
            query, key = rotate(query, key, *position_embeddings)
        if layer_past is not None:
            key, value = layer_past.update(key, value, self.layer_idx)
        # As in the model, only ALiBi has dropout.
        drops = self.training and alibi is not None
        out, weights = attended(
            query,
            key,
            value,
            attention_mask,
            position=position,
            positions=positions,
            bias=bias,
            dropout=self.attention_dropout.p if drops else 0.0,
            scale=self.inv_norm_factor,
            weights=bool(output_attentions),
        )
        return self.dense(out), weights


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    rotate = found = None
    if owner.use_alibi:
        what = "ALiBi as the model rounds it, a number for each head and key"
    else:
        rotate = tables_of(module, owner)
        try:
            found = rotation_of(module, owner, rotate)
            what = f"{text_of(found)} in the kernel; with a cache keys are stored rotated"
        except Unfused as error:
            what = f"attention alone: {error}"
    plan = Plan(what, _Attention, {"_relpos_rotation": found})
    prove(module, plan, _calls(module, rotate), implementation=NAME)
    return plan


def _calls(module: nn.Module, rotate: Callable | None) -> Iterator[Compared]:
    """Calls with random numbers in the place of ALiBi, or with what `rotate` gives."""
    for length in (1, 2, 3, 17, 34, 65):
        at = torch.arange(length)[None] + 7 * length
        dense, mask = masks(length, length)
        given = {"hidden_states": draw(2, length, module.hidden_size), "position_ids": at}
        given["alibi"] = draw(2 * module.num_heads, 1, length) if rotate is None else None
        given["position_embeddings"] = None if rotate is None else rotate(at)
        yield Compared({**given, "attention_mask": dense}, {**given, "attention_mask": mask})


ADAPTERS = [Adapter(("FalconAttention",), _plan)]
