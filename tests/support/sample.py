"""Positions and tensors that several tests share; the schemes are those of the registry."""

import torch

from tests.support.cases import MOST_PARTS
from tests.support.oracle import configs_of, exclusive, oracle_of, part_of, registry

HEADS, HEAD_DIM, VALUE_DIM = 4, 8, 6
UNBOUND = [name for name in registry() if not hasattr(oracle_of(name), "inputs")]
PLAIN = [name for name in UNBOUND if "places" not in exclusive(name)]  # tokens at their numbers
BY_TOKENS = [name for name in registry() if not hasattr(oracle_of(name), "seen")]  # not by pairs
NAMES = ["none", *PLAIN, "sum"]  # of `position`


def configurations(heads=HEADS, head_dim=HEAD_DIM, value_dim=VALUE_DIM, names=PLAIN):
    """(scheme, number) of every configuration at these sizes."""
    return [
        (name, number)
        for name in names
        for number, options in enumerate(configs_of(name, heads, head_dim, value_dim))
        if options is not None
    ]


def trained(
    name,
    number=0,
    heads=HEADS,
    head_dim=HEAD_DIM,
    value_dim=VALUE_DIM,
    dtype=None,
    key_heads=None,
):
    """(module, its oracle part) of one configuration, with trained-looking tables."""
    options = configs_of(name, heads, head_dim, value_dim, key_heads)[number]
    module = registry()[name](**options)
    draw = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.7 * torch.randn(parameter.shape, generator=draw))
    module = module.to(dtype) if dtype else module
    return module, part_of(name, options, module)


def position(name, heads=HEADS, head_dim=HEAD_DIM, value_dim=VALUE_DIM, dtype=None):
    """(position, oracle parts) of "none", of a scheme's first configuration, or of a sum."""
    sizes = (heads, head_dim, value_dim, dtype)
    if name == "none":
        return None, []
    if name != "sum":
        module, part = trained(name, 0, *sizes)
        return module, [part]
    modules, parts = zip(*(trained(other, 0, *sizes) for other in summed()), strict=True)
    return sum(modules), list(parts)


def summed():
    """Five schemes: first those that bring a term of a kind that those before them lack."""
    kinds, taken, first, others = set(), set(), [], []
    for name in PLAIN:
        if exclusive(name) & taken:
            continue
        found = set(trained(name)[1].terms(torch.arange(1), torch.arange(1)))
        if not found <= kinds:
            first.append(name)
            taken |= exclusive(name)
        elif not exclusive(name):
            others.append(name)
        kinds |= found
    return (first + others)[:MOST_PARTS]


def tensors(
    batch=1,
    heads=HEADS,
    queries=8,
    keys=8,
    head_dim=HEAD_DIM,
    value_dim=VALUE_DIM,
    key_heads=None,
    dtype=torch.float32,
    seed=0,
):
    """query, key, value, dout."""
    draw = torch.Generator().manual_seed(seed)
    key_heads = key_heads or heads
    shapes = [
        (batch, heads, queries, head_dim),
        (batch, key_heads, keys, head_dim),
        (batch, key_heads, keys, value_dim),
        (batch, heads, queries, value_dim),
    ]
    return [torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype) for shape in shapes]
