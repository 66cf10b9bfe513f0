"""Attention as other code computes it: modules of transformers with random weights, and formulas of
papers in another form than that of tests/oracles."""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import relpos
import torch

from tests.support.oracle import registry

HEADS, DIM = 4, 16
WIDTH = HEADS * DIM
SIZES = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "patch_size": 16, "qkv_bias": True}
SIZES |= dict.fromkeys(("dropout", "attention_dropout", "attention_probs_dropout_prob"), 0.0)


@dataclass
class Peer:
    """One call, its result, and the leaves from which the other code computed all tensors: where
    none are said, the parameters and what q, k and v are `of`, or else themselves."""

    scheme: str
    options: dict
    qkv: list  # [B, H, L, D]
    out: torch.Tensor  # [B, H, Lq, D]
    parameters: dict = field(default_factory=dict)  # by dotted name
    inputs: dict = field(default_factory=dict)  # with a batch axis
    call: dict = field(default_factory=dict)  # arguments of relpos.attention
    of: list = None
    leaves: list = None

    def __post_init__(self):
        if self.leaves is None:
            self.leaves = [*(self.of or self.qkv), *self.parameters.values()]


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


def of(scheme, name, make, *arguments, old=False, **options):
    return Origin(scheme, name, partial(make, *arguments, **options), old=old)


def formula(scheme, make, *arguments, **options):
    made = partial(make, *arguments, **options)
    return Origin(scheme, "the paper's formula", made, package="")


def model(name):
    """The module of a model of transformers."""
    return import_module(f"transformers.models.{name}.modeling_{name}")


def config(**own):
    """The configuration of a small model without dropout."""
    return SimpleNamespace(**SIZES | own)


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


def qkv(queries, keys=None, head_dim=DIM):
    shapes = [
        (2, HEADS, length, head_dim) for length in (queries, keys or queries, keys or queries)
    ]
    return [normal(*shape, seed=n) for n, shape in enumerate(shapes)]


def heads_of(x):
    """[B, L, H D] or [rows, H D] with the head axis before that of the rows."""
    return x.unflatten(-1, (HEADS, -1)).transpose(-2, -3)


def seeded(module, seed=1):
    module.to(Drawing.dtype).eval()
    with torch.no_grad():
        for n, parameter in enumerate(module.parameters()):
            parameter.copy_(0.25 * numbers(*parameter.shape, seed=1000 * seed + n))
    return module


def passing(*linears):
    """Makes square linear maps give what they get."""
    with torch.no_grad():
        for linear in linears:
            linear.weight.copy_(torch.eye(len(linear.weight)))
            if linear.bias is not None:
                linear.bias.zero_()


def projected(hidden, *linears):
    return [heads_of(linear(hidden)) for linear in linears]


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


def hidden_keys(length, padded):
    """The padding, if any: an argument of relpos that hides it, and numbers that others add."""
    mask = torch.zeros(2, 1, 1, length, dtype=Drawing.dtype)
    if not padded:
        return {}, mask
    mask = mask.masked_fill(padding(length)[:, None, None], torch.finfo(mask.dtype).min)
    return {"key_padding_mask": padding(length)}, mask


def of_bias(scheme, options, queries, keys, bias, parameters, padded=False, **call):
    """The peer of a bias [(B,) H, Lq, Lk] that another module computes."""
    q, k, v = qkv(queries, keys)
    hidden, _ = hidden_keys(keys, padded)
    scores = q @ k.mT * DIM**-0.5 + bias
    out = attended(scores, v, call.get("is_causal", False), hidden.get("key_padding_mask"))
    return Peer(scheme, options, [q, k, v], out, parameters, call=call | hidden)


def by_relpos(peer, dtype):
    """The result of relpos for a peer, and what it was computed from: q, k, v, the parameters of
    the peer, and inputs that train."""
    module = registry()[peer.scheme](**peer.options).to(dtype)
    module.load_state_dict({n: x.detach() for n, x in peer.parameters.items()})
    given = [x.detach() for x in (*peer.qkv, *peer.inputs.values())]
    fresh = [x.to(dtype).requires_grad_() if x.is_floating_point() else x for x in given]
    position = module(*fresh[3:]) if peer.inputs else module
    out = relpos.attention(*fresh[:3], position=position, **peer.call)
    held = dict(module.named_parameters())
    trained = [x for x in fresh[3:] if x.requires_grad]
    return out, [*fresh[:3], *(held[n] for n in peer.parameters), *trained]


