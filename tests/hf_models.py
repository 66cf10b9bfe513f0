"""Small random-weight models of every family that relpos.hf fuses."""

from dataclasses import dataclass

import torch
import transformers
from near import close_to_largest

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
    "embeddings".
    """

    model: str
    options: dict
    kind: str  # "encoder-decoder", "decoder", "encoder"
    config: str = ""
    oracle: str = "eager"
    prompt: str = "ids"

    def make(self, **more) -> torch.nn.Module:
        """The model in evaluation mode, its tables scaled so that the bias matters."""
        name = self.config or self.model.split("For")[0].removesuffix("Model") + "Config"
        torch.manual_seed(0)
        config = getattr(transformers, name)(**{**self.options, **more})
        model = getattr(transformers, self.model)(config).eval()
        for part in model.modules():
            if isinstance(part, transformers.PreTrainedModel):
                part.config._attn_implementation = self.oracle
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if parameter_name.endswith(("relative_attention_bias.weight", "sinks")):
                    parameter.normal_(0.0, 1.5)
                elif parameter.dim() > 1:
                    parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
                if "d_kv" in self.options and parameter_name.endswith(".q.weight"):
                    parameter *= self.options["d_kv"] ** -0.5  # T5 has no scale on its scores
        return model


_SEQ2SEQ = "ForConditionalGeneration"
FAMILIES = {
    "T5": Family(f"T5{_SEQ2SEQ}", _T5, "encoder-decoder"),
    "T5, gated (Flan-T5)": Family(
        f"T5{_SEQ2SEQ}", {**_T5, "feed_forward_proj": "gated-gelu"}, "encoder-decoder"
    ),
    "mT5": Family(f"MT5{_SEQ2SEQ}", _T5, "encoder-decoder"),
    "UMT5": Family(f"UMT5{_SEQ2SEQ}", _T5, "encoder-decoder"),
    "LongT5, local": Family(f"LongT5{_SEQ2SEQ}", {**_T5, "local_radius": 4}, "encoder-decoder"),
    "LongT5, transient global": Family(
        f"LongT5{_SEQ2SEQ}",
        {
            **_T5,
            "local_radius": 4,
            "global_block_size": 4,
            "encoder_attention_type": "transient-global",
        },
        "encoder-decoder",
    ),
    "Switch": Family(
        f"SwitchTransformers{_SEQ2SEQ}",
        {
            **_T5,
            "num_experts": 2,
            "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1,
            "router_jitter_noise": 0.0,
        },
        "encoder-decoder",
    ),
    "Pop2Piano": Family(f"Pop2Piano{_SEQ2SEQ}", _T5, "encoder-decoder", prompt="embeddings"),
    "MPNet": Family(
        "MPNetModel",
        {**_DECODER, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        "encoder",
    ),
    "BLOOM": Family(
        "BloomForCausalLM", {**_TOKENS, "hidden_size": 24, "n_layer": 2, "n_head": 6}, "decoder"
    ),
    "MPT": Family(
        "MptForCausalLM",
        {**_TOKENS, "d_model": 24, "n_layers": 2, "n_heads": 6, "max_seq_len": 1024},
        "decoder",
    ),
    # In 5.23.0 Falcon's eager path adds ALiBi twice (in the mask and in the layer), sdpa once.
    "Falcon, ALiBi": Family(
        "FalconForCausalLM", {**_FALCON, "alibi": True, "multi_query": False}, "decoder", "", "sdpa"
    ),
    "Falcon, ALiBi, one key head": Family(
        "FalconForCausalLM", {**_FALCON, "alibi": True, "multi_query": True}, "decoder", "", "sdpa"
    ),
    "Falcon, rotary": Family(
        "FalconForCausalLM", {**_FALCON, "alibi": False, "multi_query": True}, "decoder"
    ),
    "Llama": Family("LlamaForCausalLM", _GROUPED, "decoder"),
    "Mistral, window": Family("MistralForCausalLM", {**_GROUPED, "sliding_window": 6}, "decoder"),
    "Qwen2": Family("Qwen2ForCausalLM", _GROUPED, "decoder"),
    "Qwen2, window": Family(
        "Qwen2ForCausalLM",
        {**_GROUPED, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
        "decoder",
    ),
    "Qwen3": Family("Qwen3ForCausalLM", _GROUPED, "decoder"),
    "Gemma": Family("GemmaForCausalLM", _GROUPED, "decoder"),
    "Gemma 2": Family(
        "Gemma2ForCausalLM",
        {**_GROUPED, "attn_logit_softcapping": 1.5, "sliding_window": 6},
        "decoder",
    ),
    "Gemma 2, no softcap": Family(
        "Gemma2ForCausalLM",
        {**_GROUPED, "attn_logit_softcapping": None, "sliding_window": 6},
        "decoder",
    ),
    "Gemma 3": Family(
        "Gemma3ForCausalLM",
        {
            **_GROUPED,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        "decoder",
        "Gemma3TextConfig",
    ),
    "Phi": Family("PhiForCausalLM", _DECODER, "decoder"),
    "Phi-3": Family("Phi3ForCausalLM", {**_GROUPED, "sliding_window": 7}, "decoder"),
    "GPT-NeoX": Family("GPTNeoXForCausalLM", _DECODER, "decoder"),
    "GPT-OSS": Family(
        "GptOssForCausalLM",
        {
            **_GROUPED,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"],
            "num_local_experts": 4,
            "num_experts_per_tok": 4,  # a choice of some has no gradient
            "experts_implementation": "eager",  # the others have no float64
        },
        "decoder",
    ),
    "GPT-J": Family(
        "GPTJForCausalLM",
        {
            **_TOKENS,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "rotary_dim": 4,
            "n_positions": 1024,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
        "decoder",
    ),
}


def inputs(family: Family, length: int = 21, rows: int = 2, mask: str = "padded") -> dict:
    """Token ids [rows, length]: row 0 is padded on the left, row 1 on the right and in between.

    mask: "padded" so, "ones" for nothing padded, or "none", left out.
    """
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
