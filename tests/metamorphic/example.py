"""Random calls, and comparisons of two that should give the same."""

import relpos
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests import FULL
from tests.support.call import Given
from tests.support.oracle import exclusive, gradients, reads_length
from tests.support.promise import promised
from tests.support.sample import configurations, tensors, trained

few = settings(
    max_examples=500 if FULL else 40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
SIZES = {"heads": 4, "head_dim": 8, "value_dim": 6}
LENGTHS = st.sampled_from([1, 2, 5, 16, 17, 33, 64, 65, 97, 130])
SCHEMES = st.sampled_from([("none", 0), *configurations(**SIZES)])


def schemes(holds):
    """Those (name, number) of SCHEMES for which holds(name) is true."""
    return SCHEMES.filter(lambda chosen: holds(chosen[0]))


def pieces(name):
    """A call can be cut: no term depends on its length."""
    return name == "none" or not reads_length(name, {})


def turns(name):
    return name != "none" and "rotates" in exclusive(name)


class Example:
    """One call: tensors, a position and options."""

    def __init__(self, seed, queries, keys, chosen, dtype=torch.float32, batch=2, **options):
        *self.inputs, self.dout = tensors(
            batch=batch, queries=queries, keys=keys, dtype=dtype, seed=seed, **SIZES
        )
        draw = torch.Generator().manual_seed(seed)
        self.dlse = torch.randn(self.dout.shape[:3], generator=draw, dtype=self.dout.dtype)
        found = [trained(name, number, **SIZES, dtype=dtype) for name, number in chosen]
        self.modules = [module for module, _ in found]
        self.parts = [part for _, part in found]
        self.options = options

    @property
    def position(self):
        return sum(self.modules) if self.modules else None

    def run(self, inputs=None, dout=None, dlse=None, **changes):
        """{name: tensor} under the names of `bounds`."""
        q, k, v = (x.detach().requires_grad_() for x in inputs or self.inputs)
        call = {"position": self.position} | self.options | changes
        out, lse = relpos.attention(q, k, v, return_lse=True, **call)
        return self.results(out, lse, (q, k, v), dout, dlse)

    def results(self, out, lse, inputs, dout=None, dlse=None):
        """As of a call, with the gradients of these leaves."""
        named = list(zip("qkv", inputs, strict=True))
        for n, module in enumerate(self.modules):
            named += [(f"part {n} {name}", x) for name, x in module.named_parameters()]
        dout = self.dout if dout is None else dout
        dlse = (self.dlse if dlse is None else dlse).to(lse.dtype)
        found = gradients([out, lse], [dout.to(out.dtype), dlse], [leaf for _, leaf in named])
        results = {"out": out.detach(), "lse": lse.detach()}
        return results | {
            f"gradient of {name}": x for (name, _), x in zip(named, found, strict=True)
        }

    def bounds(self):
        """The most by which each result of `run` may differ from the exact one."""
        leaves = [x.detach().requires_grad_() for x in self.inputs]
        call = Given(leaves, self.parts, self.dout, self.dlse, **self.options)
        return {name: promise.bound for name, promise in promised(call)[0].items()}


def agree(one, other, bounds, times=2):
    """Two results within `times` bounds of each other: each is within one of what is exact."""
    for name, bound in bounds.items():
        if name not in one or name not in other:
            continue
        same = one[name] == other[name]
        apart = (one[name].double() - other[name].double()).abs()
        wrong = ~(same | (apart <= times * bound))
        assert not wrong.any(), f"{name}: {float((apart / bound)[~same].max()):.3g} bounds apart"


def same_bits(one, other, names):
    for name in names:
        assert torch.equal(one[name], other[name]), f"{name} has other bits"
