"""Schemes against the code of others: by our formulas (tests/oracles) and by relpos, forward and
backward. `published.py` makes the calls."""

from functools import cache

import pytest
import relpos
import torch
from oracle import Part, allowed_pairs, attend, gradients, place_of, positions, registry
from published import PEERS as MODELS
from published_coordinates import PEERS as COORDINATES
from published_rotations import PEERS as ROTATIONS
from published_tables import PEERS as TABLES

pytestmark = pytest.mark.usefixtures("one_thread")

PEERS = MODELS | ROTATIONS | TABLES | COORDINATES
peer_of = cache(lambda name: PEERS[name]())


def seed_of(peer):
    draw = torch.Generator().manual_seed(11)
    return torch.randn(peer.out.shape, generator=draw, dtype=torch.float64)


def pulled(peer, grads):
    """Gradients of the peer's leaves from those of q, k, v, the parameters and the inputs."""
    tensors = [*peer.qkv, *peer.parameters.values(), *trained(peer.inputs)]
    return torch.autograd.grad(tensors, peer.leaves, [g.double() for g in grads], retain_graph=True)


def compare(peer, out, leaves, tolerance):
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(out.double(), peer.out, **close)
    seed = seed_of(peer)
    found = pulled(peer, gradients([out], [seed.to(out.dtype)], leaves))
    expected = torch.autograd.grad(peer.out, peer.leaves, seed, retain_graph=True)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got / want.abs().max(), want / want.abs().max(), **close)


def fresh(held, dtype=torch.float64):
    return {
        name: x.detach().to(dtype).requires_grad_() if x.is_floating_point() else x
        for name, x in held.items()
    }


def trained(inputs):
    return [x for x in inputs.values() if x.is_floating_point()]


@pytest.mark.parametrize("name", PEERS)
def test_formula(name):
    peer = peer_of(name)
    q, k, v = (x.detach().requires_grad_() for x in peer.qkv)
    fixed = dict(registry()[peer.scheme](**peer.options).named_buffers())
    parameters = fresh(peer.parameters)
    part = Part(peer.scheme, peer.options, fixed | parameters, fresh(peer.inputs))
    call = dict(peer.call)
    limits = ("is_causal", "window", "key_padding_mask")
    bounds = {name: call.pop(name) for name in limits if name in call}
    scale, softcap = call.pop("scale", q.shape[-1] ** -0.5), call.pop("softcap", None)
    place = place_of([(peer.scheme, peer.options)])
    pos_q, pos_k = positions(q.shape[0], q.shape[2], k.shape[2], **call, place=place)
    seen = allowed_pairs(pos_q, pos_k, heads=q.shape[1], **bounds)
    out = attend(q, k, v, [part], pos_q, pos_k, seen, scale=scale, softcap=softcap).out
    leaves = [q, k, v, *parameters.values(), *trained(part.inputs)]
    compare(peer, out, leaves, peer.tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", PEERS)
def test_relpos(name, dtype):
    peer = peer_of(name)
    if peer.scheme not in registry():
        pytest.skip(f"this build of relpos has no {peer.scheme}")
    module = registry()[peer.scheme](**peer.options).to(dtype)
    module.load_state_dict({n: x.detach().to(dtype) for n, x in peer.parameters.items()})
    inputs = fresh(peer.inputs, dtype)
    leaves = [x.detach().to(dtype).requires_grad_() for x in peer.qkv]
    position = module(*inputs.values()) if inputs else module
    out = relpos.attention(*leaves, position=position, **peer.call)
    held = dict(module.named_parameters())
    leaves += [held[n] for n in peer.parameters] + trained(inputs)
    compare(peer, out, leaves, peer.tolerance if dtype == torch.float64 else 5e-5)
