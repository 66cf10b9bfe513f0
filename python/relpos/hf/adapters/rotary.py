"""The Llama family: attention classes that rotate query and key by apply_rotary_pos_emb.

Without a cache the kernel rotates. With a cache, keys are stored rotated, as in every cache of
transformers, so that a step of decoding rotates one key and not all of them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from relpos._position import SchemePosition
from relpos._rope import STATIC, rotation
from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._interface import NAME
from relpos.hf._lazy import Mask
from relpos.hf._rotation import gives, prove, unrotated


class _FusedRotation:
    """The class's own forward. The kernel rotates where there is no cache and the tables that the
    model passes are those of the rotation."""

    @staticmethod
    def _relpos_methods(base: type) -> dict[str, Callable]:
        return {"_relpos_unrotated": unrotated(base.forward)}

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        cached = any(kwargs.get(name) is not None for name in ("past_key_values", "layer_past"))
        positions, tables = kwargs.get("position_ids"), kwargs.get("position_embeddings")
        rotation = self._relpos_rotation
        if (
            args
            or cached
            or positions is None
            or tables is None
            or not isinstance(kwargs.get("attention_mask"), Mask)
            or self.config._attn_implementation != NAME
            or not gives(rotation, positions, *tables)
        ):
            return super().forward(hidden_states, *args, **kwargs)
        return self._relpos_unrotated(hidden_states, relpos_rotation=rotation, **kwargs)


def _plan(module: nn.Module, owner: nn.Module) -> Plan:
    found, rotate = rotation_of(module, owner)
    prove(module, found, rotate)
    what = f"{found._text} in the kernel; with a cache keys are stored rotated"
    return Plan(what, _FusedRotation, {"_relpos_rotation": found})


def rotation_of(module: nn.Module, owner: nn.Module) -> tuple[SchemePosition, Callable]:
    """The rotation of relpos with the model's own cosines and sines, and a function that computes
    these from position_ids. Raises Unfused if relpos has no such rotation."""
    rotary = getattr(owner, "rotary_emb", None)
    parameters = getattr(owner.config, "rope_parameters", None)
    if rotary is None or not parameters:
        raise Unfused("no rotary_emb beside its layers: the model rotates", attention=True)
    of_layer: tuple = ()
    if "rope_type" not in parameters:  # a rotation for each type of layer
        of_layer = (module.layer_type,)
        parameters = parameters[module.layer_type]
    if any(buffer.is_meta for buffer in rotary.buffers()):  # its numbers are still to come
        rotary = type(rotary)(rotary.config)

    def rotate(position_ids: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return rotary(torch.zeros(1, 1, 1), position_ids, *of_layer)

    position_ids = torch.tensor([[0, 1, 2, 3, 1000, 1001, 1002, 1003]])
    cos, sin = rotate(position_ids)
    head_dim = module.head_size if hasattr(module, "head_size") else module.head_dim
    for dims in (cos.shape[-1], 2 * cos.shape[-1]):  # tables of each dim, or of each pair (GPT-OSS)
        try:
            found = rotation(parameters, head_dim, min(dims, head_dim), "half", STATIC)
        except ValueError as error:
            raise Unfused(f"{error}: the model rotates", attention=True) from None
        if gives(found, position_ids, cos, sin):
            return found, rotate
    raise Unfused("its angles are not those of relpos.RoPE: the model rotates", attention=True)


ADAPTERS = [
    Adapter(
        (
            "LlamaAttention",
            "MistralAttention",
            "Qwen2Attention",
            "Qwen3Attention",
            "GemmaAttention",
            "Gemma2Attention",
            "Gemma3Attention",
            "PhiAttention",
            "Phi3Attention",
            "GPTNeoXAttention",
            "GptOssAttention",
        ),
        _plan,
    )
]
