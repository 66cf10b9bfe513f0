"""The recipes of docs/compositions.md, the very code that the page shows, against their papers'
formulas in plain torch and float64: outputs and every gradient, at odd sizes."""

import re

import pytest
import relpos
import torch
from relpos import compose
from torch.nn import functional as F

from tests import ROOT
from tests.support.oracle import gradients

pytestmark = pytest.mark.usefixtures("one_thread")

PAGE = (ROOT / "docs/compositions.md").read_text()
RECIPES = PAGE[PAGE.index("\n## Recipes\n") :]
FUNCTION = re.compile(r"^(?:def|class) (\w+)\(.*?(?=^\S)", re.M | re.S)
B, H, HK, L, D, DV = 2, 4, 2, 13, 8, 6
DOUBLE = torch.float64


def functions():
    """{name: source} of the functions that the section defines."""
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", RECIPES, re.M | re.S))
    return {found[1]: found[0] for found in FUNCTION.finditer(code)}


def recipe(name):
    names = {"torch": torch, "relpos": relpos, "compose": compose, "F": F}
    exec(compile(functions()[name], name, "exec"), names)
    return names[name]


def drawn(*shapes, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=draw, dtype=DOUBLE).requires_grad_() for s in shapes]


def inputs(kv_heads=H, length=L):
    """query, key, value."""
    return drawn((B, H, length, D), (B, kv_heads, length, D), (B, kv_heads, length, DV))