def pulled(peer, gradients):
    """Gradients of the peer's leaves from those of what relpos computed from."""
    trained = [x for x in peer.inputs.values() if x.is_floating_point()]
    tensors = [*peer.qkv, *peer.parameters.values(), *trained]
    gradients = [g.to(x.dtype) for g, x in zip(gradients, tensors, strict=True)]
    return torch.autograd.grad(tensors, peer.leaves, gradients, retain_graph=True)


def deberta_config(**own):
    plain = {"hidden_dropout_prob": 0.0, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
    plain |= {"max_relative_positions": 512, "max_position_embeddings": 512}
    return config(**plain | own)


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
    hf = model("deberta_v2")
    own = deberta_config(position_buckets=buckets, share_att_key=shared, **own)
    module = seeded(hf.DisentangledSelfAttention(own))
    span = buckets if buckets > 0 else own.max_relative_positions
    hidden, rows = normal(2, length, WIDTH), normal(2 * span, WIDTH)
    hide, mask = hidden_keys(length, padded)
    seen = (mask == 0).expand(-1, -1, length, -1)
    out = heads_of(module(hidden, seen, rel_embeddings=rows)[0])
    projections = {"c2p": ("pos_key", "key"), "p2c": ("pos_query", "query")}
    parameters = {}
    for kind in own.pos_att_type:
        name, content = projections[kind]
        project = getattr(module, f"{content}_proj" if shared else f"{name}_proj")
        parameters[name] = heads_of(project(rows))
    made = projected(hidden, module.query_proj, module.key_proj, module.value_proj)
    call = hide | {"scale": root(1 + len(own.pos_att_type))}
    options = options_of_deberta(own, max(buckets, 0))
    return Peer("deberta", options, made, out, parameters, {}, call, leaves=[hidden, rows])


def deberta_v1(length, **own):
    hf = model("deberta")
    own = deberta_config(**own)
    module = seeded(hf.DisentangledSelfAttention(own))
    hidden = normal(2, length, WIDTH)
    rows = normal(2 * own.max_relative_positions, WIDTH)
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
    options = options_of_deberta(own, 0)
    call, leaves = {"scale": root(3)}, [hidden, rows]
    return Peer("deberta", options, [q, k, v], out, parameters, {}, call, leaves=leaves)


def swin(window):
    module = seeded(model("swin").SwinRelativePositionBias(HEADS, window))
    tokens = window[0] * window[1]
    named = {"relative_position_bias_table": module.relative_position_bias_table}
    options = {"heads": HEADS, "window": list(window)}
    return of_bias("swin", options, tokens, tokens, module(), named)


def transformer_xl(queries, keys, width, clamp_len=None):
    """The formula of the paper's appendix B: one product with all rows of R, then a shift."""
    q, k, v = qkv(queries, keys)
    weight = normal(WIDTH, width)
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
    return Peer("transformer_xl", options, [q, k, v], out, named, call=call)


def kerple(scheme, causal, symmetric=True):
    """As gpt-neox computes it: a Toeplitz grid, of its lower half where it is not symmetric, and
    parameters clamped in place, so that gradients are taken at the clamped numbers."""
    length = 40
    p, a = (normal(HEADS, 1, 1, seed=n) for n in (3, 4))
    held = [torch.tensor([[[-0.5]], [[0.3]], [[1.7]], [[2.6]]]), 0.5 * a.detach()]
    p, a = (x.double().requires_grad_() for x in held)
    high = 2.0 if scheme == "kerple_power" else torch.inf
    used_p = p.detach().clamp(0.01, high).requires_grad_()
    used_a = a.detach().clamp(min=0.01).requires_grad_()
    steps = torch.arange(length).view(-1, 1) + torch.arange(0, -length, -1)
    far = (steps.abs() if symmetric else steps.tril()).double()
    falls = {
        "kerple_power": used_a * far.pow(used_p),
        "kerple_log": used_p * torch.log(1 + used_a * far),
    }
    options = {"heads": HEADS, "symmetric": symmetric}
    named = {"bias_p": Same.apply(used_p, p), "bias_a": Same.apply(used_a, a)}
    peer = of_bias(scheme, options, length, length, -falls[scheme], named, is_causal=causal)
    peer.leaves[3:] = [used_p, used_a]
    return peer


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
    q, k, v = qkv(length, keys)
    log_f = (-normal(2, HEADS, keys, seed=3).detach().abs()).requires_grad_()
    kept = []
    for i in range(keys - length, keys):
        gates = [log_f[..., j + 1 : i + 1].exp().prod(-1) for j in range(i + 1)]
        kept.append(torch.stack(gates + [torch.zeros_like(gates[0])] * (keys - i - 1), -1))
    weights = (q @ k.mT * DIM**-0.5).exp() * torch.stack(kept, -2)
    out = weights / weights.sum(-1, keepdim=True) @ v
    call = {"is_causal": True, "q_offset": keys - length}
    held = [q, k, v, log_f]
    return Peer("forgetting", {}, held[:3], out, {}, {"log_f": log_f}, call, leaves=held)


def gpt_oss(queries, keys=None):
    """eager_attention_forward of Hugging Face's GPT-OSS, causal."""
    hf = model("gpt_oss")
    keys = keys or queries
    q, k, v = qkv(queries, keys)
    sinks = normal(HEADS, seed=3)
    module = SimpleNamespace(sinks=sinks, num_key_value_groups=1, training=False)
    mask = torch.full((queries, keys), -torch.inf, dtype=q.dtype).triu(keys - queries + 1)
    out, _ = hf.eager_attention_forward(module, q, k, v, mask, scaling=DIM**-0.5)
    call, options = {"is_causal": True, "q_offset": keys - queries}, {"heads": HEADS}
    out, named = out.transpose(1, 2), {"sinks": sinks}
    return Peer("attention_sink", options, [q, k, v], out, named, call=call)


debertas = partial(of, "deberta", "DisentangledSelfAttention", deberta_v2)
logarithms = partial(formula, "kerple_log", kerple, "kerple_log")
powers = partial(formula, "kerple_power", kerple, "kerple_power")

PEERS = {
    "DeBERTa v3, long": debertas(520, 256),
    "DeBERTa v3, shared projections": debertas(140, 256, shared=True),
    "DeBERTa v3, padded": debertas(60, 32, padded=True),
    "DeBERTa v2, small buckets": debertas(70, 6, max_relative_positions=20),
    "DeBERTa v2, c2p": debertas(50, 32, pos_att_type=["c2p"]),
    "DeBERTa v2, p2c": debertas(50, 32, pos_att_type=["p2c"]),
    "DeBERTa v2, no buckets": debertas(40, -1, max_relative_positions=12),
    "DeBERTa v1": of("deberta", "DisentangledSelfAttention", deberta_v1, 40),
    "DeBERTa v1, clamped": of(
        "deberta", "DisentangledSelfAttention", deberta_v1, 40, max_relative_positions=12
    ),
    "Swin 7 x 7": of("swin", "SwinRelativePositionBias", swin, (7, 7)),
    "Swin 4 x 9": of("swin", "SwinRelativePositionBias", swin, (4, 9)),
    "Swin 33 x 1": of("swin", "SwinRelativePositionBias", swin, (33, 1)),
    "Transformer-XL": formula("transformer_xl", transformer_xl, 12, 12, 8),
    "Transformer-XL with memory": formula("transformer_xl", transformer_xl, 5, 30, 24),
    "Transformer-XL, clamped": formula("transformer_xl", transformer_xl, 9, 40, 10, 17),
    "KERPLE log, causal": logarithms(True),
    "KERPLE log, both sides": logarithms(False),
    "KERPLE log, gpt-neox's grid": logarithms(False, False),
    "KERPLE power, causal": powers(True),
    "KERPLE power, both sides": powers(False),
    "KERPLE power, gpt-neox's grid": powers(False, False),
    "Forgetting Transformer": formula("forgetting", forgetting, 20),
    "Forgetting Transformer with memory": formula("forgetting", forgetting, 4, 25),
    "GPT-OSS sinks": of("attention_sink", "eager_attention_forward", gpt_oss, 41),
    "GPT-OSS sinks, with a cache": of("attention_sink", "eager_attention_forward", gpt_oss, 33, 65),
}
