"""A case on two processes of torch.distributed, each of which has a shard of every sequence."""

import torch
from relpos import distributed
from relpos.distributed._layout import held, placed

from tests.fuzz.call import FuzzCall
from tests.fuzz.routes import shapes_of
from tests.support.oracle import gradients
from tests.support.ranks import Failed, shared
from tests.support.ring_case import token_axis

SIZE = 2
FUNCTIONS = {"ring": "ring_attention", "ulysses": "ulysses_attention"}


def layout_of(call):
    return ("contiguous", "zigzag", "striped")[call.case["seed"] % 3]


def axes_of(call):
    """{leaf or input: the axis of its tokens}, of those that have one."""
    found = {name: 2 for name in ("q", "k", "v", "out", "lse")}
    for index in range(len(call.given)):
        for name, shape in shapes_of(call, index).items():
            if "queries" in shape or "keys" in shape:
                found[f"part {index} {name}"] = token_axis(shape)
    return found


def on_rank(case):
    """{result: tensor} of this rank, gradients of what all ranks hold its share."""
    call = FuzzCall(case)
    layout, axes = layout_of(call), axes_of(call)

    def shard(x, axis):
        return distributed.shard(x, layout=layout, dim=axis)

    def leaf(name, x):
        own = x.detach() if name not in axes else shard(x.detach(), axes[name])
        return own.clone().requires_grad_(x.requires_grad)

    run = [leaf(name, x) for name, x in zip("qkv", call.run, strict=True)]
    given = [
        {name: leaf(f"part {index} {name}", x) for name, x in own.items()}
        for index, own in enumerate(call.given)
    ]
    options = call.keywords() | {"position": call.position_of(given), "sinks": call.sinks_of(given)}
    for name in ("q_positions", "k_positions", "key_padding_mask"):
        if name in options:
            options[name] = shard(options[name], -1)
    if "key_range" in options:
        options["key_range"] = tuple(shard(bound, -1) for bound in options["key_range"])
    returns = {"return_lse": call.fuzz["lse"] != "none"}
    returns["return_weights"] = call.fuzz["also"] == "weights"
    torch.manual_seed(call.case["seed"])
    function = getattr(distributed, FUNCTIONS[case["route"]])
    with torch.set_grad_enabled(case["wants"] != "nothing"):
        found = function(*run, layout=layout, **options, **returns)
    out, lse = found if isinstance(found, tuple) else (found, None)
    leaves = list(run)
    for module, own in zip(call.modules, given, strict=True):
        leaves += [*module.parameters(), *(x for x in own.values() if x.is_floating_point())]
    seeds = [None if case["lse"] == "alone" else shard(call.dout, 2)]
    if lse is not None:
        seeds.append(None if call.dlse is None else shard(call.dlse, 2).to(lse.dtype))
    grads = gradients([x for x in (out, lse) if x is not None], seeds, leaves)
    results = {"out": out.detach()} | ({} if lse is None else {"lse": lse.detach()})
    for (name, _), grad in zip(call.leaves(), grads, strict=True):
        if grad is not None:
            results[f"gradient of {name}"] = grad
    return results


def computed(call):
    """{result: tensor} of the whole; raises what a rank raised."""
    try:
        shards = shared(SIZE).results(on_rank, case=call.fuzz)
    except Failed as error:
        raise RuntimeError(error.text) from error
    axes, found = axes_of(call), {}
    for name in shards[0]:
        each = [rank[name] for rank in shards]
        axis = axes.get(name.removeprefix("gradient of "))
        found[name] = joined(each, axis, layout_of(call)) if axis is not None else sum(each)
    return found


def joined(shards, axis, layout):
    return placed(shards, held("x", layout, [x.shape[axis] for x in shards]), axis)
