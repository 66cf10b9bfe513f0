"""Attention as other code computes it: modules of transformers with random weights, and formulas of
papers in another form than that of tests/oracles."""

import math
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import torch

HEADS, DIM = 4, 16


@dataclass
class Peer:
    """One call, its result, and the leaves from which the other code computed all tensors."""

    scheme: str
    options: dict
    qkv: list  # [B, H, L, D]
    out: torch.Tensor  # [B, H, Lq, D]
    leaves: list
    parameters: dict = field(default_factory=dict)  # by dotted name
    inputs: dict = field(default_factory=dict)  # with a batch axis
    call: dict = field(default_factory=dict)  # arguments of relpos.attention


@dataclass(frozen=True)
class Origin:
    """Makes a peer by a class or function of a package; "" is a formula written here. `old` peers
    need the release of transformers before 5."""

    scheme: str
    name: str
    make: Callable[[], Peer]
    package: str = "transformers"
    old: bool = False

    def __call__(self):
        return self.make()


class Drawing:
    """The dtype and the seed of all numbers that a peer draws, which are float32 numbers."""

    dtype, seed = torch.float64, 0


@contextmanager
def drawing(dtype, seed):
    held = Drawing.dtype, Drawing.seed
    Drawing.dtype, Drawing.seed = dtype, seed
    try:
        yield
    finally:
        Drawing.dtype, Drawing.seed = held


def numbers(*shape, seed=0):
    draw = np.random.default_rng([Drawing.seed, seed, *shape])
    return torch.from_numpy(draw.standard_normal(shape, dtype=np.float32)).to(Drawing.dtype)


def normal(*shape, seed=0):
    return numbers(*shape, seed=seed).requires_grad_()


def heads_of(x):
    """[B, L, H D] or [rows, H D] with the head axis before that of the rows."""
    return x.unflatten(-1, (HEADS, -1)).transpose(-2, -3)


def seeded(module, seed=1):
    module.to(Drawing.dtype).eval()
    with torch.no_grad():
        for n, parameter in enumerate(module.parameters()):
            parameter.copy_(0.25 * numbers(*parameter.shape, seed=1000 * seed + n))
    return module


