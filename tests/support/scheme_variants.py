"""Small positions of every scheme in the registry, one per value of each option."""

import pytest
import relpos
import torch

HEADS, HEAD_DIM = 2, 4
SIZES = {"heads": HEADS, "head_dim": HEAD_DIM}
FEW = {  # finite differences take a call for each number
    "buckets": 8,
    "features": 12,
    "hidden": 6,
    "width": 6,
}
REACH = {  # of what has no default: some pairs of a short call lie beyond it, or in another row
    "grid": [3.0],
    "max_distance": 3,
    "max_length": 6,
    "positions": 6,
    "span": 6,
    "window": [3.0],
    "window_size": 3,
}


def takes_inputs(scheme, options):
    return any(spec.input for spec in scheme.describe(**options).parameters)


def variants():
    """(test id, class, options), the required options alone first; no scheme that takes inputs."""
    for scheme in relpos.schemes():
        base = scheme.example()
        base |= {name: size for name, size in (SIZES | REACH).items() if name in base}
        base |= {option.name: FEW[option.name] for option in scheme.options if option.name in FEW}
        if takes_inputs(scheme, base):
            continue
        yield scheme.name, scheme, base
        for option in scheme.options:
            values = (False, True) if option.type == "bool" else option.choices
            values = [v for v in values if v != base.get(option.name, option.default)]
            if option.name in SIZES and option.name not in base:
                values = [SIZES[option.name]]
            for value in values:
                options = base | {option.name: value}
                if not takes_inputs(scheme, options):
                    yield f"{scheme.name}-{option.name}={value}", scheme, options


VARIANTS = list(variants())
every_scheme = pytest.mark.parametrize(
    ("name", "scheme", "options"), VARIANTS, ids=[name for name, _, _ in VARIANTS]
)


def build(scheme, options):
    return getattr(relpos, scheme.class_name)(**options)


def tensors(batch=2, heads=HEADS, queries=5, keys=5, dim=HEAD_DIM, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, heads, length, dim) for length in (queries, keys, keys)]
    return [
        torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes
    ]


def randomised(position, dtype=torch.float64, seed=1):
    """Parameters large enough to matter."""
    generator = torch.Generator().manual_seed(seed)
    position = position.to(dtype)
    with torch.no_grad():
        for parameter in position.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=dtype))
    return position


def bound(position, function):
    """`function(position, ...)` as a function of the position's parameters too."""
    names = [name for name, _ in position.named_parameters()]

    class Holder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.position = position

        def forward(self, *args):
            return function(self.position, *args)

    holder = Holder()

    def call(*args):
        count = len(args) - len(names)
        values = {f"position.{n}": v for n, v in zip(names, args[count:], strict=True)}
        return torch.func.functional_call(holder, values, args[:count])

    return call, [p.detach().clone().requires_grad_() for p in position.parameters()]
