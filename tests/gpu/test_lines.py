"""Slopes and key biases, and what rows count from."""

import pytest
import relpos
import torch

from tests.gpu.cases import (
    PLAIN,
    assert_the_same_bits_twice,
    drawn_of,
    judged,
    number_of,
    on_the_cpu,
)

POSITIONS = [f"alibi#{n}" for n in range(8)] + ["forgetting#0"]
POSITIONS += ["alibi#4+t5#3", "alibi#3+attention_sink#1", "alibi#7+alibi#3", "forgetting#0+rope#0"]
POSITIONS += ["alibi#3+rope_mixed#0", "alibi#2+music_transformer#0"]


def fitted(cases):
    """Without what a key bias that is known up to a number of each query refuses."""
    for case in cases:
        if "forgetting" in case["position"]:
            case["softcap"] = None
        yield case


@pytest.mark.parametrize(
    "case",
    list(fitted(drawn_of(POSITIONS))),
    ids=number_of,
)
def test_a_call_keeps_the_promise(case, garbage):
    assert not judged(case), case


def close(q, k, v, dout, limit=1e-5, **options):
    """Whether the CPU has the same of a call and of the gradients of its tensors."""
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = relpos.attention(*leaves, **options)
    found = [out, *torch.autograd.grad(out, leaves, dout)]
    for ours, theirs in zip(found, on_the_cpu(q, k, v, dout, **options), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=limit, atol=limit)


FAR = [
    {"q_offset": 10**6, "k_offset": 10},
    {"q_offset": 2**59, "k_offset": 2**59 - 300},
    {"q_offset": 0, "k_offset": 10**9},
    {"q_offset": 60, "key_padding_mask": (torch.arange(70) > 3) & (torch.arange(70) < 66)},
    {"q_positions": torch.arange(40) + 10**12, "k_positions": torch.arange(70) * 10**10},
    {"q_positions": torch.arange(40) + 10**6, "k_positions": torch.arange(70) + 5},
    {"q_offset": 5, "attn_mask": (torch.arange(70) > 50) | (torch.arange(70) < 2)},
]


@pytest.mark.parametrize("options", FAR, ids=range(len(FAR)))
def test_far_keys_lose_nothing(options):
    """Where biases of thousands would round away what the products are."""
    q, k, v = (torch.randn(1, 2, n, 8) for n in (40, 70, 70))
    if "key_padding_mask" in options:
        options = options | {"key_padding_mask": options["key_padding_mask"][None]}
    for sides in ("same", "own"):
        slopes = [0.5, 1.0] if sides == "same" else [0.5, 1.0, 2.0, 0.25]
        alibi = relpos.ALiBi(2, slopes=slopes, sides=sides)
        close(q, k, v, torch.randn(1, 2, 40, 8), position=alibi, **options)


