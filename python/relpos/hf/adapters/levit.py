"""LeViT: a bias of the distances along both axes, also for queries of every second patch."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

import relpos
from relpos._position.part import with_values
from relpos.hf._adapter import Adapter, Plan
from relpos.hf._interface import NAME, attend
from relpos.hf._trial import Compared, copied, draw, prove


class _Attention:
    """LevitAttention.forward on relpos."""

    def forward(self, hidden_state: Tensor) -> Tensor:
        query, key, value = _heads(
            self,
            self.queries_keys_values(hidden_state),
            [self.key_dim, self.key_dim, self.attention_ratio * self.key_dim],
        )
        return _attended(self, query, key, value, None)


class _Subsample:
    """LevitAttentionSubsample.forward on relpos."""

    def forward(self, hidden_state: Tensor) -> Tensor:
        sizes = [self.key_dim, self.attention_ratio * self.key_dim]
        key, value = _heads(self, self.keys_values(hidden_state), sizes)
        states = self.queries(self.queries_subsample(hidden_state))
        (query,) = _heads(self, states, [self.key_dim])
        return _attended(self, query, key, value, self._relpos_places)


def _heads(module: nn.Module, states: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    parts = states.unflatten(-1, (module.num_attention_heads, -1)).transpose(1, 2)
    return parts.split(sizes, dim=-1)


def _attended(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, places: tuple | None
) -> Tensor:
    position = with_values(module._relpos_position, [module.attention_biases])
    out = attend(query, key, value, None, position=position, positions=places, scale=module.scale)
    return module.projection(module.activation(out.transpose(1, 2).flatten(2)))


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    side = round(module.len_points**0.5)
    position = relpos.LevitBias(module.num_attention_heads, grid=[side, side])
    plan = Plan(_what(side), _Attention, {"_relpos_position": position})
    width = module.queries_keys_values.linear.in_features
    prove(_with_indices(module), plan, _calls(module, width), implementation=NAME)
    return plan


def _plan_subsample(module: nn.Module, owner: nn.Module) -> Plan:
    side, stride = round(module.len_points**0.5), module.queries_subsample.stride
    position = relpos.LevitBias(module.num_attention_heads, grid=[side, side])
    at = torch.arange(side)
    places = ((2 * side - 1) * at[:, None] + at).contiguous()
    state = {
        "_relpos_position": position,
        "_relpos_places": (places[::stride, ::stride].flatten(), places.flatten()),
    }
    plan = Plan(f"{_what(side)}, queries of every {stride} patches", _Subsample, state)
    width = module.keys_values.linear.in_features
    prove(_with_indices(module), plan, _calls(module, width), implementation=NAME)
    return plan


def _what(side: int) -> str:
    return f"bias of distances in an image of {side} x {side} in the kernel"


def _with_indices(module: nn.Module) -> nn.Module:
    """A copy without the biases that the module keeps of passes in evaluation mode; of meta
    tensors, with the numbers that its class computes."""
    found = copied(module)
    found.attention_bias_cache = {}
    if not any(buffer.is_meta for buffer in module.buffers()):
        return found
    found.attention_bias_idxs = torch.tensor(found.indices).view(-1, found.len_points)
    for part in found.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.running_mean = torch.zeros(part.num_features)
            part.running_var = torch.ones(part.num_features)
    return found


def _calls(module: nn.Module, width: int) -> Iterator[Compared]:
    given = {"hidden_state": draw(2, module.len_points, width)}
    yield Compared(given, given)


ADAPTERS = [
    Adapter(("LevitAttention",), _plan),
    Adapter(("LevitAttentionSubsample",), _plan_subsample),
]
