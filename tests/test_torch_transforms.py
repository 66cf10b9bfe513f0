"""The operators under functorch, checkpoint, autocast, inference mode, pickle."""

import copy
import io
import pickle

import pytest
import relpos
import torch
from relpos import _ops
from relpos._call import Call
from scheme_variants import HEADS, IDS, VARIANTS, build, randomised, tensors
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

every_scheme = pytest.mark.parametrize(("name", "scheme", "options"), VARIANTS, ids=IDS)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Calls this small are quickest, on a busy machine too, without waking the pool."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def loss_of(position):
    return lambda q, k, v: relpos.attention(q, k, v, position=position).square().sum()


@pytest.fixture
def table():
    return randomised(relpos.BiasRPE(HEADS, 4))


def test_forward_mode_raises(table):
    query, key, value = (x.detach() for x in tensors())
    with pytest.raises(Exception, match=r"(?i)jvp|forward.mode|jacobian-vector"):
        torch.func.jvp(lambda q: loss_of(table)(q, key, value), (query,), (query,))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(query, torch.ones_like(query))
        with pytest.raises(Exception, match=r"(?i)jvp|forward.mode|jacobian-vector"):
            relpos.attention(dual, key, value)
    with pytest.raises(Exception, match=r"(?i)jvp|forward.mode|jacobian-vector"):
        torch.func.jvp(lambda q: relpos.scores(q, key).sum(), (query,), (query,))


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
    with pytest.raises(Exception, match=r"(?i)jvp|forward.mode|jacobian-vector"):
        torch.func.jvp(torch.func.grad(loss), (query,), (query,))


def test_the_operators_are_differentiable_themselves(table):
    query, key, value = tensors()
    call = Call(position=table._text, parameters=[table.biases])
    out, lse, _ = torch.ops.relpos.attention(query, key, value, *call)
    got = torch.autograd.grad(out.sum() + lse.sum(), (query, key, value, table.biases))
    out, lse = relpos.attention(query, key, value, position=table, return_lse=True)
    want = torch.autograd.grad(out.sum() + lse.sum(), (query, key, value, table.biases))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_func_grad_equals_backward(table):
    query, key, value = tensors()
    loss_of(table)(query, key, value).backward()
    got = torch.func.grad(loss_of(table), argnums=(0, 1, 2))(
        *(x.detach() for x in (query, key, value))
    )
    for gradient, leaf in zip(got, (query, key, value), strict=True):
        assert torch.equal(gradient, leaf.grad)


def test_vmap_folds_into_the_batch(table):
    query, key, value = (
        torch.stack([tensors(seed=s)[n].detach() for s in range(3)]) for n in range(3)
    )
    padding = torch.rand(3, 2, 5) < 0.3
    options = {"position": table, "is_causal": True}

    def one(q, k, v, pad):
        return relpos.attention(q, k, v, key_padding_mask=pad, return_lse=True, **options)

    got = torch.vmap(one)(query, key, value, padding)
    want = [one(query[n], key[n], value[n], padding[n]) for n in range(3)]
    for n in range(3):
        assert torch.equal(got[0][n], want[n][0])
        assert torch.equal(got[1][n], want[n][1])
    # One operand mapped, another axis, a mask of the whole batch, a shared one.
    for shape in ((1, 1, 5, 5), (2, 1, 5, 5), (5, 5)):
        mask = torch.randn(shape, dtype=torch.float64)
        moved = query.movedim(0, 2)
        got = torch.vmap(
            lambda q: relpos.attention(q, key[0], value[0], attn_mask=mask, **options),  # noqa: B023
            in_dims=2,
        )(moved)
        for n in range(3):
            want = relpos.attention(query[n], key[0], value[0], attn_mask=mask, **options)
            assert torch.equal(got[n], want)
    got = torch.vmap(lambda q, o: relpos.scores(q, key[0], position=table, q_offset=o))(
        query, torch.tensor([0, 1, 2])
    )
    for n in range(3):
        assert torch.equal(got[n], relpos.scores(query[n], key[0], position=table, q_offset=n))


def test_jacobians(table):
    query, key, value = (x.detach() for x in tensors(batch=1, queries=2, keys=2))

    def run(q):
        return relpos.attention(q, key, value, position=table, is_causal=True)

    leaf = query.clone().requires_grad_()
    want = torch.autograd.functional.jacobian(run, leaf)
    torch.testing.assert_close(torch.func.jacrev(run)(query), want)
    for forward_mode in (torch.func.jacfwd, torch.func.hessian):
        with pytest.raises(Exception, match=r"(?i)jvp|forward.mode|jacobian-vector"):
            forward_mode(lambda q: run(q).sum())(query)

    def mapped(q):
        return torch.vmap(run)(q).square().sum()

    torch.testing.assert_close(
        torch.func.grad(mapped)(query[None])[0],
        torch.func.grad(lambda q: run(q).square().sum())(query),
    )


