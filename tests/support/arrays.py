"""Calls of relpos.numpy and relpos.jax beside the same through torch."""

import random

import ml_dtypes
import numpy as np
import relpos
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


X = np.zeros((1, 2, 6, 8), np.float32)
# Of a call of X: options that are refused, the error, and its words.
REFUSED = [
    ({"position": relpos.ALiBi(2)}, TypeError, "position: expected None or a text"),
    ({"position": "t6(heads=2)"}, ValueError, "t5"),
    ({"position": "t5(heads=2)"}, ValueError, r"t5.relative_attention_bias.weight \[32, 2\]"),
    (
        {"position": "t5(heads=2)", "parameters": [X]},
        ValueError,
        r"t5: relative_attention_bias.weight: expected \[32, 2\], got \[1, 2, 6, 8\]",
    ),
    ({"dropout_p": 0.5}, TypeError, "seed: expected an int where dropout_p is above 0"),
    ({"dropout_p": 2}, ValueError, "0 <= dropout_p <= 1"),
    ({"key_padding_mask": X}, TypeError, "key_padding_mask: expected bool, got float32"),
    ({"attn_mask": [1]}, TypeError, "attn_mask: expected an array .*got list"),
    ({"attn_mask": X}, ValueError, "attn_mask: "),
    ({"is_causal": 1}, TypeError, "is_causal: expected a bool"),
    ({"casual": True}, TypeError, r"attention\(\) got an unexpected keyword argument 'casual'"),
    ({"sinks": X}, ValueError, r"sinks: expected \[2\] or \[1, 2, 6\]"),
    ({"q_positions": np.arange(6)}, ValueError, "give both q_positions and k_positions"),
    ({"softcap": -1.0}, ValueError, "softcap: expected a number from"),
]


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