def padding(keys):
    """bool [2, keys], True where nobody looks: the end of one row, a run amid the other."""
    hidden = torch.zeros(2, keys, dtype=torch.bool)
    hidden[0, keys - keys // 4 :] = True
    hidden[1, keys // 3 : keys // 2] = True
    return hidden


def attended(scores, v, causal=False, hidden=None):
    if hidden is not None:
        scores = scores.masked_fill(hidden[:, None, None], -torch.inf)
    if causal:
        length, keys = scores.shape[-2:]
        hidden = torch.ones(length, keys).triu(keys - length + 1).bool()
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.softmax(-1) @ v


def deberta_config(**own):
    plain = {
        "hidden_size": HEADS * DIM,
        "num_attention_heads": HEADS,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "max_relative_positions": 512,
        "max_position_embeddings": 512,
    }
    return SimpleNamespace(**plain | own)


def root(count):
    """1 / sqrt(count D), as DeBERTa rounds it."""
    return 1.0 / float(torch.sqrt(torch.tensor(DIM, dtype=torch.float) * count))


def options_of_deberta(config, buckets):
    kinds = config.pos_att_type
    return {
        "heads": HEADS,
        "head_dim": DIM,
        "buckets": buckets,
        "max_distance": config.max_relative_positions,
        "terms": "both" if len(kinds) == 2 else kinds[0],
    }


def deberta_v2(length, buckets, shared=False, padded=False, **own):
    """DeBERTa v2 and v3; `shared` projects positions by the weights of the content."""
    from transformers.models.deberta_v2 import modeling_deberta_v2 as hf

    config = deberta_config(position_buckets=buckets, share_att_key=shared, **own)
    module = seeded(hf.DisentangledSelfAttention(config))
    span = buckets if buckets > 0 else config.max_relative_positions
    hidden, rows = normal(2, length, HEADS * DIM), normal(2 * span, HEADS * DIM)
    seen = torch.ones(2, 1, length, length, dtype=torch.bool)
    if padded:
        seen &= ~padding(length)[:, None, None]
    out = heads_of(module(hidden, seen, rel_embeddings=rows)[0])
    projections = {"c2p": ("pos_key", "key"), "p2c": ("pos_query", "query")}
    parameters = {}
    for kind in config.pos_att_type:
        name, content = projections[kind]
        project = getattr(module, f"{content}_proj" if shared else f"{name}_proj")
        parameters[name] = heads_of(project(rows))
    qkv = [heads_of(p(hidden)) for p in (module.query_proj, module.key_proj, module.value_proj)]
    call = {"scale": root(1 + len(config.pos_att_type))}
    if padded:
        call["key_padding_mask"] = padding(length)
    options = options_of_deberta(config, max(buckets, 0))
    return Peer("deberta", options, qkv, out, [hidden, rows], parameters, call=call)


def deberta_v1(length, **own):
    from transformers.models.deberta import modeling_deberta as hf

    config = deberta_config(**own)
    module = seeded(hf.DisentangledSelfAttention(config))
    hidden = normal(2, length, HEADS * DIM)
    rows = normal(2 * config.max_relative_positions, HEADS * DIM)
    seen = torch.ones(2, 1, length, length, dtype=torch.bool)
    distance = hf.build_relative_position(hidden, hidden)
    out = heads_of(module(hidden, seen, relative_pos=distance, rel_embeddings=rows)[0])
    q, k, v = module.transpose_for_scores(module.in_proj(hidden)).chunk(3, dim=-1)
    q, v = (
        x + module.transpose_for_scores(b[None, None])
        for x, b in ((q, module.q_bias), (v, module.v_bias))
    )
    found = {"pos_key": "pos_proj", "pos_query": "pos_q_proj"}
    parameters = {n: heads_of(getattr(module, p)(rows)) for n, p in found.items()}
    options = options_of_deberta(config, 0)
    call = {"scale": root(3)}
    return Peer("deberta", options, [q, k, v], out, [hidden, rows], parameters, call=call)


def swin(window):
    from transformers.models.swin.modeling_swin import SwinRelativePositionBias

    module = seeded(SwinRelativePositionBias(HEADS, window))
    tokens = window[0] * window[1]
    q, k, v = (normal(2, HEADS, tokens, DIM, seed=n) for n in range(3))
    out = attended(q @ k.mT * DIM**-0.5 + module(), v)
    table = module.relative_position_bias_table
    options = {"heads": HEADS, "window": list(window)}
    named = {"relative_position_bias_table": table}
    return Peer("swin", options, [q, k, v], out, [q, k, v, table], named)


def llama3(head_dim, first, queries=40, padded=False, **scaling):
    """Llama's own module, with its angles in float32; the last queries of 40 tokens."""
    from transformers.models.llama import modeling_llama as hf
    from transformers.models.llama.configuration_llama import LlamaConfig

    plain = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    scaling = plain | scaling
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, **scaling}
    sizes = {"hidden_size": HEADS * head_dim, "num_attention_heads": HEADS}
    config = LlamaConfig(**sizes, max_position_embeddings=131072, rope_parameters=rope)
    q = normal(2, HEADS, queries, head_dim)
    k, v = (normal(2, HEADS, 40, head_dim, seed=n) for n in (1, 2))
    rotary = hf.LlamaRotaryEmbedding(config)

    def turned(x, start):
        cos, sin = rotary(v, torch.arange(start, start + x.shape[2])[None])
        return hf.apply_rotary_pos_emb(x, x, cos, sin)[0]

    at = first + 40 - queries
    scores = turned(q, at) @ turned(k, first).mT * head_dim**-0.5
    hidden = padding(40) if padded else None
    out = attended(scores, v, causal=True, hidden=hidden)
    options = {"head_dim": head_dim, "layout": "half", "angle": "float32", **scaling}
    call = {"is_causal": True, "q_offset": at, "k_offset": first}
    if padded:
        call["key_padding_mask"] = hidden
    given = [q, k, v]
    return Peer("rope_llama3", options, given, out, given, call=call)


def transformer_xl(queries, keys, width, clamp_len=None):
    """The formula of the paper's appendix B: one product with all rows of R, then a shift."""
    q = normal(2, HEADS, queries, DIM)
    k, v = (normal(2, HEADS, keys, DIM, seed=n) for n in (1, 2))
    weight = normal(HEADS * DIM, width)
    u, w = (normal(HEADS, DIM, seed=n) for n in (3, 4))
    back = torch.arange(keys - 1, -1, -1).clamp(max=clamp_len or keys).double()
    wave = torch.outer(back, 1 / (10000 ** (torch.arange(0.0, width, 2.0).double() / width)))
    rows = heads_of(torch.cat([wave.sin(), wave.cos()], -1) @ weight.T)
    by_content = torch.einsum("bhid,bhjd->bhij", q + u[:, None], k)
    by_position = torch.einsum("bhid,hjd->bhij", q + w[:, None], rows)
    padded = torch.nn.functional.pad(by_position, (1, 0))
    padded = padded.view(2, HEADS, keys + 1, queries)
    shifted = padded[:, :, 1:].reshape(by_position.shape)
    out = attended((by_content + shifted) * DIM**-0.5, v, causal=True)
    options = {"heads": HEADS, "head_dim": DIM, "width": width, "clamp_len": clamp_len}
    named = {"r_net.weight": weight, "r_w_bias": u, "r_r_bias": w}
    call = {"is_causal": True, "q_offset": keys - queries}
    given = [q, k, v]
    return Peer("transformer_xl", options, given, out, [*given, weight, u, w], named, call=call)


def transformer_xl_both_sides(length, width):
    """Pair by pair, keys of the future too."""
    q, k, v = (normal(1, HEADS, length, DIM, seed=n) for n in range(3))
    weight = normal(HEADS * DIM, width)
    u, w = (normal(HEADS, DIM, seed=n) for n in (3, 4))
    scores = []
    for i in range(length):
        for j in range(length):
            turns = [(i - j) / 10000 ** (2 * p / width) for p in range(width // 2)]
            waves = [math.sin(t) for t in turns] + [math.cos(t) for t in turns]
            row = (weight @ torch.tensor(waves, dtype=torch.float64)).view(HEADS, DIM)
            scores.append(((q[:, :, i] + u) * k[:, :, j] + (q[:, :, i] + w) * row).sum(-1))
    scores = torch.stack(scores, -1).unflatten(-1, (length, length)) * DIM**-0.5
    options = {"heads": HEADS, "head_dim": DIM, "width": width}
    named = {"r_net.weight": weight, "r_w_bias": u, "r_r_bias": w}
    given = [q, k, v]
    out = attended(scores, v)
    return Peer("transformer_xl", options, given, out, [*given, weight, u, w], named)


def kerple(kind, causal, symmetric=True):
    """As gpt-neox computes it: a Toeplitz grid, of its lower half where it is not symmetric, and
    parameters clamped in place, so that gradients are taken at the clamped numbers."""
    length = 40
    q, k, v = (normal(2, HEADS, length, DIM, seed=n) for n in range(3))
    p, a = (normal(HEADS, 1, 1, seed=n) for n in (3, 4))
    held = [torch.tensor([[[-0.5]], [[0.3]], [[1.7]], [[2.6]]]), 0.5 * a.detach()]
    p, a = (x.double().requires_grad_() for x in held)
    high = 2.0 if kind == "power" else torch.inf
    used_p = p.detach().clamp(0.01, high).requires_grad_()
    used_a = a.detach().clamp(min=0.01).requires_grad_()
    steps = torch.arange(length).view(-1, 1) + torch.arange(0, -length, -1)
    far = (steps.abs() if symmetric else steps.tril()).double()
    falls = {"power": used_a * far.pow(used_p), "log": used_p * torch.log(1 + used_a * far)}
    out = attended(q @ k.mT * DIM**-0.5 - falls[kind], v, causal)
    options = {"heads": HEADS, "symmetric": symmetric}
    named = {"bias_p": Same.apply(used_p, p), "bias_a": Same.apply(used_a, a)}
    given = [q, k, v]
    leaves = [*given, used_p, used_a]
    return Peer(f"kerple_{kind}", options, given, out, leaves, named, call={"is_causal": causal})


class Same(torch.autograd.Function):
    """The second number, with the gradient going to the first."""

    @staticmethod
    def forward(ctx, used, held):
        return held.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def forgetting(length, keys=None):
    """Weights in proportion to exp(score) times the product of the gates in between."""
    keys = keys or length
    q = normal(2, HEADS, length, DIM)
    k, v = (normal(2, HEADS, keys, DIM, seed=n) for n in (1, 2))
    log_f = (-normal(2, HEADS, keys, seed=3).detach().abs()).requires_grad_()
    kept = []
    for i in range(keys - length, keys):
        gates = [log_f[..., j + 1 : i + 1].exp().prod(-1) for j in range(i + 1)]
        kept.append(torch.stack(gates + [torch.zeros_like(gates[0])] * (keys - i - 1), -1))
    weights = (q @ k.mT * DIM**-0.5).exp() * torch.stack(kept, -2)
    out = weights / weights.sum(-1, keepdim=True) @ v
    call = {"is_causal": True, "q_offset": keys - length}
    given = [q, k, v]
    return Peer("forgetting", {}, given, out, [*given, log_f], inputs={"log_f": log_f}, call=call)


def gpt_oss(queries, keys=None):
    """eager_attention_forward of Hugging Face's GPT-OSS, causal."""
    from transformers.models.gpt_oss import modeling_gpt_oss as hf

    keys = keys or queries
    q = normal(2, HEADS, queries, DIM)
    k, v = (normal(2, HEADS, keys, DIM, seed=n) for n in (1, 2))
    sinks = normal(HEADS, seed=3)
    module = SimpleNamespace(sinks=sinks, num_key_value_groups=1, training=False)
    mask = torch.full((queries, keys), -torch.inf, dtype=q.dtype).triu(keys - queries + 1)
    out, _ = hf.eager_attention_forward(module, q, k, v, mask, scaling=DIM**-0.5)
    given, call = [q, k, v], {"is_causal": True, "q_offset": keys - queries}
    named = {"sinks": sinks}
    leaves = [*given, sinks]
    options = {"heads": HEADS}
    return Peer("attention_sink", options, given, out.transpose(1, 2), leaves, named, call=call)


def formula(scheme, make):
    return Origin(scheme, "the paper's formula", make, package="")


def disentangled(make):
    return Origin("deberta", "DisentangledSelfAttention", make)


def swins(window):
    return Origin("swin", "SwinRelativePositionBias", lambda: swin(window))


def llamas(*args, **scaling):
    return Origin("rope_llama3", "LlamaRotaryEmbedding", lambda: llama3(*args, **scaling))


PEERS = {
    "DeBERTa v3, long": disentangled(lambda: deberta_v2(520, 256)),
    "DeBERTa v3, shared projections": disentangled(lambda: deberta_v2(140, 256, shared=True)),
    "DeBERTa v3, padded": disentangled(lambda: deberta_v2(60, 32, padded=True)),
    "DeBERTa v2, small buckets": disentangled(lambda: deberta_v2(70, 6, max_relative_positions=20)),
    "DeBERTa v2, c2p": disentangled(lambda: deberta_v2(50, 32, pos_att_type=["c2p"])),
    "DeBERTa v2, p2c": disentangled(lambda: deberta_v2(50, 32, pos_att_type=["p2c"])),
    "DeBERTa v2, no buckets": disentangled(lambda: deberta_v2(40, -1, max_relative_positions=12)),
    "DeBERTa v1": disentangled(lambda: deberta_v1(40)),
    "DeBERTa v1, clamped": disentangled(lambda: deberta_v1(40, max_relative_positions=12)),
    "Swin 7 x 7": swins((7, 7)),
    "Swin 4 x 9": swins((4, 9)),
    "Swin 33 x 1": swins((33, 1)),
    "Llama 3.1": llamas(128, 0),
    "Llama 3.1, far": llamas(128, 30_000),
    "Llama 3.2": llamas(64, 5_000, factor=32.0),
    "Llama 3, short": llamas(16, 20, original_max_position_embeddings=64),
    "Llama 3.1, with a cache": llamas(64, 0, queries=33),
    "Llama 3.1, padded": llamas(64, 0, padded=True),
    "Transformer-XL": formula("transformer_xl", lambda: transformer_xl(12, 12, 8)),
    "Transformer-XL with memory": formula("transformer_xl", lambda: transformer_xl(5, 30, 24)),
    "Transformer-XL, clamped": formula("transformer_xl", lambda: transformer_xl(9, 40, 10, 17)),
    "Transformer-XL, both sides": formula(
        "transformer_xl", lambda: transformer_xl_both_sides(9, 8)
    ),
    "KERPLE log, causal": formula("kerple_log", lambda: kerple("log", True)),
    "KERPLE log, both sides": formula("kerple_log", lambda: kerple("log", False)),
    "KERPLE log, gpt-neox's grid": formula(
        "kerple_log", lambda: kerple("log", False, symmetric=False)
    ),
    "KERPLE power, causal": formula("kerple_power", lambda: kerple("power", True)),
    "KERPLE power, both sides": formula("kerple_power", lambda: kerple("power", False)),
    "KERPLE power, gpt-neox's grid": formula(
        "kerple_power", lambda: kerple("power", False, symmetric=False)
    ),
    "Forgetting Transformer": formula("forgetting", lambda: forgetting(20)),
    "Forgetting Transformer with memory": formula("forgetting", lambda: forgetting(4, 25)),
    "GPT-OSS sinks": Origin("attention_sink", "eager_attention_forward", lambda: gpt_oss(41)),
    "GPT-OSS sinks, with a cache": Origin(
        "attention_sink", "eager_attention_forward", lambda: gpt_oss(33, 65)
    ),
}
