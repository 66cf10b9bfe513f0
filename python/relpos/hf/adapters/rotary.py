"""Rotations of the catalogue with the cosines and sines of a model: for adapters whose classes do
not call the attention interface. Other classes that rotate are judged by their form.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from relpos._position.classes import CLASSES
from relpos._position.position import SchemePosition
from relpos._position.rope_config import STATIC, rotation
from relpos.hf._adapter import Unfused
from relpos.hf._rotation import gives
from relpos.hf._trial import copied, numbers


def tables_of(module: nn.Module, owner: nn.Module) -> Callable:
    """A function of position_ids: the cosines and sines of the model. It calls a copy of the
    model's rotary module, since some of them keep the longest length that they have seen."""
    rotary = getattr(owner, "rotary_emb", None)
    if rotary is None or not _parameters(owner):
        raise Unfused("no rotary_emb beside its layers", attention=False)
    of_layer = () if "rope_type" in _parameters(owner) else (module.layer_type,)
    if any(buffer.is_meta for buffer in rotary.buffers()):  # its numbers are still to come
        rotary = type(rotary)(rotary.config)
    else:
        rotary = copied(rotary).float()
    return lambda position_ids: rotary(torch.zeros(1, 1, 1), position_ids, *of_layer)


def _parameters(owner: nn.Module) -> dict[str, Any]:
    return getattr(owner.config, "rope_parameters", None) or {}


def rotation_of(module: nn.Module, owner: nn.Module, rotate: Callable) -> SchemePosition:
    """The rotation of relpos with the cosines and sines that `rotate` gives. Raises Unfused if
    relpos has no such rotation."""
    parameters = _parameters(owner)
    if "rope_type" not in parameters:  # a rotation for each type of layer
        parameters = parameters[module.layer_type]
    probes = [[0, 1, 2, 3, 1000, 1001, 1002, 1003]]
    probes += [[n - 1, n, n + 1] for n in numbers(module, owner.config)[-1:]]
    tables = [(at, *rotate(at)) for at in (torch.tensor([each]) for each in probes)]
    dims = tables[0][1].shape[-1]
    head_dim = module.head_size if hasattr(module, "head_size") else module.head_dim
    for rotary_dim in (dims, 2 * dims):  # tables of each dim, or of each pair (GPT-OSS)
        try:
            name, asked = rotation(parameters, head_dim, min(rotary_dim, head_dim), "half", STATIC)
            found = CLASSES[name](**asked)
        except ValueError as error:
            raise Unfused(f"{error}: the model rotates", attention=True) from None
        if all(gives(found, *each) for each in tables):
            return found
    raise Unfused("its angles are not those of relpos.RoPE: the model rotates", attention=True)
