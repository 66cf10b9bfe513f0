"""What relpos.from_score_mod refuses, with the reason and what would do."""

import pytest
import relpos
import torch
from relpos.compat import flex_attention

from tests.call.flex_functions import B, D, H, Scene

NUMBERS, TABLE, ROWS = torch.zeros(40), torch.zeros(H, 80), torch.zeros(B, H, 40, D)
PAIRS = torch.zeros(40, 40, dtype=torch.int64)
COORDINATES = torch.zeros(B, 40, dtype=torch.int64)


def latent(score, b, h, q_idx, kv_idx):
    """Multi-head latent attention: products of rotated rows, a key head for 128 heads."""
    return score + 0.5 * torch.dot(ROWS[b, h, q_idx], ROWS[b, h // 128, kv_idx])


def activation(function):
    return lambda score, b, h, q_idx, kv_idx: torch.log(function(score) + 1.0)


def changes(score, b, h, q_idx, kv_idx):
    NUMBERS.add_(1)
    return score + NUMBERS[kv_idx]


REFUSED = {
    "query": (lambda s, b, h, q, k: s + TABLE[h, q], "function of the query alone.*leave it out"),
    "batch": (lambda s, b, h, q, k: s + b * (q - k), "differs by batch row.*make heads of"),
    "learned factor": (
        lambda s, b, h, q, k: s * NUMBERS[h],
        "the score times a tensor: .*multiply query by it",
    ),
    "bias after cap": (
        lambda s, b, h, q, k: 5 * torch.tanh(s / 5) + (q - k),
        "a bias after a softcap: .*before the softcap",
    ),
    "pairs before cap": (
        lambda s, b, h, q, k: 5 * torch.tanh((s + ROWS[0, 0][q, k]) / 5),
        "pairs within a softcap: attn_mask is added after",
    ),
    "pairs in a sum before cap": (
        lambda s, b, h, q, k: 5 * torch.tanh((s + (ROWS[0, 0][q, k] + TABLE[h, PAIRS[q, k]])) / 5),
        "pairs within a softcap: attn_mask is added after",
    ),
    "mask before cap": (
        lambda s, b, h, q, k: torch.tanh(torch.where(q >= k, s, -torch.inf)),
        "a mask before a softcap: mask last",
    ),
    "log": (
        lambda s, b, h, q, k: torch.log(torch.sigmoid(s)),
        r"sigmoid of the score: .*log\(f\(score\)\) replaces the softmax",
    ),
    "relu": (activation(torch.nn.functional.relu), "relu of the score: no term"),
    "gelu": (activation(torch.nn.functional.gelu), "gelu of the score: no term"),
    "square": (lambda s, b, h, q, k: s * s, "the score combined with itself"),
    "sum": (lambda s, b, h, q, k: s + TABLE[h, q + k], r"got q_idx \+ kv_idx: .*kv_idx - q_idx"),
    "grid": (
        lambda s, b, h, q, k: s + TABLE[h, q // 7 - k // 7 + 6],
        r"quotients of q_idx and kv_idx.*relpos.Position with grid = \(height, width\)",
    ),
    "rows": (latent, "product of rows.*append the rows to query and key.*compose.tupe"),
    "coordinates": (
        lambda s, b, h, q, k: s - (COORDINATES[b, q] - COORDINATES[b, k]).abs(),
        "numbers of the query's token beside.*DistanceBias with along=",
    ),
    "distance and key": (
        lambda s, b, h, q, k: s + NUMBERS[k] * (q - k),
        "together with the key: .*columns and key_gate",
    ),
    "distance and query": (
        lambda s, b, h, q, k: s + NUMBERS[q] * TABLE[h, k - q + 40],
        "together with the query: .*rows and gate",
    ),
    "product": (lambda s, b, h, q, k: s + q * k, "none of kv_idx - q_idx: subtract the indices"),
    "if": (
        lambda s, b, h, q, k: s + 1 if q >= k else s,
        "Python that reads an index.*use torch.where",
    ),
    "if of the score": (lambda s, b, h, q, k: s if s else -s, "depends on the score: use torch"),
    "number": (lambda s, b, h, q, k: s + q.item(), "Python that reads an index"),
    "number as index": (lambda s, b, h, q, k: s + NUMBERS[q.item()], "Python that reads an index"),
    "inverse": (lambda s, b, h, q, k: 1 / s, "rdiv of the score"),
    "other factors": (
        lambda s, b, h, q, k: torch.where(q >= k, s, 2 * s),
        "two scores with other factors or caps",
    ),
    "list": (lambda s, b, h, q, k: s + [0.0] * H[h] if h else s, "Python that reads an index"),
    "random": (
        lambda s, b, h, q, k: s + torch.rand(()),
        "random numbers, by aten.rand.*draw them before the call",
    ),
    "finite mask": (
        lambda s, b, h, q, k: torch.where(q >= k, s, -1e9),
        'got -1000000000.0 in place of the score: give float."-inf"',
    ),
    "no score": (lambda s, b, h, q, k: 1.0 * (q - k), "a result without the score: return"),
    "vector": (lambda s, b, h, q, k: s + TABLE[h], r"plus a tensor of shape \[80\]"),
    "side effect": (changes, "add_, which changes a tensor in place"),
    "comparison": (lambda s, b, h, q, k: torch.where(s > 0, s, -torch.inf), "gt of the score"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    score_mod, reason = REFUSED[name]
    with pytest.raises(ValueError, match=f"^score_mod: expected the score times.*{reason}"):
        relpos.from_score_mod(score_mod, H)
    scene = Scene(5, 5)
    with pytest.raises(ValueError, match=reason):
        flex_attention(scene.query, scene.key, scene.value, score_mod)


def test_wrong_arguments():
    scene = Scene(5, 5)
    given = scene.query, scene.key, scene.value
    with pytest.raises(TypeError, match="score_mod: expected a function of score, b, h"):
        relpos.from_score_mod("alibi", H)
    with pytest.raises(ValueError, match=r"dtype: expected torch\.float32 or torch\.float64"):
        relpos.from_score_mod(lambda s, b, h, q, k: s, H, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="block_mask: expected a BlockMask, got Tensor"):
        flex_attention(*given, block_mask=torch.ones(5, 5))
    with pytest.raises(ValueError, match="query: expected rank 4"):
        flex_attention(scene.query[0], scene.key, scene.value)


def test_wrong_block_masks():
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask

    scene = Scene(5, 5)
    given = scene.query, scene.key, scene.value
    causal = lambda b, h, q, k: q >= k  # noqa: E731
    blocks = create_block_mask(causal, None, None, 6, 5, device="cpu")
    with pytest.raises(ValueError, match=r"block_mask: expected one of 5 queries and 5 keys"):
        flex_attention(*given, block_mask=blocks)
    blocks = create_block_mask(causal, 3, None, 5, 5, device="cpu")
    with pytest.raises(ValueError, match="block_mask: expected one of 1 or 2 batch rows, got 3"):
        flex_attention(*given, block_mask=blocks)
    with pytest.raises(ValueError, match=r"return_aux: .*no maximum of scores"):
        flex_attention(*given, return_aux=AuxRequest(max_scores=True))
    by_if = create_block_mask(causal, None, None, 5, 5, device="cpu")
    by_if.mask_mod = lambda b, h, q, k: q >= k if h else q > k
    with pytest.raises(ValueError, match=r"mask_mod: .*Python that reads an index.*torch\.where"):
        flex_attention(*given, block_mask=by_if)
