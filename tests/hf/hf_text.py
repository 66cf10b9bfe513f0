"""Small random-weight models for text whose positions are no bias of the distance alone, and their
speech kin."""

import torch

from tests.hf.hf_models import _DECODER, _GROUPED, _T5, _TOKENS, Family, inputs

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
_INKLING = {
    **_GROUPED,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 1,
    "swa_head_dim": 8,
    "sliding_window_size": 6,
    "rel_extent": 9,
    "d_rel": 4,
    "log_scaling_n_floor": 5,
    "layer_types": ["hybrid_sliding", "hybrid"],
    "moe_intermediate_size": 16,
    "n_routed_experts": 2,
    "num_experts_per_tok": 2,  # a choice of some has no gradient
    "unpadded_vocab_size": 53,
    "experts_implementation": "eager",  # the others have no float64
}
_XLNET = {
    **_TOKENS,
    "d_model": 32,
    "n_layer": 2,
    "n_head": 4,
    "d_inner": 40,
    "dropout": 0.0,
    "summary_last_dropout": 0.0,
}
_FUNNEL = {
    **_TOKENS,
    "d_model": 32,
    "block_sizes": [1, 2, 1],
    "n_head": 4,
    "d_head": 8,
    "d_inner": 40,
    "num_decoder_layers": 1,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}
_CPM_ANT = {
    **_TOKENS,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "dim_head": 8,
    "dim_ff": 40,
    "num_hidden_layers": 2,
    "position_bias_num_buckets": 8,
    "position_bias_max_distance": 12,
    "prompt_types": 4,
    "prompt_length": 5,
    "segment_types": 4,
    "init_std": 0.2,
    "use_cache": True,
}
_PIX2STRUCT = {
    **_TOKENS,
    "hidden_size": 32,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "dropout_rate": 0.0,
    "is_decoder": True,
    "initializer_range": 0.02,  # which its init reads and its config lacks
}
_LAYOUT = {
    **_ENCODER,
    "vocab_size": 53,
    "coordinate_size": 5,
    "shape_size": 6,
    "input_size": 16,
    "rel_pos_bins": 8,
    "max_rel_pos": 12,
    "rel_2d_pos_bins": 8,
    "max_rel_2d_pos": 200,
    "visual_embed": False,
}
_UDOP = {
    "num_layers": 2,
    "image_size": 16,
    "patch_size": 4,
    "max_2d_position_embeddings": 64,
    "relative_bias_args": [
        {"type": "1d", "relative_attention_num_buckets": 8, "max_distance": 12},
        {"type": "horizontal"},
        {"type": "vertical"},
    ],
}


def _waves(length: int, rows: int, mask: str) -> dict[str, torch.Tensor]:
    """Sound of SEW-D's shortest strides, twice as many samples as tokens; the model's own padding
    is on the right."""
    sound = torch.randn(rows, 8 * length, generator=torch.Generator().manual_seed(1))
    seen = torch.ones(rows, 8 * length, dtype=torch.int64)
    if mask == "padded":
        seen[1:, 5 * length :] = 0
    return {"input_values": sound} | ({} if mask == "none" else {"attention_mask": seen})