def test_gradients_per_sample(table):
    query, key, value = (x.detach() for x in tensors(batch=3))
    names = dict(table.named_parameters())

    def loss(parameters, q, k, v):
        holder = copy.copy(table)
        out = torch.func.functional_call(Attend(holder), parameters, (q[None], k[None], v[None]))
        return out.square().sum()

    class Attend(torch.nn.Module):
        def __init__(self, position):
            super().__init__()
            self.position = position

        def forward(self, q, k, v):
            return relpos.attention(q, k, v, position=self.position)

    parameters = {f"position.{n}": p.detach() for n, p in names.items()}
    got = torch.vmap(torch.func.grad(loss), in_dims=(None, 0, 0, 0))(parameters, query, key, value)[
        "position.biases"
    ]
    for n in range(3):
        table.zero_grad()
        loss_of(table)(query[n : n + 1], key[n : n + 1], value[n : n + 1]).backward()
        torch.testing.assert_close(got[n], table.biases.grad)


def test_vmap_over_tables():
    query, key, value = (x.detach() for x in tensors())
    positions = [randomised(relpos.BiasRPE(HEADS, 4), seed=s) for s in range(3)]
    stacked = torch.stack([p.biases.detach() for p in positions])

    class Attend(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.position = positions[0]

        def forward(self):
            return relpos.attention(query, key, value, position=self.position)

    module = Attend()
    got = torch.vmap(lambda t: torch.func.functional_call(module, {"position.biases": t}, ()))(
        stacked
    )
    for n, position in enumerate(positions):
        assert torch.equal(got[n], relpos.attention(query, key, value, position=position))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(table, reentrant):
    inputs = tensors()

    def run(q, k, v):
        return relpos.attention(q, k, v, position=table, dropout_p=0.4).square().sum()

    torch.manual_seed(3)
    run(*inputs).backward()
    want = [x.grad.clone() for x in (*inputs, table.biases)]
    for x in (*inputs, table.biases):
        x.grad = None
    torch.manual_seed(3)
    checkpoint(run, *inputs, use_reentrant=reentrant).backward()
    for x, gradient in zip((*inputs, table.biases), want, strict=True):
        assert torch.equal(x.grad, gradient)


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
    backward = _ops.attention_backward

    def record(*args):
        seen.append(args[7])
        return backward(*args)

    monkeypatch.setattr(_ops, "attention_backward", record)
    table.requires_grad_(False)
    query, key, value = tensors()
    key.requires_grad_(False)
    loss_of(table)(query, key, value).backward()
    assert seen == [[True, False, True, False, False]]
    assert table.biases.grad is None
    assert key.grad is None


def test_a_shared_table_adds_gradients(table):
    query, key, value = tensors()
    other = [x.detach() for x in tensors(seed=5)]
    alone = []
    for inputs in ((query, key, value), other):
        table.zero_grad()
        loss_of(table)(*inputs).backward()
        alone.append(table.biases.grad.clone())
    table.zero_grad()
    (loss_of(table)(query, key, value) + loss_of(table)(*other)).backward()
    torch.testing.assert_close(table.biases.grad, alone[0] + alone[1], rtol=0, atol=0)


def test_lse_alone_and_expanded_gradients():
    query, key, value = tensors()
    _, lse = relpos.attention(query, key, value, return_lse=True)
    lse.sum().backward()
    scores = (query.detach() @ key.detach().mT) / 2
    want = torch.softmax(scores, -1) @ key.detach() / 2
    torch.testing.assert_close(query.grad, want)
    assert value.grad is None or not value.grad.any()


def test_mixed_table_dtypes_keep_their_gradient_dtype():
    for dtype in (torch.bfloat16, torch.float16):
        position = relpos.BiasRPE(HEADS, 4)
        inputs = [x.detach().to(dtype).requires_grad_() for x in tensors()]
        out = relpos.attention(*inputs, position=position)
        assert out.dtype == dtype
        out.float().square().sum().backward()
        assert position.biases.grad.dtype == torch.float32
        assert all(x.grad.dtype == dtype for x in inputs)


def test_autocast_casts_as_sdpa_does():
    position = relpos.BiasRPE(HEADS, 4)
    inputs = [x.detach().float().requires_grad_() for x in tensors()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = relpos.attention(*inputs, position=position)
        sdpa = torch.nn.functional.scaled_dot_product_attention(*inputs)
        mixed = relpos.attention(inputs[0].bfloat16(), *inputs[1:], position=position)
        doubles = relpos.attention(*(x.double() for x in inputs))
    assert out.dtype == sdpa.dtype == torch.bfloat16
    assert torch.equal(out, mixed)
    assert doubles.dtype == torch.float64
    out.float().sum().backward()
    assert position.biases.dtype == position.biases.grad.dtype == torch.float32
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


def test_conjugate_and_negated_views_are_resolved():
    complex_ = torch.randn(1, 2, 5, 4, dtype=torch.complex128)
    negated = complex_.conj().imag
    assert negated.is_neg()
    key, value = (x.detach()[:1] for x in tensors()[1:])
    assert torch.equal(
        relpos.attention(negated, key, value),
        relpos.attention(negated.resolve_neg().clone(), key, value),
    )


def test_meta_tensors_give_shapes():
    query = torch.empty(2, 4, 3, 8, device="meta")
    key, value = torch.empty(2, 4, 5, 8, device="meta"), torch.empty(2, 4, 5, 6, device="meta")
    out, lse, weights = relpos.attention(query, key, value, return_lse=True, return_weights=True)
    assert out.shape == (2, 4, 3, 6)
    assert lse.shape == (2, 4, 3)
    assert weights.shape == (2, 4, 3, 5)
