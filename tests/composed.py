"""What the tests of relpos.compose share: calls, distances and dense formulas in plain torch."""

import torch
from oracle import gradients
from relpos import compose

B, H, HK, D, DV = 2, 4, 2, 8, 6
DOUBLE = torch.float64
THETA = 10000.0 ** (-torch.arange(0, D, 2, dtype=DOUBLE) / D)


# Distances that queries and keys count as having, pair by pair, as the papers define them.


def grouped(i, j, group=2, window=4):
    return i - j if i - j < window else i // group + window - window // group - j // group


def rectified(i, j, window=4):
    return min(i - j, window)


def leaking(i, j, window=4, leak=2.5):
    n = i - j
    return n if n < window else window + (n - window) / leak


def chunked(i, j, chunk=6, local=2):
    s = chunk - local
    if i // s == j // s:
        return i % s - j % s
    at = min(i % s + s, chunk - 1) if i // s - j // s == 1 else chunk - 1
    return at - j % s


REMAPS = {
    "self_extend": (compose.self_extend, grouped, {"group_size": 2, "window_size": 4}),
    "rerope": (compose.rerope, rectified, {"window_size": 4}),
    "leaky": (compose.rerope, leaking, {"window_size": 4, "leak": 2.5}),
    "dual_chunk": (compose.dual_chunk, chunked, {"chunk_size": 6, "local_size": 2}),
}


def distances(rule, pos_q, pos_k):
    """[B, Lq, Lk], 0 for keys after the query."""
    return torch.tensor(
        [
            [[rule(i, j) if j <= i else 0 for j in k] for i in q]
            for q, k in zip(pos_q.tolist(), pos_k.tolist(), strict=True)
        ],
        dtype=DOUBLE,
    )


def turned(q, k, distance):
    """Products of queries and keys turned by the distance of each pair, not scaled: the pairs of
    dimensions (p, p + D / 2) are complex numbers."""
    (q1, q2), (k1, k2) = (x.split(D // 2, -1) for x in (q, k))
    angle = distance.unsqueeze(-1).to(q.dtype) * THETA.to(q.dtype)
    even = torch.einsum("bhid,bhjd->bhijd", q1, k1) + torch.einsum("bhid,bhjd->bhijd", q2, k2)
    odd = torch.einsum("bhid,bhjd->bhijd", q1, k2) - torch.einsum("bhid,bhjd->bhijd", q2, k1)
    return (even * angle.cos().unsqueeze(1) + odd * angle.sin().unsqueeze(1)).sum(-1)


def softmax_over(scores, v, hidden):
    """Output and log-sum-exp; rows without keys give 0 and -inf."""
    scores = scores.masked_fill(hidden, -torch.inf)
    empty = hidden.expand(scores.shape).all(-1)
    lse = scores.masked_fill(empty.unsqueeze(-1), 0.0).logsumexp(-1)
    weights = (scores - lse.unsqueeze(-1)).exp().masked_fill(hidden, 0.0)
    return weights @ v, lse.masked_fill(empty, -torch.inf)


def drawn(queries, keys, heads=H, kv_heads=H, dtype=DOUBLE, seed=0):
    torch.manual_seed(seed)
    shapes = ((heads, queries, D), (kv_heads, keys, D), (kv_heads, keys, DV), (heads, queries, DV))
    return [torch.randn(B, *shape, dtype=DOUBLE).to(dtype) for shape in shapes]


def places(queries, keys, q_offset, k_offset=0):
    def rows(offset, length):
        return torch.as_tensor(offset).reshape(-1, 1).expand(B, 1) + torch.arange(length)

    return rows(q_offset, queries), rows(k_offset, keys)


def spread(x):
    """Keys or values of grouped heads, repeated for each query head."""
    return x.repeat_interleave(H // x.shape[1], 1)


def agree(run, formula, tensors, dout, leaves=()):
    """Both give (out, lse); outputs, log-sum-exps and every gradient are equal in double, the
    gradient of the log-sum-exp among them."""
    tensors = [x.detach().requires_grad_() for x in tensors]
    leaves = [*tensors, *leaves]
    found, wanted = run(*tensors), formula(*tensors)
    keep = wanted[1].isfinite()
    assert torch.equal(keep, found[1].isfinite())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)
    sums = [(out * dout).sum() + lse[keep].square().sum() for out, lse in (found, wanted)]
    for one, other in zip(
        *(gradients([s], [torch.ones_like(s)], leaves) for s in sums), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


CALLS = {
    "square": (13, 13, {}),
    "cache": (5, 14, {"q_offset": 9}),
    "one query": (1, 14, {"q_offset": 13}),
    "ragged": (4, 12, {"q_offset": torch.tensor([8, 3]), "k_offset": torch.tensor([0, -5])}),
    "early": (6, 6, {"q_offset": -2}),  # two queries see no key
    "window": (13, 13, {"window": (6, 0)}),
}
