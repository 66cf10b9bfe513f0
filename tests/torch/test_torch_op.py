"""Derivatives of scores and rotations, against finite differences, and opcheck."""

import pytest
import relpos
import torch
from relpos._call.call import Call
from relpos._position.part import text_of

from tests.support.scheme_variants import HEADS, bound, build, every_scheme, randomised, tensors

pytestmark = pytest.mark.usefixtures("one_thread")


@every_scheme
def test_gradcheck_of_scores(name, scheme, options):
    query, key, _ = tensors(queries=3, keys=5)

    def run(position, query, key):
        return relpos.scores(query, key, position=position, q_offset=2)

    call, parameters = bound(randomised(build(scheme, options)), run)
    assert torch.autograd.gradcheck(call, (query, key, *parameters), nondet_tol=0.0)


@pytest.mark.parametrize("positions", [None, torch.tensor([3, 0, 9, 1, 1])])
def test_gradcheck_of_rotate(positions):
    query = tensors()[0]
    position = relpos.RoPE(query.shape[-1], layout="half")
    assert torch.autograd.gradcheck(lambda x: position.rotate(x, 0, positions), (query,))
    assert torch.autograd.gradgradcheck(lambda x: position.rotate(x, 0, positions), (query,))


def test_gradcheck_of_scores_with_a_mask_and_a_softcap():
    query, key, _ = tensors(queries=4, keys=6)
    for shape in ((2, 2, 4, 6), (1, 1, 1, 6), (4, 6)):
        mask = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for softcap in (None, 0.9):

            def run(query, key, mask):
                return relpos.scores(query, key, attn_mask=mask, softcap=softcap)  # noqa: B023

            assert torch.autograd.gradcheck(run, (query, key, mask), nondet_tol=0.0)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated")
def test_opcheck():
    query, key, value = tensors()
    position = randomised(relpos.BiasRPE(HEADS, 4))
    table = position.biases
    mask = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    call = Call(
        attn_mask=mask,
        position=text_of(position),
        is_causal=True,
        scale=0.5,
        window=[3, 1],
        q_offset=0,
        parameters=[table],
    )
    with torch.no_grad():
        out, lse, softmax = torch.ops.relpos.attention(query, key, value, *call)
    grid = (text_of(position), 5, 5, 0, "key", [table])
    for name, args in {
        "attention": (query, key, value, *call),
        "attention_backward": (
            *(query, key, value, out, softmax, torch.ones_like(out), torch.ones_like(lse)),
            *([True, False, True, True, True], *call),
        ),
        "weights": (query, key, softmax, *call),
        "scores": (query, key, *call),
        "scores_backward": (query, key, mask.new_ones(2, 2, 5, 5), [True] * 4, *call),
        "dense": grid,
        "dense_backward": (mask.new_ones(HEADS, 5, 5), [True], *grid),
        "rotate": (query, text_of(relpos.RoPE(4, layout="half")), 3, None, False, []),
    }.items():
        if name.endswith("backward"):  # differentiating those raises
            args = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, args)
        results = torch.library.opcheck(getattr(torch.ops.relpos, name).default, args)
        assert set(results.values()) == {"SUCCESS"}, (name, results)
