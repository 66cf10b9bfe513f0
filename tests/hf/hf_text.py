"""Small random-weight models for text whose positions are no bias of the distance alone, and their
speech kin."""

import torch

from tests.hf.hf_models import _DECODER, Family

_ENCODER = {**_DECODER, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_DEBERTA = {
    **_ENCODER,
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["p2c", "c2p"],
    "max_position_embeddings": 64,
}
_DEBERTA_V3 = {
    **_DEBERTA,
    "position_buckets": 8,
    "max_position_embeddings": 12,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
}


def _waves(length: int, rows: int, mask: str) -> dict[str, torch.Tensor]:
    """Sound of SEW-D's shortest strides, twice as many samples as tokens; the model's own padding
    is on the right."""
    sound = torch.randn(rows, 8 * length, generator=torch.Generator().manual_seed(1))
    seen = torch.ones(rows, 8 * length, dtype=torch.int64)
    if mask == "padded":
        seen[1:, 5 * length :] = 0
    return {"input_values": sound} | ({} if mask == "none" else {"attention_mask": seen})


def _encoder(model: str, options: dict, **more) -> Family:
    return Family(model, {**options, **more}, "encoder")


FAMILIES = {
    "DeBERTa": _encoder("DebertaModel", _DEBERTA),
    "DeBERTa, past its rows": _encoder("DebertaModel", _DEBERTA, max_relative_positions=9),
    "DeBERTa, c2p": _encoder("DebertaModel", _DEBERTA, pos_att_type=["c2p"]),
    "DeBERTa v2": _encoder(
        "DebertaV2Model", _DEBERTA, conv_kernel_size=3, position_buckets=8, share_att_key=False
    ),
    "DeBERTa v2, no buckets": _encoder("DebertaV2Model", _DEBERTA, pos_att_type=["p2c"]),
    "DeBERTa v3": _encoder("DebertaV2Model", _DEBERTA_V3),
    "SEW-D": Family(
        "SEWDModel",
        {
            **_DEBERTA_V3,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
            "conv_dim": [16, 32],
            "conv_stride": [2, 2],
            "conv_kernel": [4, 2],
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
            "layerdrop": 0.0,
        },
        "encoder",
        prompt=_waves,
    ),
}
