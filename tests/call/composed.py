"""What the tests of relpos.compose share: calls, distances and dense formulas in plain torch."""

import torch
from relpos import compose

from tests.support.oracle import allowed_pairs, gradients, positions

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


def drawn(queries, keys, kv_heads=H, value_dim=DV, dtype=DOUBLE):
    torch.manual_seed(0)
    shapes = [(H, queries, D), (kv_heads, keys, D)]
    shapes += [(kv_heads, keys, value_dim), (H, queries, value_dim)]
    return [torch.randn(B, *shape, dtype=DOUBLE).to(dtype) for shape in shapes]


def spread(x):
    """Keys or values of grouped heads, repeated for each query head."""
    return x.repeat_interleave(H // x.shape[1], 1)


class Scene:
    """Tensors of a call, where they stand, and which pairs of them are hidden. True for padding or
    sinks draws them."""

    def __init__(
        self,
        queries,
        keys,
        kv_heads=H,
        value_dim=DV,
        dtype=DOUBLE,
        causal=True,
        padding=False,
        sinks=False,
        **said,
    ):
        self.q, self.k, self.v, self.dout = drawn(queries, keys, kv_heads, value_dim, dtype)
        self.options, self.scale = said, said.get("scale", D**-0.5)
        self.leaves = []
        if padding:
            said["key_padding_mask"] = torch.zeros(B, keys, dtype=torch.bool)
            said["key_padding_mask"][0, :2] = said["key_padding_mask"][1, keys // 2] = True
        if sinks:
            said["sinks"] = torch.randn(H, dtype=DOUBLE, requires_grad=True)
            self.leaves.append(said["sinks"])
        if kv_heads != H:
            said["enable_gqa"] = True
        at = {name: x for name, x in said.items() if "offset" in name or "positions" in name}
        self.pos_q, self.pos_k = positions(B, queries, keys, **at)
        self.distance = self.pos_q[:, :, None] - self.pos_k[:, None, :]
        masks = {n: said[n] for n in ("window", "key_range", "key_padding_mask") if n in said}
        masks |= {"heads": H, "is_causal": causal}
        self.hidden = ~allowed_pairs(self.pos_q, self.pos_k, **masks)

    def attended(self, scores, v):
        """Output and log-sum-exp of scores of all pairs."""
        cap, sinks, hidden = self.options.get("softcap"), self.options.get("sinks"), self.hidden
        if cap is not None:
            scores = cap * torch.tanh(scores / cap)
        if sinks is not None:  # a key without a value that nobody hides
            scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:3], 1)], -1)
            hidden = torch.nn.functional.pad(hidden, (0, 1))
            v = torch.nn.functional.pad(v, (0, 0, 0, 1))
        return softmax_over(scores, v, hidden)

    def agree(self, call, formula, leaves=()):
        """call(q, k, v, **options) and formula(q, k, v), of keys and values of all heads, are (out,
        lse); they and every gradient are equal in double, that of the log-sum-exp among them."""
        tensors = [x.detach().requires_grad_() for x in (self.q, self.k, self.v)]
        q, k, v = tensors
        found = call(q, k, v, **self.options, return_lse=True)
        wanted = formula(q, spread(k), spread(v))
        leaves = [*tensors, *leaves, *self.leaves]
        keep = wanted[1].isfinite()
        assert torch.equal(keep, found[1].isfinite())
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)
        sums = [(out * self.dout).sum() + lse[keep].square().sum() for out, lse in (found, wanted)]
        for one, other in zip(
            *(gradients([s], [torch.ones_like(s)], leaves) for s in sums), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


_FIRST = torch.stack([torch.arange(11) - 7, torch.arange(11) // 2]).clamp(min=0)
CALLS = {
    "square": {"queries": 13, "keys": 13},
    "cache": {"queries": 5, "keys": 14, "q_offset": 9},
    "one query": {"queries": 1, "keys": 14, "q_offset": 13},
    "ragged": {
        "queries": 4,
        "keys": 12,
        "q_offset": torch.tensor([8, 3]),
        "k_offset": torch.tensor([0, -5]),
    },
    "early": {"queries": 6, "keys": 6, "q_offset": -2},  # two queries see no key
    "window": {"queries": 13, "keys": 13, "window": (6, 0), "q_offset": 3, "k_offset": 3},
    "range of keys": {"queries": 11, "keys": 11, "key_range": (_FIRST, _FIRST + 6)},
    "grouped heads, padding, sinks, softcap": {
        "queries": 11,
        "keys": 11,
        "kv_heads": HK,
        "padding": True,
        "sinks": True,
        "softcap": 2.0,
        "scale": 0.7,
    },
}
OFFSETS = ("square", "cache", "ragged", "early")