def _segmented(length: int, rows: int, mask: str) -> dict[str, torch.Tensor]:
    """Tokens of two segments after [CLS], which is of a third; padding as in inputs()."""
    plain = inputs(Family("", {}, "encoder"), length, rows, mask)
    types = (torch.arange(length) > length // 3).long()
    types[0] = 2
    return {**plain, "token_type_ids": types.expand(rows, -1)}


def _left_padded(length: int, rows: int, mask: str) -> dict[str, torch.Tensor]:
    """CPM-Ant takes a mask from the padding's number, 0, which is on the left."""
    ids = inputs(Family("", {}, "encoder"), length, rows, mask)["input_ids"]
    if mask == "padded":
        ids[0, : length // 4] = 0
    return {"input_ids": ids}


def _beside_an_encoder(length: int, rows: int, mask: str) -> dict[str, torch.Tensor]:
    """A decoder's tokens, and states of an encoder, some of them padding."""
    plain = inputs(Family("", {}, "encoder"), length, rows, mask)
    states = torch.randn(rows, 9, 32, generator=torch.Generator().manual_seed(2))
    seen = torch.ones(rows, 9, dtype=torch.int64)
    seen[0, 6:] = 0
    return {**plain, "encoder_hidden_states": states, "encoder_attention_mask": seen}


def _on_a_page(length: int, rows: int, mask: str) -> dict[str, torch.Tensor]:
    """Tokens in boxes of thousandths."""
    plain = inputs(Family("", {}, "encoder"), length, rows, mask)
    draw = torch.Generator().manual_seed(3)
    first = torch.randint(0, 900, (rows, length, 2), generator=draw)
    sides = torch.randint(0, 100, (rows, length, 2), generator=draw)
    return {**plain, "bbox": torch.cat([first, first + sides], -1)}


def _of_a_page(length: int, rows: int, mask: str) -> dict[str, torch.Tensor]:
    """Boxes of which none are whole hundredths apart, where float32 counts otherwise than float64;
    and what a decoder begins with."""
    page = _on_a_page(length, rows, mask)
    boxes = page["bbox"] / 1000
    boxes += 1e-3 * torch.rand(boxes.shape, generator=torch.Generator().manual_seed(5))
    return {**page, "bbox": boxes, "decoder_input_ids": page["input_ids"][:, :9]}


def _with_an_image(length: int, rows: int, mask: str) -> dict[str, torch.Tensor]:
    """The same, and an image of 16 patches."""
    image = torch.randn(rows, 3, 16, 16, generator=torch.Generator().manual_seed(4))
    return {**_on_a_page(length, rows, mask), "pixel_values": image}


def _encoder(model: str, options: dict, prompt="ids", **more) -> Family:
    return Family(model, {**options, **more}, "encoder", prompt=prompt)


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
    "Inkling": Family(
        "InklingForCausalLM",
        {**_INKLING, "n_shared_experts": 1, "logits_mup_width_multiplier": 1.0},
        "decoder",
        "InklingTextConfig",
    ),
    "Inkling, no temperature": Family(
        "InklingForCausalLM",
        {**_INKLING, "n_shared_experts": 1, "log_scaling_n_floor": None},
        "decoder",
        "InklingTextConfig",
    ),
    "Inkling 2": Family("Inkling2ForCausalLM", _INKLING, "decoder", "Inkling2TextConfig"),
    "XLNet": Family("XLNetModel", _XLNET, "encoder"),
    "XLNet, segments": Family("XLNetModel", _XLNET, "encoder", prompt=_segmented),
    "XLNet, clamped": Family(
        "XLNetModel", {**_XLNET, "clamp_len": 5}, "encoder", prompt=_segmented
    ),
    "Funnel": Family("FunnelModel", _FUNNEL, "encoder", prompt=_segmented),
    "Funnel, factorized": Family(
        "FunnelModel", {**_FUNNEL, "attention_type": "factorized"}, "encoder", prompt=_segmented
    ),
    "Funnel, all pooled": Family(
        "FunnelModel",
        {**_FUNNEL, "pool_q_only": False, "separate_cls": False},
        "encoder",
        prompt=_segmented,
    ),
    "Funnel, not truncated": Family(
        "FunnelBaseModel", {**_FUNNEL, "truncate_seq": False}, "encoder", "FunnelConfig"
    ),
    "CPM-Ant": Family(
        "CpmAntForCausalLM", _CPM_ANT, "decoder", "CpmAntConfig", prompt=_left_padded
    ),
    "Pix2Struct, text": Family(
        "Pix2StructTextModel", _PIX2STRUCT, "decoder", prompt=_beside_an_encoder
    ),
    "UDOP": Family(
        "UdopForConditionalGeneration", {**_T5, **_UDOP}, "encoder-decoder", prompt=_of_a_page
    ),
    "LayoutLM v3": _encoder("LayoutLMv3Model", _LAYOUT, prompt=_on_a_page),
    "LayoutLM v3, image": _encoder(
        "LayoutLMv3Model",
        {**_LAYOUT, "visual_embed": True, "patch_size": 4},
        prompt=_with_an_image,
    ),
    "LayoutLM v3, text": _encoder(
        "LayoutLMv3Model", _LAYOUT, has_spatial_attention_bias=False, prompt=_on_a_page
    ),
}
