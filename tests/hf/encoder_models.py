"""Small random-weight models of speech and of images that relpos.hf fuses."""

import torch

from tests.hf.hf_models import Family

_WIDE = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2}
_NO_DROPOUT = {
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "layerdrop": 0.0,
}
_WAV2VEC2 = {
    **_WIDE,
    **_NO_DROPOUT,
    "num_attention_heads": 4,
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (8, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "feat_proj_dropout": 0.0,
    "final_dropout": 0.0,
    "apply_spec_augment": False,
    "max_source_positions": 30,
}
_W2V_BERT = {
    **_WIDE,
    **_NO_DROPOUT,
    "num_attention_heads": 4,
    "feature_projection_input_dim": 20,
    "feat_proj_dropout": 0.0,
    "conformer_conv_dropout": 0.0,
    "apply_spec_augment": False,
    "left_max_position_embeddings": 6,
    "right_max_position_embeddings": 3,
    "max_source_positions": 30,
}
_PARAKEET = {
    **_WIDE,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "subsampling_conv_channels": 8,
    "num_mel_bins": 16,
    "dropout": 0.0,
    "dropout_positions": 0.0,
    "layerdrop": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "conv_kernel_size": 5,
}


def waves(tokens: int, rows: int = 2, seen: torch.Tensor | None = None) -> dict:
    """For ten samples a token."""
    return {"input_values": torch.randn(rows, 10 * tokens + 8)}


def speech(model: str, options: dict, config: str = "", **more) -> Family:
    return Family(model, {**options, **more}, "encoder", config)
