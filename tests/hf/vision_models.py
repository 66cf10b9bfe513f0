"""Small random-weight models of images that relpos.hf fuses."""

from tests.hf.encoder_models import Encoder, draw

_SWIN = {
    "image_size": 24,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 3,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "drop_path_rate": 0.0,
}
_CLAP = {
    "window_size": 4,
    "num_mel_bins": 16,
    "spec_size": 32,
    "patch_size": 4,
    "patch_stride": [4, 4],
    "num_classes": 5,
    "hidden_size": 32,
    "patch_embeds_hidden_size": 16,
    "depths": [2, 2],
    "num_attention_heads": [2, 4],
    "enable_fusion": False,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "drop_path_rate": 0.0,
    "mlp_ratio": 2.0,
}
_BEIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "image_size": 16,
    "patch_size": 4,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "drop_path_rate": 0.0,
    "layer_scale_init_value": 0.5,
    "use_relative_position_bias": True,
}
_LEVIT = {
    "image_size": 128,
    "hidden_sizes": [16, 24, 32],
    "num_attention_heads": [2, 3, 4],
    "depths": [1, 1, 1],
    "key_dim": [8, 8, 8],
    "mlp_ratio": [2, 2, 2],
    "attention_ratio": [2, 2, 2],
    "drop_path_rate": 0,
}
_SAM = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 24,
    "patch_size": 4,
    "window_size": 4,
    "global_attn_indexes": [1],
    "mlp_dim": 40,
    "output_channels": 16,
    "attention_dropout": 0.0,
}
_VITDET = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 24,
    "pretrain_image_size": 24,
    "patch_size": 4,
    "window_size": 4,
    "window_block_indices": [0],
    "use_relative_position_embeddings": True,
}


def _pixels(*size):
    return lambda length, mask: {"pixel_values": draw(2, 3, *size)}


def _images(model, options, config, size=(24, 24), **more):
    more = {"given": _pixels(*size), **more}
    return Encoder(model, options, "encoder", config, **more)


VISION = {
    "Swin": _images("SwinModel", _SWIN, "SwinConfig"),
    "Swin, padded windows": _images("SwinModel", _SWIN, "SwinConfig", (20, 26)),
    "Donut's Swin": _images("DonutSwinModel", _SWIN, "DonutSwinConfig"),
    "MaskFormer's Swin": _images(
        "MaskFormerSwinModel", _SWIN, "MaskFormerSwinConfig", folder="maskformer_swin"
    ),
    "CLAP, audio": _images(
        "ClapAudioModel",
        _CLAP,
        "ClapAudioConfig",
        given=lambda length, mask: {"input_features": draw(2, 1, 64, 16)},
    ),
    "Swin V2": _images("Swinv2Model", _SWIN, "Swinv2Config"),
    "Swin2SR": _images(
        "Swin2SRModel",
        {**_SWIN, "patch_size": 1, "depths": [2], "num_heads": [2], "upscale": 1},
        "Swin2SRConfig",
    ),
    "BEiT": _images("BeitModel", _BEIT, "BeitConfig", (16, 16)),
    "BEiT, one table": _images(
        "BeitModel",
        {**_BEIT, "use_relative_position_bias": False, "use_shared_relative_position_bias": True},
        "BeitConfig",
        (16, 16),
    ),
    "BEiT, oblong, both": _images(
        "BeitModel",
        {**_BEIT, "image_size": (12, 20), "use_shared_relative_position_bias": True},
        "BeitConfig",
        (12, 20),
    ),
    "Data2Vec, images": _images(
        "Data2VecVisionModel",
        {**_BEIT, "use_shared_relative_position_bias": True},
        "Data2VecVisionConfig",
        (16, 16),
    ),
    "LeViT": _images("LevitModel", _LEVIT, "LevitConfig", (128, 128)),
    "SAM": _images("SamVisionModel", {**_SAM, "attn_implementation": "eager"}, "SamVisionConfig"),
    "SAM, sdpa": _images(
        "SamVisionModel", {**_SAM, "attn_implementation": "sdpa"}, "SamVisionConfig"
    ),
    "SAM-HQ": _images("SamHQVisionModel", _SAM, "SamHQVisionConfig"),
    "ViTDet": _images("VitDetModel", _VITDET, "VitDetConfig"),
    "ViTDet, other sizes": _images("VitDetModel", {**_VITDET}, "VitDetConfig", (20, 28)),
}