def attended(scores, v, causal=True):
    """The softmax of scores [B, H, L, L] over values of fewer heads."""
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    scores = scores.masked_fill(later & causal, -torch.inf)
    return scores.softmax(-1) @ v.repeat_interleave(scores.shape[1] // v.shape[1], 1)


def products(q, k):
    return q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT


def turned(x, angle):
    """Pairs (p, p + D / 2) of [..., L, D] by angles [..., L, D / 2]."""
    both = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([both.real, both.imag], -1)


def frequencies(size, base):
    return base ** (-torch.arange(0, size, 2, dtype=DOUBLE) / size)


def agree(found, wanted, leaves):
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-11)
    (seed,) = drawn(wanted.shape, seed=9)
    for one, other in zip(
        *(gradients([out], [seed], leaves) for out in (found, wanted)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)
        assert other.any()


AT = torch.arange(L, dtype=DOUBLE)
DELTA = AT[None, :] - AT[:, None]


def test_recipes_are_short_and_have_a_test():
    for name, source in functions().items():
        assert len(source.strip().splitlines()) <= 15, name
        assert f"test_{name}" in globals(), name
    assert len(functions()) == len(re.findall(r"^(?:def|class) ", RECIPES, re.M)) == 16


def test_bam():
    q, k, v = inputs(H)
    (ssmax,) = drawn((H,), seed=1)
    module = relpos.BAM(H).double()
    with torch.no_grad():
        for parameter, other in zip(module.parameters(), drawn((H,), (H,), (H,)), strict=True):
            parameter.copy_(other[None, :, None, None] / 2)
    found = recipe("bam")(q, k, v, module, ssmax)
    z = (DELTA - 2 * module.loc.sinh()) * module.scale.exp()
    prior = -((z.abs() + 1e-5) ** module.shape)
    words = products(q, k) / D**0.5 * (AT + 1).log()[:, None] * ssmax[:, None, None]
    agree(found, attended(words + prior, v), [q, k, v, ssmax, *module.parameters()])


def test_cable():
    q, k, v = inputs()
    (h,) = drawn((B, H, L), seed=1)
    b = torch.cumsum(-F.softplus(h), -1)
    wanted = attended(products(q, k) + b[..., :, None] - b[..., None, :], v)
    agree(recipe("cable")(q, k, v, h), wanted, [q, k, v, h])


@pytest.mark.parametrize(("size", "length", "turning"), [(8, 13, 1), (80, 96, 12), (16, 10**6, 8)])
def test_hope(size, length, turning):
    q, k, v = drawn((B, H, L, size), (B, H, L, size), (B, H, L, DV))
    frequency = frequencies(size, 10000.0)
    assert (2 * torch.pi / frequency <= length).sum() == turning
    angle = AT[:, None] * torch.where(torch.arange(size // 2) < turning, frequency, 0.0)
    found = relpos.attention(q, k, v, position=recipe("hope")(size, length), is_causal=True)
    wanted = attended(products(turned(q, angle), turned(k, angle)) / size**0.5, v)
    agree(found, wanted, [q, k, v])


def test_rope_plus_plus():
    """Real and imaginary parts of the complex product, which the paper takes the negative of."""
    q, k, v = inputs(HK)
    found = recipe("rope_plus_plus")(q, k, v, relpos.RoPE(D, layout="half"))
    at_q, at_k = (torch.complex(*x.chunk(2, -1)) for x in (q, k.repeat_interleave(H // HK, 1)))
    turn = torch.exp(1j * -DELTA[..., None] * frequencies(D, 10000.0))
    product = torch.einsum("bhip,bhjp,ijp->bhij", at_q, at_k.conj(), turn)
    wanted = [attended(part / D**0.5, v) for part in (product.real, product.imag)]
    agree(found, torch.stack(wanted, 2).flatten(1, 2), [q, k, v])


def test_selective_rope():
    q, k, v = inputs(HK)
    (phi,) = drawn((B, HK, L, D // 2), seed=1)
    temperature = frequencies(D, 500000.0)
    found = recipe("selective_rope")(q, k, v, phi, temperature)
    angle = temperature * phi.cumsum(2)
    of_queries = angle.repeat_interleave(H // HK, 1)
    wanted = attended(products(turned(q, of_queries), turned(k, angle)) / D**0.5, v)
    agree(found, wanted, [q, k, v, phi])


@pytest.mark.parametrize("rows", [None, 4])
def test_path_integral(rows):
    """Edges summed one after another, as the paper writes it."""
    q, k, v = inputs()
    p, slopes = drawn((B, H, L, 4), (H,), seed=1)
    bias = {"bias": recipe("path_integral"), "parameters": [p, slopes], "rows": rows}
    found = compose.bias_by_rows(q, k, v, is_causal=True, **bias)
    normed = p / (p.square().mean(-1, keepdim=True) + torch.finfo(DOUBLE).eps).sqrt()
    back = turned(normed, -AT[:, None].expand(L, 2))
    edge = slopes[:, None, None] * F.logsigmoid(p @ back.mT / 4)
    rows = [
        torch.stack([edge[:, :, i, j + 1 : i + 1].sum(-1) for j in range(L)], -1) for i in range(L)
    ]
    wanted = attended(products(q, k) / D**0.5 + torch.stack(rows, 2), v)
    agree(found, wanted, [q, k, v, p, slopes])


def test_string():
    """R(x) = P rope(x) P^T as a matrix of each token."""
    q, k, v = inputs(length=12)
    (weight,) = drawn((D, D), seed=1)
    position = relpos.RoPEMixed(H, D, grid=[3, 4]).double()
    found = recipe("string")(q, k, v, weight, position)
    skew, one = weight - weight.mT, torch.eye(D, dtype=DOUBLE)
    p = (one - skew) @ torch.linalg.inv(one + skew)
    token = torch.arange(12)
    places = torch.stack([token % 4, token // 4]).double()
    angle = torch.einsum("al,ahp->hlp", places, position.freqs)

    def rotated(x):
        in_basis = x @ p
        first, second = in_basis[..., 0::2], in_basis[..., 1::2]
        cos, sin = angle.cos(), angle.sin()
        both = torch.stack([first * cos - second * sin, second * cos + first * sin], -1)
        return both.flatten(-2) @ p.mT

    wanted = attended(products(rotated(q), rotated(k)) / D**0.5, v, causal=False)
    agree(found, wanted, [q, k, v, weight, position.freqs])


def test_liere():
    q, k, v = inputs()
    weight, x = drawn((2, D, D), (L, 2), seed=1)
    found = recipe("liere")(q, k, v, weight, x)
    skew = weight.triu(1) - weight.triu(1).mT
    turns = [torch.linalg.matrix_exp(x[i, 0] * skew[0] + x[i, 1] * skew[1]) for i in range(L)]
    of_q, of_k = (
        torch.stack([each[:, :, i] @ turns[i].mT for i in range(L)], 2) for each in (q, k)
    )
    wanted = attended(products(of_q, of_k) / D**0.5, v, causal=False)
    agree(found, wanted, [q, k, v, weight, x])


def test_inkling():
    q, k, v = inputs()
    (c,) = drawn((B, H, L, 3), seed=1)
    module = relpos.Inkling(rank=3, extent=5).double()
    found = recipe("inkling")(q, k, v, c, module, floor=4, alpha=0.7)
    tau = 1 + 0.7 * torch.log(((AT + 1) / 4).clamp(min=1.0))
    back = (-DELTA).long()
    profiles = c @ module.proj
    index = back.clamp(0, 4).expand(B, H, L, L)
    bias = torch.where((back >= 0) & (back < 5), profiles.gather(-1, index), 0.0)
    wanted = attended(tau[:, None] * (products(q, k) / D**0.5 + bias), v)
    agree(found, wanted, [q, k, v, c, module.proj])


def test_path():
    """Products of reflections as matrices."""
    q, k, v = inputs()
    w, beta = drawn((B, H, L, D), (B, H, L), seed=1)
    found = recipe("path")(q, k, v, w, beta)
    reflections = torch.eye(D, dtype=DOUBLE) - beta[..., None, None] * (
        w[..., :, None] * w[..., None, :]
    )
    scores = torch.zeros(B, H, L, L, dtype=DOUBLE)
    for i in range(L):
        row = q[:, :, i]
        for j in range(i, -1, -1):
            score = torch.zeros(L, L, dtype=DOUBLE)
            score[i, j] = 1.0
            scores = scores + score * (row * k[:, :, j]).sum(-1)[..., None, None]
            row = (row[..., None, :] @ reflections[:, :, j])[..., 0, :]
    agree(found, attended(scores / D**0.5, v), [q, k, v, w, beta])


def test_wavelets():
    q, k, v = inputs()
    found = relpos.attention(q, k, v, position=recipe("wavelets")(D, scales=2), is_causal=True)
    score = torch.zeros(B, H, L, L, dtype=DOUBLE)
    for d in range(D):
        t = (DELTA - d % 4) / 2 ** (d // 4)
        score = score + q[..., d, None] * (1 - t**2) * torch.exp(-(t**2) / 2)
    agree(found, attended((products(q, k) + score) / D**0.5, v), [q, k, v])


def test_GatedSlope():
    q, k, v = inputs()
    position = recipe("GatedSlope")(H, D).double()
    found = relpos.attention(q, k, v, position=position, is_causal=True)
    slope = torch.log1p(torch.exp(torch.einsum("bhid,hd->bhi", q, position.u[:, 0])))
    scores = products(q, k) / D**0.5 - slope[..., None] * DELTA.abs()
    agree(found, attended(scores, v), [q, k, v, position.u])


def test_graphormer():
    q, k, v = inputs()
    spatial, tables = drawn((H, 6), (3, H, 5), seed=4)
    draw = torch.Generator().manual_seed(5)
    paths = torch.randint(0, 6, (B, L, L), generator=draw)
    edges = torch.randint(0, 5, (3, B, L, L), generator=draw)
    found = recipe("graphormer")(q, k, v, paths.byte(), spatial, edges.byte(), tables)
    bias = spatial[:, paths] + sum(table[:, hop] for table, hop in zip(tables, edges, strict=True))
    scores = products(q, k) / D**0.5 + bias.transpose(0, 1)
    agree(found, attended(scores, v, causal=False), [q, k, v, spatial, tables])


@pytest.mark.parametrize("rows", [128, 5])
def test_relations(rows):
    q, k, v = inputs()
    keys, values = drawn((7, D), (7, DV), seed=4)
    classes = torch.randint(0, 7, (B, L, L), generator=torch.Generator().manual_seed(5))
    found = recipe("relations")(q, k, v, keys, values, classes.byte(), rows)
    scores = (products(q, k) + torch.einsum("bhid,bijd->bhij", q, keys[classes])) / D**0.5
    weights = scores.softmax(-1)
    wanted = weights @ v + torch.einsum("bhij,bijd->bhid", weights, values[classes])
    agree(found, wanted, [q, k, v, keys, values])


def test_weights_by_class_are_a_gradient():
    """As the page says: that of the log-sum-exp for the factor of PairRows."""
    q, k, v = inputs()
    classes = torch.randint(0, 7, (B, L, L), generator=torch.Generator().manual_seed(5))
    factor = torch.zeros(B, H, L, 7, dtype=DOUBLE, requires_grad=True)
    one_hot = torch.eye(7, dtype=DOUBLE)
    pairs = relpos.PairClasses(classes.byte())
    term = relpos.terms.PairRows(one_hot, pairs, factor=factor, scale=1.0)
    _, lse = relpos.attention(q.detach(), k.detach(), v.detach(), position=term, return_lse=True)
    (found,) = torch.autograd.grad(lse.sum(), factor)
    weights = (products(q, k) / D**0.5).softmax(-1)
    wanted = torch.einsum("bhij,bijc->bhic", weights, one_hot[classes])
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_natten():
    height, width, reach = 5, 7, 1
    q, k, v = inputs(length=height * width)
    bias = relpos.SwinBias(H, window=(height, width)).double()
    table = next(bias.parameters())
    found = recipe("natten")(q, k, v, (height, width), 2 * reach + 1, bias)
    scores = products(q, k) / D**0.5
    rows = []
    for i in range(height * width):
        at = [i // width, i % width]
        centre = [
            min(max(x, reach), n - 1 - reach) for x, n in zip(at, (height, width), strict=True)
        ]
        row = []
        for j in range(height * width):
            to = [j // width, j % width]
            near = all(abs(a - b) <= reach for a, b in zip(to, centre, strict=True))
            offset = (at[0] - to[0] + height - 1) * (2 * width - 1) + at[1] - to[1] + width - 1
            row.append(scores[..., i, j] + table[offset] if near else scores[..., i, j] - torch.inf)
        rows.append(torch.stack(row, -1))
    agree(found, attended(torch.stack(rows, -2), v, causal=False), [q, k, v, table])


def test_timestamps():
    q, k, v = inputs()
    (table,) = drawn((H, 9), seed=6)
    seconds = torch.randint(0, 5000, (B, L), generator=torch.Generator().manual_seed(7))
    found = recipe("timestamps")(q, k, v, seconds, table)
    bucket = torch.zeros(B, L, L, dtype=torch.int64)
    for b in range(B):
        for i in range(L):
            for j in range(L):
                apart = 1 + abs(int(seconds[b, i] - seconds[b, j]))
                bucket[b, i, j] = min(apart.bit_length() - 1, 8)
    scores = products(q, k) / D**0.5 + table[:, bucket].transpose(0, 1)
    agree(found, attended(scores, v), [q, k, v, table])
