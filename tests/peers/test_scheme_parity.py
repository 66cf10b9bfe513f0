"""Schemes against the code of others: by our formulas (tests/oracles) and by relpos, forward and
backward. `published.py` makes the calls; all of their arithmetic is in double, so that every CPU
gives the same. Rotations in float32 are compared, too: there the other code's angles are float32.
"""

from functools import cache

import pytest
import relpos
import torch

from tests.peers.parity import EVERY
from tests.peers.published import by_relpos, pulled
from tests.support.near import close
from tests.support.oracle import (
    Part,
    allowed_pairs,
    attend,
    gradients,
    place_of,
    positions,
    registry,
)
from tests.support.peer_modes import Float32Angles, Float64

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("one_thread")]

HERE = ("transformers", "")  # packages, of which "" is a formula
PEERS = {n: peer for n, peer in EVERY.items() if peer.package in HERE and not peer.old}
DOUBLE, FLOAT32 = "double", "float32"  # angles of the other code, and of rotations here
BOUND = 1e-10

# Peers whose angles are float32 in their own code.
_SCHEMES = {s.name for s in relpos.schemes() if any(o.name == "angle" for o in s.options)}
ROTATING = [name for name, origin in PEERS.items() if origin.package and origin.scheme in _SCHEMES]
# Where float32 angles are not the module's to the bit, since the order of roundings is another: a
# frequency divided by the factor, and the power multiplied by it; a float32 base of a dynamic
# length; coordinates times 2 pi. Two roundings are 2^-23 of an angle, which is at most 40.
ROUNDED = dict.fromkeys(
    [
        "RoPE, dynamic, long",
        "YaRN as in DeepSeek",
        "LongRoPE, long",
        "RoPE of DINOv3",
        "RoPE of DINOv3 after [CLS] and registers",
    ],
    2e-6,
)
CALLS = [(name, DOUBLE) for name in PEERS] + [(name, FLOAT32) for name in ROTATING]
of_calls = pytest.mark.parametrize(("name", "angle"), CALLS, ids=lambda x: x)


@cache
def peer_of(name, angle=DOUBLE):
    with Float64() if angle == DOUBLE else Float32Angles():
        peer = PEERS[name]()
    if name in ROTATING:
        peer.options = peer.options | {"angle": angle}
    return peer


def seed_of(peer):
    draw = torch.Generator().manual_seed(11)
    return torch.randn(peer.out.shape, generator=draw, dtype=torch.float64)


def compare(peer, out, leaves, bound):
    close(out.double(), peer.out, bound, "out")
    seed = seed_of(peer)
    found = pulled(peer, gradients([out], [seed.to(out.dtype)], leaves))
    expected = torch.autograd.grad(peer.out, peer.leaves, seed, retain_graph=True)
    for n, (got, want) in enumerate(zip(found, expected, strict=True)):
        close(got / want.abs().max(), want / want.abs().max(), bound, f"gradient of leaf {n}")


def fresh(held, dtype=torch.float64):
    return {
        name: x.detach().to(dtype).requires_grad_() if x.is_floating_point() else x
        for name, x in held.items()
    }


def trained(inputs):
    return [x for x in inputs.values() if x.is_floating_point()]


def bound_of(name, angle):
    return ROUNDED.get(name, BOUND) if angle == FLOAT32 else BOUND


@of_calls
def test_formula(name, angle):
    peer = peer_of(name, angle)
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
    compare(peer, out, leaves, bound_of(name, angle))


@of_calls
def test_relpos(name, angle):
    peer = peer_of(name, angle)
    compare(peer, *by_relpos(peer, torch.float64), bound_of(name, angle))


@pytest.mark.parametrize("name", PEERS)
def test_relpos_in_float32(name):
    """Roundings are ours alone: some 70 of numbers up to 10, of 2^-24 each."""
    peer = peer_of(name)
    compare(peer, *by_relpos(peer, torch.float32), 5e-5)
