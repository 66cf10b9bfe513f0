"""Models of transformers that bench/hf_models.py measures: an entry for each, with random weights.

An entry makes a model twice: as large as it is measured, and small enough to be compared at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

VOCABULARY = 1000  # more would measure the embedding and the head


@dataclass(frozen=True)
class Entry:
    """A model class, its options, and what it is given.

    small: options that differ in the comparison. given(rows, length): the inputs; sizes: rows and
    length where it is measured, few: those of the comparison. ways: what it can run on besides
    relpos. prompt: tokens before those that it generates, None for a model that does not.
    tables: names of parameters that would be 0 or tiny without being drawn anew.
    """

    model: str
    config: str
    options: dict[str, Any]
    small: dict[str, Any]
    given: Callable[[int, int], dict[str, Tensor]]
    sizes: tuple[int, int]
    few: tuple[int, int] = (2, 150)
    ways: tuple[str, ...] = ("eager", "sdpa")
    prompt: int | None = None
    tables: tuple[str, ...] = ()

    def make(self, way: str, *, small: bool = False) -> nn.Module:
        """The model on an attention implementation of transformers; eager for relpos."""
        torch.manual_seed(0)
        options = {**self.options, **(self.small if small else {})}
        options["attn_implementation"] = "eager" if way == "relpos" else way
        model = getattr(transformers, self.model)(getattr(transformers, self.config)(**options))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(self.tables or "\n"):
                    nn.init.normal_(parameter, 0.0, 0.5)
        return model

    def inputs(self, *, small: bool = False) -> dict[str, Tensor]:
        return self.given(*(self.few if small else self.sizes))

    def before(self) -> dict[str, Tensor]:
        """What generation starts from."""
        given = self.given(self.sizes[0], self.prompt or 1)
        return {n: x for n, x in given.items() if n in ("input_ids", "attention_mask")}


def tokens(rows: int, length: int) -> dict[str, Tensor]:
    """Token ids; an eighth of row 0 is padding."""
    ids = torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))
    seen = torch.ones_like(ids)
    seen[0, length - length // 8 :] = 0
    return {"input_ids": ids, "attention_mask": seen}


def decoded(rows: int, length: int) -> dict[str, Tensor]:
    """Token ids without padding, for a model that would fill a cache unless told otherwise."""
    ids = tokens(rows, length)["input_ids"]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}


def translated(rows: int, length: int) -> dict[str, Tensor]:
    return {**tokens(rows, length), "decoder_input_ids": tokens(rows, length // 4)["input_ids"]}


def image(rows: int, side: int) -> dict[str, Tensor]:
    return {"pixel_values": _floats(rows, 3, side, side)}


def sound(rows: int, length: int) -> dict[str, Tensor]:
    return {"input_values": _floats(rows, length)}


def _floats(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(1))


def features(width: int) -> Callable[[int, int], dict[str, Tensor]]:
    return lambda rows, length: {"input_features": _floats(rows, length, width)}


_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 768,
    "d_kv": 64,
    "d_ff": 3072,
    "num_heads": 12,
    "num_layers": 12,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}
_SMALL_T5 = {"d_model": 128, "d_ff": 256, "num_heads": 2, "num_layers": 2, "num_decoder_layers": 2}
_SMALL = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
}
_DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "pad_token_id": 0,
}
_NO_DROPOUT = {
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "layerdrop": 0.0,
}
_SPEECH = {
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "feat_proj_dropout": 0.0,
    "layerdrop": 0.0,
    "apply_spec_augment": False,
}
ENTRIES = {
    "T5 encoder, 4 layers": Entry(
        "T5EncoderModel",
        "T5Config",
        {**_T5, "num_layers": 4, "use_cache": False},
        _SMALL_T5,
        tokens,
        (2, 2048),
        tables=("relative_attention_bias.weight",),
    ),
    "T5-base": Entry(
        "T5ForConditionalGeneration",
        "T5Config",
        _T5,
        _SMALL_T5,
        translated,
        (2, 512),
        prompt=512,
        tables=("relative_attention_bias.weight",),
    ),
    "DeBERTa-v3-base": Entry(
        "DebertaV2Model",
        "DebertaV2Config",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "relative_attention": True,
            "position_biased_input": False,
            "position_buckets": 256,
            "max_position_embeddings": 512,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"],
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        _SMALL,
        tokens,
        (4, 512),
        ways=("eager",),
        tables=("rel_embeddings.weight",),
    ),
    "Inkling, 4 layers": Entry(
        "InklingForCausalLM",
        "InklingTextConfig",
        {
            **_DECODER,
            "num_hidden_layers": 4,
            "unpadded_vocab_size": VOCABULARY,
            "swa_num_attention_heads": 8,
            "swa_num_key_value_heads": 4,
            "swa_head_dim": 64,
            "layer_types": [*["hybrid_sliding"] * 3, "hybrid"],
            "mlp_layer_types": ["dense"] * 4,
            "log_scaling_n_floor": 1024,
            "logits_mup_width_multiplier": 2.0,
        },
        {
            **_SMALL,
            "swa_num_attention_heads": 2,
            "swa_num_key_value_heads": 1,
            "num_key_value_heads": 1,
            "sliding_window_size": 40,
            "rel_extent": 60,
            "log_scaling_n_floor": 50,
            "layer_types": ["hybrid_sliding", "hybrid"],
            "mlp_layer_types": ["dense"] * 2,
        },
        decoded,
        (1, 2048),
        prompt=1024,
        tables=("rel_logits_proj.proj",),
    ),
    "Llama, 8 layers": Entry(
        "LlamaForCausalLM",
        "LlamaConfig",
        {**_DECODER, "num_hidden_layers": 8, "max_position_embeddings": 8192},
        {**_SMALL, "num_key_value_heads": 1},
        decoded,
        (1, 2048),
        prompt=1024,
    ),
    "Parakeet-like, 4 of 24 layers": Entry(
        "ParakeetEncoder",
        "ParakeetEncoderConfig",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "intermediate_size": 4096,
            "num_mel_bins": 80,
            "subsampling_conv_channels": 256,
            "initializer_range": 0.1,
            **_NO_DROPOUT,
            "dropout_positions": 0.0,
        },
        {**_SMALL, "subsampling_conv_channels": 16},
        features(80),
        (1, 12000),
        few=(2, 400),
        tables=("bias_u", "bias_v"),
    ),
    "w2v-BERT 2.0, 6 of 24 layers": Entry(
        "Wav2Vec2BertModel",
        "Wav2Vec2BertConfig",
        {"num_hidden_layers": 6, **_SPEECH, "conformer_conv_dropout": 0.0},
        _SMALL,
        features(160),
        (1, 1000),
        tables=("distance_embedding.weight",),
    ),
    "WavLM-base, 4 of 12 layers": Entry(
        "WavLMModel",
        "WavLMConfig",
        {"num_hidden_layers": 4, **_SPEECH},
        _SMALL,
        sound,
        (1, 320400),
        few=(2, 16000),
        ways=("eager",),
        tables=("rel_attn_embed.weight",),
    ),
    "SAM-B, 3 of 12 layers": Entry(
        "SamVisionModel",
        "SamVisionConfig",
        {"num_hidden_layers": 3, "global_attn_indexes": [2], "initializer_range": 0.02},
        {
            "hidden_size": 128,
            "mlp_dim": 256,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "global_attn_indexes": [1],
            "image_size": 192,
            "window_size": 5,
        },
        image,
        (1, 1024),
        few=(2, 192),
        tables=("rel_pos_h", "rel_pos_w"),
    ),
    "Swin-B": Entry(
        "SwinModel",
        "SwinConfig",
        {
            "embed_dim": 128,
            "depths": [2, 2, 18, 2],
            "num_heads": [4, 8, 16, 32],
            "window_size": 7,
            "drop_path_rate": 0.0,
        },
        {"embed_dim": 32, "depths": [2, 2], "num_heads": [1, 2], "image_size": 112},
        image,
        (1, 224),
        few=(2, 112),
        tables=("relative_position_bias_table",),
    ),
}
