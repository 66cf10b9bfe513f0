"""First derivatives of everything, against finite differences, and opcheck."""

import contextlib
import copy

import pytest
import relpos
import torch
from relpos import _ops
from relpos._call import Call
from scheme_variants import HEAD_DIM, HEADS, IDS, VARIANTS, bound, build, randomised, tensors
from torch.utils._pytree import tree_leaves

every_scheme = pytest.mark.parametrize(("name", "scheme", "options"), VARIANTS, ids=IDS)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Calls this small are quickest, on a busy machine too, without waking the pool."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@every_scheme
@pytest.mark.parametrize("setting", ["plain", "causal", "masks"])
def test_gradcheck(name, scheme, options, setting):
    batch = 2 if setting == "masks" else 1  # where rows of a batch differ, and meet in a table
    query, key, value = tensors(batch, queries=4, keys=6)
    extra = {"q_offset": 2}
    if setting == "causal":
        extra |= {"is_causal": True, "window": (3, -1)}
    if setting == "masks":
        padding = torch.zeros(2, 6, dtype=torch.bool)
        padding[0, 4:] = True
        mask = torch.ones(4, 6, dtype=torch.bool)
        mask[1, ::2] = False
        mask[2] = False
        extra |= {"key_padding_mask": padding, "attn_mask": mask}
    position = randomised(build(scheme, options))

    def run(position, query, key, value):
        out, lse = relpos.attention(query, key, value, position=position, return_lse=True, **extra)
        return out, lse.masked_fill(lse.isinf(), 0.0)

    call, parameters = bound(position, run)
    inputs = (query, key, value, *parameters)
    assert torch.autograd.gradcheck(call, inputs, nondet_tol=0.0)


@every_scheme
def test_gradcheck_of_scores(name, scheme, options):
    query, key, _ = tensors(queries=3, keys=5)

    def run(position, query, key):
        return relpos.scores(query, key, position=position, q_offset=2)

    call, parameters = bound(randomised(build(scheme, options)), run)
    assert torch.autograd.gradcheck(call, (query, key, *parameters), nondet_tol=0.0)


@every_scheme
def test_gradcheck_of_dense(name, scheme, options):
    position = randomised(build(scheme, options))
    forms = ["key"]
    with contextlib.suppress(ValueError):  # raised where there is no value table
        position.dense(4, 6, q_offset=2, which="value")
        forms.append("value")
    for which in forms:

        def dense(p):
            return tuple(tree_leaves(p.dense(4, 6, q_offset=2, which=which)))  # noqa: B023

        call, parameters = bound(position, dense)
        if parameters:
            assert torch.autograd.gradcheck(call, tuple(parameters), nondet_tol=0.0)


@pytest.mark.parametrize("positions", [None, torch.tensor([3, 0, 9, 1, 1])])
def test_gradcheck_of_rotate(positions):
    query = tensors()[0]
    position = relpos.RoPE(HEAD_DIM, layout="half")
    assert torch.autograd.gradcheck(lambda x: position.rotate(x, 0, positions), (query,))
    assert torch.autograd.gradgradcheck(lambda x: position.rotate(x, 0, positions), (query,))


def test_gradcheck_of_a_floating_mask():
    query, key, value = tensors(queries=4, keys=6)
    for shape in ((2, 2, 4, 6), (1, 1, 1, 6), (4, 6)):
        mask = torch.randn(shape, dtype=torch.float64, requires_grad=True)

        def run(query, key, value, mask):
            return relpos.attention(query, key, value, attn_mask=mask, return_lse=True)

        assert torch.autograd.gradcheck(run, (query, key, value, mask), nondet_tol=0.0)

        def run_scores(query, key, mask):
            return relpos.scores(query, key, attn_mask=mask)

        assert torch.autograd.gradcheck(run_scores, (query, key, mask), nondet_tol=0.0)


def test_gradcheck_with_grouped_heads_and_offsets_per_row():
    query, key, value = tensors(heads=2, queries=4, keys=6)
    key, value = (x[:, :1].detach().requires_grad_() for x in (key, value))
    offsets = torch.tensor([2, 0])
    position = randomised(relpos.T5Bias(2, buckets=4, max_distance=6))

    def run(position, query, key, value):
        return relpos.attention(
            query,
            key,
            value,
            position=position,
            enable_gqa=True,
            is_causal=True,
            q_offset=offsets,
            return_lse=True,
        )

    call, parameters = bound(position, run)
    assert torch.autograd.gradcheck(call, (query, key, value, *parameters), nondet_tol=0.0)


@every_scheme
def test_float32_gradients_follow_float64(name, scheme, options):
    position = randomised(build(scheme, options))
    wide = tensors(queries=9, keys=9)
    narrow = [x.detach().float().requires_grad_() for x in wide]
    twin = copy.deepcopy(position).float()
    for inputs, p in ((wide, position), (narrow, twin)):
        relpos.attention(*inputs, position=p, is_causal=True).square().sum().backward()
    for a, b in zip((*wide, *position.parameters()), (*narrow, *twin.parameters()), strict=True):
        torch.testing.assert_close(b.grad, a.grad.float(), rtol=1e-4, atol=1e-5)


def op_call(name):
    """Arguments of an operator, tensors with requires_grad, as opcheck wants them."""
    query, key, value = tensors()
    position = randomised(relpos.BiasRPE(HEADS, 4))
    table = position.biases
    mask = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    call = Call(
        attn_mask=mask,
        position=position._text,
        is_causal=True,
        scale=0.5,
        window=[3, 1],
        q_offset=0,
        parameters=[table],
    )
    with torch.no_grad():
        out, lse, softmax = _ops.attention(query, key, value, *call)
    grid = (position._text, 5, 5, 0, "key", [table])
    calls = {
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
        "rotate": (query, relpos.RoPE(4, layout="half")._text, 3, None, False, []),
    }
    return getattr(_ops, name), calls[name]


@pytest.mark.parametrize(
    "name",
    [
        *("attention", "attention_backward", "weights", "scores", "scores_backward"),
        *("dense", "dense_backward", "rotate"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated")
def test_opcheck(name):
    operator, args = op_call(name)
    if name.endswith("backward"):  # differentiating those raises
        args = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, args)
    results = torch.library.opcheck(operator, args)
    assert set(results.values()) == {"SUCCESS"}, results