@pytest.mark.parametrize("of_lse", [False, True])
def test_slopes_of_far_keys_have_their_gradient(of_lse):
    """The gradients of a row's scores add up to that of its lse, which is the slope's but for what
    the distances from the nearest key give."""
    q, k, v, dout = torch.randn(4, 1, 2, 40, 8)
    alibi = relpos.ALiBi(2, learned=True)
    out, lse = relpos.attention(
        q, k, v, position=alibi, q_offset=10**5, is_causal=True, return_lse=True
    )
    given = [dout, dout[..., 0] * of_lse]
    (found,) = torch.autograd.grad([out, lse], alibi.parameters(), given)
    distance = torch.arange(40)[None, :] - torch.arange(40)[:, None] - 10**5
    slopes = alibi.slopes.detach().double().requires_grad_()
    score = q.double() @ k.double().mT * 8**-0.5 + slopes[:, None, None] * distance
    exact = [score.softmax(-1) @ v.double(), score.logsumexp(-1)]
    (want,) = torch.autograd.grad(exact, slopes, [x.double() for x in given])
    torch.testing.assert_close(found, want.float(), rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(lse, exact[1].float(), rtol=1e-6, atol=0)


def test_gates_far_from_the_first_key_lose_nothing():
    """Their sums are some thousands, of which float32 has three digits behind the point."""
    q, k, v, dout = torch.randn(4, 2, 2, 300, 8)
    closed = torch.where(torch.arange(300) < 200, -10.0, 2.0)
    log_f = torch.nn.functional.logsigmoid(closed + torch.randn(2, 2, 300)).requires_grad_()
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = relpos.attention(*leaves, position=relpos.ForgettingGate()(log_f), is_causal=True)
    found = [out, *torch.autograd.grad(out, [*leaves, log_f], dout)]
    wide = [x.detach().double().requires_grad_() for x in (q, k, v, log_f)]
    score = wide[0] @ wide[1].mT * 8**-0.5 - wide[3].cumsum(-1)[:, :, None]
    hidden = torch.ones(300, 300).triu(1).bool()
    want = score.masked_fill(hidden, -torch.inf).softmax(-1) @ wide[2]
    exact = [want, *torch.autograd.grad(want, wide, dout.double())]
    for ours, each in zip(found[:-1], exact[:-1], strict=True):
        torch.testing.assert_close(ours, each.float(), rtol=3e-6, atol=3e-6)
    # Of the gates, whose gradients are sums over the later of 300 keys.
    torch.testing.assert_close(found[-1], exact[-1].float(), rtol=3e-6, atol=3e-5)


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_numbers_of_keys_are_a_mask_that_queries_share(by_row, softcap):
    """Of one of -inf too, which hides its key."""
    q, k, v, dout = torch.randn(4, 2, 4, 20, 8)
    values = torch.randn(2, 4, 20) if by_row else torch.randn(4, 20)
    values[..., 1, 3] = -torch.inf
    leaves = [x.requires_grad_() for x in (q, k, v, values)]
    options = {"position": relpos.terms.KeyBias(values), "softcap": softcap}
    out, lse = relpos.attention(q, k, v, return_lse=True, **options)
    found = [out, lse, *torch.autograd.grad([out, lse], leaves, [dout, dout[..., 0]])]
    wide = [x.detach().double().requires_grad_() for x in leaves]
    score = wide[0] @ wide[1].mT * 8**-0.5 + wide[3].unsqueeze(-2)
    if softcap is not None:
        score = (softcap * (score / softcap).tanh()).masked_fill(score == -torch.inf, -softcap)
    lse = score.logsumexp(-1)
    exact = score.softmax(-1) @ wide[2]
    given = [dout.double(), dout[..., 0].double()]
    exact = [exact, lse, *torch.autograd.grad([exact, lse], wide, given)]
    for ours, each in zip(found, exact, strict=True):
        torch.testing.assert_close(ours, each.float(), rtol=1e-5, atol=1e-5)


def test_two_runs_have_the_same_bits():
    case = PLAIN | {"position": "alibi#7+forgetting#0", "queries": 33, "keys": 65}
    assert_the_same_bits_twice(case)


def test_what_launches_and_what_does_not():
    q = torch.randn(1, 2, 5, 8)
    names = ("find_nearest", "backward_queries", "backward_keys", "sum_along")

    def launched(call):
        before = relpos.gpu.launches()
        call()
        after = relpos.gpu.launches()
        return [after.get(name, 0) - before.get(name, 0) for name in names]

    alibi, learned = relpos.ALiBi(2), relpos.ALiBi(2, learned=True)
    assert launched(lambda: relpos.attention(q, q, q, position=alibi)) == [0, 0, 0, 0]
    padding = torch.zeros(1, 5).bool()
    masked = {"position": alibi, "key_padding_mask": padding}
    assert launched(lambda: relpos.attention(q, q, q, **masked)) == [1, 0, 0, 0]
    capped = masked | {"softcap": 3.0}
    assert launched(lambda: relpos.attention(q, q, q, **capped)) == [0, 0, 0, 0]
    out = relpos.attention(q, q, q, position=learned)
    assert launched(out.sum().backward) == [0, 1, 0, 0]
    log_f = torch.zeros(1, 2, 5, requires_grad=True)
    gates = {"position": relpos.ForgettingGate()(log_f)}
    out = relpos.attention(q, q, q, **gates)
    assert launched(out.sum().backward) == [0, 0, 1, 2]
