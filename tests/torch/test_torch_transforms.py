"""The operators under functorch, checkpoint, autocast, inference mode, pickle."""

import copy
import io
import pickle

import pytest
import relpos
import torch
from relpos import _core
from relpos._call.call import Call
from relpos._position.part import text_of
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from tests.support.near import close, close_with_gradients
from tests.support.scheme_variants import (
    HEAD_DIM,
    HEADS,
    bound,
    build,
    every_scheme,
    randomised,
    tensors,
)
from tests.support.steps import same_bits

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated"),
]


def loss_of(position):
    return lambda q, k, v: relpos.attention(q, k, v, position=position).square().sum()


@pytest.fixture
def table():
    return randomised(relpos.BiasRPE(HEADS, 4))


STARTS, SLOPES, GATE = torch.tensor([0, 2, 5]), torch.tensor([0.5, 0.1]), relpos.ForgettingGate()


def drawn(*shape):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def by_table(name):
    """Attention or scores with a table, which is a leaf."""
    call, parameters = bound(
        randomised(relpos.BiasRPE(HEADS, 4)),
        lambda position, *x: getattr(relpos, name)(*x, position=position, is_causal=True),
    )
    return call, [*tensors()[: 3 if name == "attention" else 2], *parameters]


CALLS = {  # a function, and its leaves
    "attention": by_table("attention"),
    "scores": by_table("scores"),
    "a mask": (
        lambda q, k, v, mask: relpos.attention(q, k, v, attn_mask=mask),
        [*tensors(), drawn(2, 1, 5, 5)],
    ),
    "sinks": (
        lambda q, k, v, sinks: relpos.attention(q, k, v, sinks=sinks, softcap=2.0, window=(3, 1)),
        [*tensors(), drawn(HEADS)],
    ),
    "inputs": (
        lambda q, k, v, log_f: relpos.attention(q, k, v, position=GATE(log_f), is_causal=True),
        [*tensors(), drawn(2, HEADS, 5)],
    ),
    "sdpa": (lambda q, k, v: relpos.sdpa(q, k, v, is_causal=True), tensors()),
    "flash_attn_func": (
        lambda q, k, v: relpos.flash_attn_func(q, k, v, causal=True, alibi_slopes=SLOPES),
        [drawn(2, 5, HEADS, HEAD_DIM) for _ in range(3)],
    ),
    "merge": (
        lambda q, k, v: relpos.merge(
            *zip(
                relpos.attention(q, k, v, return_lse=True),
                relpos.attention(q, v, k, return_lse=True),
                strict=True,
            )
        )[0],
        tensors(),
    ),
    "attention_varlen": (
        lambda q, k, v: relpos.attention_varlen(q, k, v, STARTS, is_causal=True, window=(3, 0)),
        [drawn(5, HEADS, HEAD_DIM) for _ in range(3)],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_compiled_and_func_grad(name):
    torch._dynamo.reset()
    call, leaves = CALLS[name]
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    close_with_gradients(compiled(*leaves), call(*leaves), leaves)

    def loss(*x):
        return call(*x).square().sum()

    every = tuple(range(len(leaves)))
    found = torch.func.grad(loss, argnums=every)(*(x.detach() for x in leaves))
    same_bits(found, torch.autograd.grad(loss(*leaves), leaves))


@pytest.mark.parametrize("name", CALLS)
def test_vmap(name):
    """Over all arguments, and over each alone, with gradients."""
    call, leaves = CALLS[name]
    many = [torch.stack([x, 1.5 * x, -x]).detach().requires_grad_() for x in leaves]
    count = len(leaves)
    for mapped in (range(count), *([n] for n in range(count))):
        given = [many[n] if n in mapped else leaves[n] for n in range(count)]
        dims = tuple(0 if n in mapped else None for n in range(count))
        rows = [[x[s] if n in mapped else x for n, x in enumerate(given)] for s in range(3)]
        want = torch.stack([call(*row) for row in rows])
        close_with_gradients(torch.vmap(call, in_dims=dims)(*given), want, given)


def test_transforms_inside_a_compiled_region(table):
    torch._dynamo.reset()
    query, key, value = (x.detach() for x in tensors())
    table.requires_grad_(False)

    def gradient(q):
        return torch.func.grad(loss_of(table), argnums=(0, 1))(q, key, value)

    def tangent(q):
        return torch.func.jvp(lambda q: loss_of(table)(q, key, value), (q,), (q,))

    def mapped(q):
        return torch.vmap(lambda q: relpos.attention(q, key, value, position=table))(q[None])

    for run in (gradient, mapped):
        close(torch.compile(run, backend="aot_eager")(query), run(query))
    with pytest.raises(Exception, match=r"(?i)jvp|forward.mode|jacobian-vector"):
        torch.compile(tangent, backend="aot_eager")(query)


def test_vmap_of_other_axes_masks_and_offsets(table):
    query, key, value = (x.detach() for x in tensors())
    many = torch.stack([query, 2 * query, -query])
    options = {"position": table, "is_causal": True}
    for shape in ((1, 1, 5, 5), (2, 1, 5, 5), (5, 5)):
        mask = torch.randn(shape, dtype=torch.float64)

        def one(q):
            return relpos.attention(q, key, value, attn_mask=mask, **options)  # noqa: B023

        same_bits(torch.vmap(one, in_dims=2)(many.movedim(0, 2)), [one(q) for q in many])
    padding = torch.rand(3, 2, 5) < 0.3

    def padded(q, pad):
        return relpos.attention(q, key, value, key_padding_mask=pad, return_lse=True, **options)

    for found, want in zip(
        torch.vmap(padded)(many, padding),
        zip(*map(padded, many, padding), strict=True),
        strict=True,
    ):
        same_bits(found, want)

    def offset(q, o):
        return relpos.scores(q, key, position=table, q_offset=o)

    got = torch.vmap(offset)(many, torch.tensor([0, 1, 2]))
    same_bits(got, [offset(q, n) for n, q in enumerate(many)])


@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
@pytest.mark.parametrize("name", ["q_offset", "positions"])
def test_each_call_of_vmap_has_its_own_length(name, dropout_p):
    """On which the frequencies of rope_dynamic depend, beyond the positions of training."""
    options = {"layout": "half", "factor": 2.0, "max_position_embeddings": 4}
    position = relpos.DynamicRoPE(4, **options)
    query, key, value = (torch.randn(3, 2, 2, 5, 4, dtype=torch.float64) for _ in range(3))

    def one(q, k, v, start):
        where = {"q_offset": start}
        if name == "positions":
            where = {"q_positions": torch.arange(5) + start, "k_positions": torch.arange(5)}
        torch.manual_seed(0)
        return relpos.attention(q, k, v, position=position, dropout_p=dropout_p, **where)

    starts = torch.tensor([0, 7, 300])
    got = torch.vmap(one, randomness="same")(query, key, value, starts)
    same_bits(got, [one(*row) for row in zip(query, key, value, starts, strict=True)])


def test_calls_of_vmap_that_stand_far_apart():
    """A table of the distances of all of them would have 2^28 numbers, and is refused."""
    position = relpos.KerpleLog(2)
    query, key, value = (torch.randn(3, 1, 2, 5, 4) for _ in range(3))

    def one(q, k, v, start):
        return relpos.attention(q, k, v, position=position, q_offset=start)

    starts = torch.tensor([0, 7, 2**28])
    got = torch.vmap(one)(query, key, value, starts)
    same_bits(got, [one(*row) for row in zip(query, key, value, starts, strict=True)])
    assert torch.vmap(one)(query[:0], key[:0], value[:0], starts[:0]).shape == (0, 1, 2, 5, 4)


def test_forward_mode_raises(table):
    query, key, value = (x.detach() for x in tensors())

    def attended(q):
        return loss_of(table)(q, key, value)

    def jvp(function):
        return torch.func.jvp(function, (query,), (query,))

    def dual():
        with forward_ad.dual_level():
            relpos.attention(forward_ad.make_dual(query, torch.ones_like(query)), key, value)

    for name, run in {
        "jvp of attention": lambda: jvp(attended),
        "jvp of scores": lambda: jvp(lambda q: relpos.scores(q, key).sum()),
        "jvp of a gradient": lambda: jvp(torch.func.grad(attended)),
        "a dual number": dual,
        "jacfwd": lambda: torch.func.jacfwd(attended)(query),
        "hessian": lambda: torch.func.hessian(attended)(query),
    }.items():
        with pytest.raises(Exception, match=r"(?i)jvp|forward.mode|jacobian-vector"):
            pytest.fail(f"{name} gave {run()}")


@pytest.mark.parametrize("function", ["attention", "scores", "dense"])
def test_second_derivatives_raise(function, table):
    query, key, value = tensors()
    calls = {
        "attention": lambda: relpos.attention(query, key, value, position=table).sum(),
        "scores": lambda: relpos.scores(query, key, position=table).square().sum(),
        "dense": lambda: table.dense(5, 5).square().sum(),
    }
    leaf = table.biases if function == "dense" else query
    # The gradient of a plain sum does not depend on the output, only on what was saved.
    (first,) = torch.autograd.grad(calls[function](), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(first.square().sum() + leaf.square().sum(), leaf)


def test_second_derivatives_raise_under_functorch(table):
    query, key, value = (x.detach() for x in tensors())

    def loss(q):
        return relpos.attention(q, key, value, position=table).sum() + q.square().sum()

    def first(q):
        return torch.func.grad(loss)(q).square().sum()

    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.func.grad(first)(query)


def test_the_operators_are_differentiable_themselves(table):
    query, key, value = tensors()
    call = Call(position=text_of(table), parameters=[table.biases])
    out, lse, _ = torch.ops.relpos.attention(query, key, value, *call)
    got = torch.autograd.grad(out.sum() + lse.sum(), (query, key, value, table.biases))
    out, lse = relpos.attention(query, key, value, position=table, return_lse=True)
    want = torch.autograd.grad(out.sum() + lse.sum(), (query, key, value, table.biases))
    same_bits(got, want)


def test_jacobians(table):
    query, key, value = (x.detach() for x in tensors(batch=1, queries=2, keys=2))

    def run(q):
        return relpos.attention(q, key, value, position=table, is_causal=True)

    leaf = query.clone().requires_grad_()
    want = torch.autograd.functional.jacobian(run, leaf)
    close(torch.func.jacrev(run)(query), want)

    def mapped(q):
        return torch.vmap(run)(q).square().sum()

    want = torch.func.grad(lambda q: run(q).square().sum())(query)
    close(torch.func.grad(mapped)(query[None])[0], want)


def test_gradients_per_sample(table):
    inputs = [x.detach()[:, None] for x in tensors(batch=3)]
    call, (biases,) = bound(table, lambda position, *x: loss_of(position)(*x))
    got = torch.vmap(torch.func.grad(call, argnums=3), in_dims=(0, 0, 0, None))(
        *inputs, biases.detach()
    )
    want = [torch.autograd.grad(call(*row, biases), biases)[0] for row in zip(*inputs, strict=True)]
    close(got, torch.stack(want))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(table, reentrant):
    inputs = tensors()

    def run(q, k, v):
        return relpos.attention(q, k, v, position=table, dropout_p=0.4).square().sum()

    found = []
    for attend in (run, lambda *x: checkpoint(run, *x, use_reentrant=reentrant)):
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        table.zero_grad()
        torch.manual_seed(3)
        attend(*leaves).backward()
        found.append([x.grad.clone() for x in (*leaves, table.biases)])
    same_bits(*found)


@every_scheme
def test_pickle_deepcopy_and_state_dict(name, scheme, options):
    position = randomised(build(scheme, options))
    query, key, value = tensors()
    want = relpos.attention(query, key, value, position=position)
    file = io.BytesIO()
    torch.save(position, file)
    file.seek(0)
    copies = [
        copy.deepcopy(position),
        pickle.loads(pickle.dumps(position)),
        torch.load(file, weights_only=False),
    ]
    fresh = build(scheme, options).double()
    fresh.load_state_dict(position.state_dict())
    for twin in (*copies, fresh):
        assert type(twin) is type(position)
        assert torch.equal(relpos.attention(query, key, value, position=twin), want)


def test_a_module_is_copied_and_pickled_with_its_position(table):
    module = relpos.nn.MultiheadAttention(8, HEADS, position=[table, relpos.ALiBi(HEADS)]).double()
    x = torch.randn(2, 5, 8).double()
    want, _ = module(x, x, x, is_causal=True)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(x, x, x, is_causal=True)[0], want)
        assert twin.position.parts[0].biases is not table.biases


def test_frozen_parameters_cost_no_gradient_work(table, monkeypatch):
    seen = []
    backward = _core.attend_backward

    def record(given, needs, call):
        seen.append(needs)
        return backward(given, needs, call)

    monkeypatch.setattr(_core, "attend_backward", record)
    table.requires_grad_(False)
    query, key, value = tensors()
    key.requires_grad_(False)
    loss_of(table)(query, key, value).backward()
    assert seen == [[True, False, True, False, False]]
    assert table.biases.grad is None
    assert key.grad is None


def test_a_shared_table_adds_gradients(table):
    losses = [loss_of(table)(*tensors(seed=seed)) for seed in (0, 5)]
    first, second, both = (
        torch.autograd.grad(loss, table.biases, retain_graph=True)[0]
        for loss in (*losses, sum(losses))
    )
    assert torch.equal(both, first + second)


def test_lse_alone_and_expanded_gradients():
    query, key, value = tensors()
    _, lse = relpos.attention(query, key, value, return_lse=True)
    lse.sum().backward()
    close(query.grad, torch.softmax(query @ key.mT / 2, -1) @ key / 2)
    assert value.grad is None or not value.grad.any()


def test_autocast_casts_as_sdpa_does():
    inputs = [x.detach().float().requires_grad_() for x in tensors()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = relpos.attention(*inputs)
        sdpa = torch.nn.functional.scaled_dot_product_attention(*inputs)
        mixed = relpos.attention(inputs[0].bfloat16(), *inputs[1:])
        doubles = relpos.attention(*(x.double() for x in inputs))
    assert out.dtype == sdpa.dtype == torch.bfloat16
    assert torch.equal(out, mixed)
    assert doubles.dtype == torch.float64
    out.float().sum().backward()
    assert inputs[0].grad.dtype == torch.float32


@every_scheme
def test_autocast_leaves_every_table_in_float32(name, scheme, options):
    position = randomised(build(scheme, options), torch.float32)
    inputs = [x.detach().float().requires_grad_() for x in tensors()]
    held = [x.dtype for x in position.state_dict().values()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = relpos.attention(*inputs, position=position, is_causal=True)
        narrow = [x.detach().bfloat16() for x in inputs]
        assert torch.equal(out, relpos.attention(*narrow, position=position, is_causal=True))
    assert out.dtype == torch.bfloat16
    out.float().square().sum().backward()
    assert [x.dtype for x in position.state_dict().values()] == held
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in position.parameters())


@every_scheme
def test_inference_mode(name, scheme, options):
    position = randomised(build(scheme, options), torch.float32)
    inputs = [x.detach().float() for x in tensors()]
    call = {"position": position, "is_causal": True, "return_lse": True, "return_weights": True}
    want = relpos.attention(*inputs, **call)
    with torch.inference_mode():
        got = relpos.attention(*inputs, **call)
        made_here = [x + 0 for x in inputs]
        score = relpos.scores(*made_here[:2], position=position)
    assert all(torch.equal(a, b.detach()) for a, b in zip(got, want, strict=True))
    assert all(x.is_inference() and not x.requires_grad for x in (*got, score))
    frozen = copy.deepcopy(position).requires_grad_(False)
    again = relpos.attention(*made_here, **call | {"position": frozen})
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
