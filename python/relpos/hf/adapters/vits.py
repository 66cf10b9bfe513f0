"""VITS: rows of near distances join the keys and the values of the text encoder."""

from collections.abc import Iterator

from torch import Tensor, nn

import relpos
from relpos._position.part import with_values
from relpos.hf._adapter import Adapter, Plan
from relpos.hf._interface import NAME
from relpos.hf._lazy import Mask
from relpos.hf._module import attended, by_head
from relpos.hf._trial import Compared, draw, masks, padded, prove
from relpos.hf.adapters.conformer import trial_lengths


class _Attention:
    """VitsAttention.forward on relpos."""

    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        attention_mask: Mask | Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        query, key, value = by_head(
            hidden_states, self.head_dim, self.q_proj, self.k_proj, self.v_proj
        )
        position = self._relpos_position
        if position is not None:
            position = with_values(position, [self.emb_rel_k, self.emb_rel_v])
        out, weights = attended(
            query,
            key,
            value,
            attention_mask,
            position=position,
            dropout=self.dropout if self.training else 0.0,
            scale=self.scaling,
            weights=bool(output_attentions),
        )
        return self.out_proj(out), weights


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    position, what = None, "no positions of its own"
    if module.window_size:
        position = relpos.VITS(module.window_size, module.head_dim)
        what = f"rows of distances up to {module.window_size} in the kernel"
    plan = Plan(what, _Attention, {"_relpos_position": position})
    prove(module, plan, _calls(module, owner), implementation=NAME)
    return plan


def _calls(module: nn.Module, owner: nn.Module) -> Iterator[Compared]:
    from transformers import masking_utils

    both = masking_utils.bidirectional_mask_function
    for length in trial_lengths(module, owner):
        given = {"hidden_states": draw(2, length, module.embed_dim)}
        dense, mask = masks(length, length, both, padded(2, length))
        theirs = {**given, "attention_mask": dense.expand(2, 1, length, length)}
        yield Compared(theirs, {**given, "attention_mask": mask})


ADAPTERS = [Adapter(("VitsAttention",), _plan)]
