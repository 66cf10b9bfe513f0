"""Small random-weight models of every family that relpos.hf fuses."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import relpos
import torch
import transformers

from tests.support.near import close_to_largest, within

# Ours and theirs have torch's float32 layers around the attention: some 400 additions one after
# another, in two blocks of width 32 to 40 and heads of 21 keys. Each rounds by 2^-24 of the largest
# number at most; signs at random give 20 such roundings, and this leaves 168.
FLOAT32_MODEL = 1e-5

_TOKENS = {"vocab_size": 53, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_T5 = {
    **_TOKENS,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.0,
}
_DECODER = {
    **_TOKENS,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
}
_GROUPED = {**_DECODER, "num_key_value_heads": 2, "head_dim": 8}
_FALCON = {
    **_TOKENS,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "new_decoder_architecture": False,
}


@dataclass(frozen=True)
class Family:
    """A model class of transformers, small options, and what kind of model it is.

    oracle: the implementation of transformers to compare with. prompt: what goes in, "ids" or
    "embeddings", or a function (length, rows, mask) that makes it, with a mask as in inputs().
    """

    model: str
    options: dict
    kind: str  # "encoder-decoder", "decoder", "encoder"
    config: str = ""
    oracle: str = "eager"
    prompt: str | Callable[[int, int, str], dict] = "ids"

    def configured(self, **more) -> torch.nn.Module:
        """The model with the weights that transformers gives it."""
        name = self.config or self.model.split("For")[0].removesuffix("Model") + "Config"
        return getattr(transformers, self.model)(
            getattr(transformers, name)(**{**self.options, **more})
        )

    def make(self, **more) -> torch.nn.Module:
        """The model in evaluation mode, with random weights and tables that matter."""
        torch.manual_seed(0)
        model = self.configured(**more).eval()
        for part in model.modules():
            if isinstance(part, transformers.PreTrainedModel):
                part.config._attn_implementation = self.oracle
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(("relative_attention_bias.weight", "sinks")):
                    parameter.normal_(0.0, 1.5)
                elif parameter.dim() > 1:
                    parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
                if name.endswith(".q.weight"):  # T5 has no scale on its scores
                    parameter *= self.options.get("d_kv", 1) ** -0.5
        return model


def _t5(prefix, prompt="ids", **more):
    model = f"{prefix}ForConditionalGeneration"
    return Family(model, {**_T5, **more}, "encoder-decoder", prompt=prompt)


def _decoder(prefix, options=_GROUPED, config="", oracle="eager", **more):
    return Family(f"{prefix}ForCausalLM", {**options, **more}, "decoder", config, oracle)


_LOCAL_GLOBAL = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
FAMILIES = {
    "T5": _t5("T5"),
    "T5, gated (Flan-T5)": _t5("T5", feed_forward_proj="gated-gelu"),
    "mT5": _t5("MT5"),
    "UMT5": _t5("UMT5"),
    "LongT5, local": _t5("LongT5", local_radius=4),
    "LongT5, transient global": _t5(
        "LongT5", local_radius=4, global_block_size=4, encoder_attention_type="transient-global"
    ),
    "Switch": _t5(
        "SwitchTransformers",
        num_experts=2,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        router_jitter_noise=0.0,
    ),
    "Pop2Piano": _t5("Pop2Piano", prompt="embeddings"),
    "MPNet": Family(
        "MPNetModel",
        {**_DECODER, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        "encoder",
    ),
    "BLOOM": _decoder("Bloom", _TOKENS, hidden_size=24, n_layer=2, n_head=6),
    "MPT": _decoder("Mpt", _TOKENS, d_model=24, n_layers=2, n_heads=6, max_seq_len=1024),
    # In 5.23.0 Falcon's eager path adds ALiBi twice (in the mask and in the layer), sdpa once.
    "Falcon, ALiBi": _decoder("Falcon", _FALCON, oracle="sdpa", alibi=True, multi_query=False),
    "Falcon, ALiBi, one key head": _decoder(
        "Falcon", _FALCON, oracle="sdpa", alibi=True, multi_query=True
    ),
    "Falcon, rotary": _decoder("Falcon", _FALCON, alibi=False, multi_query=True),
    "Llama": _decoder("Llama"),
    "Mistral, window": _decoder("Mistral", sliding_window=6),
    "Qwen2": _decoder("Qwen2"),
    "Qwen2, window": _decoder(
        "Qwen2", use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "Qwen3": _decoder("Qwen3"),
    "Gemma": _decoder("Gemma"),
    "Gemma 2": _decoder("Gemma2", attn_logit_softcapping=1.5, sliding_window=6),
    "Gemma 2, no softcap": _decoder("Gemma2", attn_logit_softcapping=None, sliding_window=6),
    "Gemma 3": _decoder("Gemma3", config="Gemma3TextConfig", **_LOCAL_GLOBAL),
    "Phi": _decoder("Phi", _DECODER),
    "Phi-3": _decoder("Phi3", sliding_window=7),
    "GPT-NeoX": _decoder("GPTNeoX", _DECODER),
    "GPT-OSS": _decoder(
        "GptOss",
        **_LOCAL_GLOBAL,
        num_local_experts=4,
        num_experts_per_tok=4,  # a choice of some has no gradient
        experts_implementation="eager",  # the others have no float64
    ),
    "GPT-J": _decoder(
        "GPTJ",
        {**_TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 1024},
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    ),
}
# Without an adapter: absolute positions, windows on both sides, chunks.
OTHERS = {
    "BERT": Family("BertModel", _DECODER, "encoder"),
    "ModernBERT": Family(
        "ModernBertModel",
        {**_DECODER, "local_attention": 6, "global_attn_every_n_layers": 2},
        "encoder",
    ),
    "Llama 4": _decoder(
        "Llama4",
        config="Llama4TextConfig",
        intermediate_size_mlp=40,
        num_local_experts=1,
        attention_chunk_size=6,
        layer_types=["chunked_attention", "full_attention"],
    ),
    "StableLM": _decoder("StableLm", _DECODER, num_key_value_heads=2),
}


_PAIRS: dict[tuple, tuple] = {}


def pair(family, **more) -> tuple[torch.nn.Module, torch.nn.Module]:
    """A model, and a fused copy of it: made once, and copied for each test that leaves the classes
    of transformers as they are; the others call new_pair.

    family: a name of FAMILIES, or an object whose make(**more) gives a model.
    """
    family = FAMILIES[family] if isinstance(family, str) else family
    key = id(family), repr(sorted(more.items()))
    if key not in _PAIRS:
        _PAIRS[key] = *new_pair(family, **more), family  # kept, so that its id stays its own
    return copy.deepcopy(_PAIRS[key][:2])


def new_pair(family, **more) -> tuple[torch.nn.Module, torch.nn.Module]:
    """A model, and a fused copy of it, made now."""
    model = family.make(**more)
    return model, relpos.hf.fuse(copy.deepcopy(model))


def states(model: torch.nn.Module) -> set[str]:
    """What the report says of the layers."""
    return {layer.state for layer in relpos.hf.report(model).layers}


def inputs(family: Family, length: int = 21, rows: int = 2, mask: str = "padded") -> dict:
    """Token ids [rows, length]: row 0 is padded on the left, row 1 on the right and in between.

    mask: "padded" so, "ones" for nothing padded, or "none", left out.
    """
    if callable(family.prompt):
        return family.prompt(length, rows, mask)
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 53, (rows, length), generator=draw)
    seen = torch.ones_like(ids)
    seen[0, : length // 4] = 0
    seen[1:, length - length // 5 :] = 0
    seen[1:, 7] = 0
    found = {"attention_mask": seen if mask == "padded" else torch.ones_like(ids)}
    if mask == "none":
        del found["attention_mask"]
    if family.prompt == "embeddings":
        found["inputs_embeds"] = torch.randn(rows, length, 32, generator=draw)
    else:
        found["input_ids"] = ids
    if family.kind == "encoder-decoder":
        found["decoder_input_ids"] = torch.randint(3, 53, (rows, length // 2), generator=draw)
    return found


def outputs(family: Family, model: torch.nn.Module, given: dict) -> tuple[torch.Tensor, dict]:
    """The first output where a query sees a key, and the gradient of every parameter."""
    dtype = next(model.parameters()).dtype
    given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in given.items()}
    model.zero_grad(set_to_none=True)
    caches = {} if family.kind == "encoder" else {"use_cache": False}
    out = model(**given, **caches)[0]
    if family.kind == "decoder" and "attention_mask" in given:
        out = out * (given["attention_mask"].cumsum(1) > 0)[..., None]
    steps = torch.arange(out.numel(), dtype=torch.float64)
    weights = torch.sin(steps * 0.37).to(torch.float32).view_as(out).to(dtype)
    (out * weights).sum().backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return out.detach(), gradients


def same(ours, theirs, what="result"):
    """Equal to the rounding of a model in float32."""
    close_to_largest(ours, theirs, FLOAT32_MODEL, what)


def within_float32(ours, model, errors_of):
    """Each error {what: error} of a fused model's gradients is within FLOAT32_MODEL. Where one is
    above half of it, within four times the largest that errors_of(...) gives for transformers' own
    code, if that is more: of eight models, the weights of seven of which are a unit in the last
    place away or less. One alone may come near by chance where a gradient cancels: for a scale of
    Swin V2 they were 2e-6 to 4e-5."""
    theirs = []
    if max(ours.values(), default=0.0) > FLOAT32_MODEL / 2:
        theirs = [errors_of(each) for each in (model, *(_near(model, seed) for seed in range(7)))]
    for what, error in ours.items():
        within(error, max([FLOAT32_MODEL, *(4 * each[what] for each in theirs)]), what)


def _near(model, seed):
    """A copy with other roundings: of weights a unit in the last place away or less."""
    draw, moved = torch.Generator().manual_seed(seed), copy.deepcopy(model)
    with torch.no_grad():
        for parameter in moved.parameters():
            units = torch.rand(parameter.shape, generator=draw) - 0.5
            parameter.mul_(1 + units * 2**-23)
    return moved


def same_outputs(family, ours, theirs, given=None):
    """Two models give the same, and gradients of the same parameters."""
    given = inputs(family) if given is None else given
    (a, gradients), (b, expected) = (outputs(family, model, given) for model in (ours, theirs))
    same(a, b)
    assert gradients.keys() == expected.keys()


def same_generation(ours, theirs, tokens, **given):
    """Two models generate the same tokens, greedily, from the same logits."""
    found, wanted = (
        model.generate(
            **given,
            max_new_tokens=tokens,
            do_sample=False,
            eos_token_id=None,
            output_logits=True,
            return_dict_in_generate=True,
        )
        for model in (ours, theirs)
    )
    assert torch.equal(found.sequences, wanted.sequences)
    for step in zip(found.logits, wanted.logits, strict=True):
        same(*step)
