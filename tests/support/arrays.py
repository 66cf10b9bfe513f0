"""Calls of relpos.numpy and relpos.jax beside the same through torch."""

import random

import ml_dtypes
import numpy as np
import relpos.numpy as rn
import torch

from tests.support.call import Call
from tests.support.cases import every_value, factors, positions_to_try

CASES = every_value(factors(("any",)), random.Random(5))


def cases_of(scheme, count):
    """The first cases whose position is one of a key of positions_to_try."""
    of = set(positions_to_try()[scheme])
    return [case for case in CASES if case["position"] in of][:count]


def array(tensor):
    """The same memory; bfloat16 as ml_dtypes has it."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def arrays(value):
    if isinstance(value, torch.Tensor):
        return array(value)
    return tuple(arrays(x) for x in value) if isinstance(value, tuple) else value


def same(name, got, want):
    want, got = array(want), np.asarray(got)
    assert got.dtype == want.dtype, name
    assert got.shape == want.shape, name
    assert got.tobytes() == np.ascontiguousarray(want).tobytes(), name


def parameters_of(call):
    """A position's text, and [(name among the results, tensor)] of what it is given."""
    given, texts = [], []
    for n, (module, inputs) in enumerate(zip(call.modules, call.given, strict=True)):
        held = dict(module.named_parameters())
        specs = rn.parameters(module._text)
        own = [(spec.name, held.get(spec.name, inputs.get(spec.name))) for spec in specs]
        given += [(f"gradient of part {n} {name}", tensor) for name, tensor in own]
        texts.append(module._text)
    return "+".join(texts) or None, given


class ArrayCall:
    """One case: what it gives through torch, and its arguments as arrays."""

    def __init__(self, case, number):
        self.call = call = Call(case | {"seed": number, "wants": "all", "tables": "own"})
        if any(b.dtype != call.dtype for m in call.modules for b in m.buffers()):
            for module in call.modules:  # fixed values of arrays are float32 or float64
                module.to(torch.float64 if call.dtype == torch.float64 else torch.float32)
        self.want, *_ = call.computed()
        torch.manual_seed(call.case["seed"])
        seed = int(torch.randint(2**63 - 1, ()))
        text, self.given = parameters_of(call)
        self.inputs = [array(x) for x in call.inputs]
        self.options = {n: arrays(x) for n, x in call.keywords().items() if n != "position"} | {
            "position": text,
            "parameters": [array(tensor) for _, tensor in self.given],
            "dropout_p": call.case["dropout"],
            "seed": seed,
        }
        self.dout = array(call.dout)
        dlse = call.dlse
        self.dlse = None if dlse is None else array(dlse.to(self.want["lse"].dtype))

    def same_gradients(self, query, key, value, parameters, attn_mask):
        for name, got in zip("qkv", (query, key, value), strict=True):
            same(name, got, self.want[f"gradient of {name}"])
        for (name, tensor), got in zip(self.given, parameters, strict=True):
            if tensor.is_floating_point():
                same(name, got, self.want[name])
        if self.call.added is not None:
            same("attn_mask", attn_mask, self.want["gradient of attn_mask"])
