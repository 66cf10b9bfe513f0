"""Small random-weight models of speech that relpos.hf fuses."""

import torch

from tests.hf.encoder_models import Encoder, draw, shown

_WIDE = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2}
_HEADS = {"num_attention_heads": 4}
_NO_DROPOUT = {
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "layerdrop": 0.0,
}
_WAVES = {  # ten samples a token
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (8, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "feat_proj_dropout": 0.0,
    "final_dropout": 0.0,
    "apply_spec_augment": False,
}
_FEATURES = {
    "feature_projection_input_dim": 20,
    "feat_proj_dropout": 0.0,
    "conformer_conv_dropout": 0.0,
    "apply_spec_augment": False,
    "max_source_positions": 30,
}
_SHAW = {"left_max_position_embeddings": 6, "right_max_position_embeddings": 3}
_SEAMLESS = {
    "vocab_size": 53,
    "hidden_size": 32,
    "speech_encoder_layers": 2,
    "speech_encoder_attention_heads": 4,
    "speech_encoder_intermediate_size": 40,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "feature_projection_input_dim": 20,
    "max_source_positions": 30,
    "num_adapter_layers": 1,
    "speech_encoder_dropout": 0.0,
    "adaptor_dropout": 0.0,
    "add_adapter": False,
}
_PARAKEET = {
    **_WIDE,
    **_HEADS,
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
_FASTSPEECH2 = {
    "hidden_size": 24,
    "vocab_size": 53,
    "num_mel_bins": 8,
    **{f"{part}_num_attention_heads": 2 for part in ("encoder", "decoder")},
    **{f"{part}_linear_units": 40 for part in ("encoder", "decoder")},
    "encoder_layers": 2,
    "decoder_layers": 1,
    **{f"{part}_predictor_channels": 8 for part in ("duration", "energy", "pitch")},
    "speech_decoder_postnet_units": 16,
}
_GRANITE = {
    "input_dim": 20,
    "num_layers": 2,
    "hidden_dim": 32,
    "num_heads": 4,
    "dim_head": 8,
    "feedforward_mult": 2,
    "output_dim": 12,
    "context_size": 10,
    "max_pos_emb": 16,
    "dropout": 0.0,
    "conv_kernel_size": 5,
}
_GRANITE5 = {
    **_WIDE,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "vocab_size": 12,
    "num_mel_bins": 5,
    "context_size": 10,
    "max_position_embeddings": 16,
    "conv_kernel_size": 5,
    "subsample_layers": [1],
}
_PHI4 = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_blocks": 2,
    "num_attention_heads": 4,
    "ext_pw_out_channel": 32,
    "depthwise_separable_out_channel": 32,
    "nemo_conv_channels": 4,
    "input_size": 16,
    "bias_max_distance": 9,
}
_GEMMA3N = {
    "hidden_size": 32,
    "conf_num_attention_heads": 4,
    "conf_num_hidden_layers": 2,
    "conf_attention_chunk_size": 4,
    "conf_attention_context_left": 5,
    "conf_attention_context_right": 1,
    "input_feat_size": 16,
    "sscp_conv_channel_size": (8, 4),
    "conf_reduction_factor": 1,
}
_GEMMA4 = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "attention_chunk_size": 4,
    "attention_context_left": 5,
    "attention_context_right": 2,
    "subsampling_conv_channels": (8, 4),
    "output_proj_dims": 24,
}
_SPEECHT5 = {
    "vocab_size": 53,
    "hidden_size": 32,
    **{f"{part}_layers": 2 for part in ("encoder", "decoder")},
    **{f"{part}_attention_heads": 4 for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": 40 for part in ("encoder", "decoder")},
    **{f"{part}_layerdrop": 0.0 for part in ("encoder", "decoder")},
    "encoder_max_relative_position": 5,
    **{f"{part}_dropout": 0.0 for part in ("hidden", "attention", "positional", "activation")},
    "num_mel_bins": 8,
    "speech_decoder_prenet_units": 16,
    "speech_decoder_prenet_dropout": 0.0,
    "speaker_embedding_dim": 8,
    "speech_decoder_postnet_units": 16,
    **_WAVES,
}
_VITS = {
    "vocab_size": 53,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "ffn_dim": 32,
    "flow_size": 24,
    "spectrogram_bins": 9,
    "window_size": 3,
    **_NO_DROPOUT,
    "prior_encoder_num_flows": 1,
    "posterior_encoder_num_wavenet_layers": 1,
    "upsample_initial_channel": 16,
    "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1]],
    "upsample_rates": [2],
    "upsample_kernel_sizes": [4],
}


def _waves(length, mask):
    seen = shown(length, mask).repeat_interleave(10, 1)
    seen = torch.cat([seen, seen[:, -8:]], 1)
    given = {"input_values": draw(*seen.shape)}
    return given | ({"attention_mask": seen} if mask != "none" else {})


def _features(columns, frames=1, name="attention_mask", dtype=torch.int64, of="input_features"):
    def given(length, mask):
        seen = shown(frames * length, mask)
        found = {of: draw(*seen.shape, columns)}
        return found | ({name: seen.to(dtype)} if mask != "none" else {})

    return given


def _gemma3n(length, mask):
    seen = shown(4 * length, mask)
    return {"audio_mel": draw(*seen.shape, 16), "audio_mel_mask": seen == 0}


def _granite(length, mask):
    return {"hidden_states": draw(2, length, 20)}


def _phi4(length, mask):
    frames = shown(8 * length, mask).bool()
    return {"hidden_states": draw(*frames.shape, 16), "mask": frames}


def _text(length, mask):
    draws = torch.Generator().manual_seed(1)
    return torch.randint(3, 53, (2, length), generator=draws)


def _fastspeech2(length, mask):
    return {"input_tensor": _text(length, mask), "attention_mask": shown(length, mask)[:, None]}


def _vits(length, mask):
    seen = shown(length, mask)
    return {
        "input_ids": _text(length, mask),
        "attention_mask": seen,
        "padding_mask": seen[..., None].to(torch.float32),
    }


def _speecht5(length, mask):
    decoder = {"decoder_input_ids": _text(11, mask), "decoder_attention_mask": shown(11, mask)}
    return {**_waves(length, mask), **decoder}


def _told(model, given):
    """The mask that the model returns."""
    with torch.no_grad():
        found = model(**given).attention_mask
    return torch.ones(1, 1) if found is None else found


def _shown(model, given):
    return given.get("attention_mask", torch.ones(1, 1))


def _speech(model, options, config, given, **more):
    return Encoder(model, options, "encoder", config, given=given, **more)


SPEECH = {
    "Wav2Vec2-Conformer": _speech(
        "Wav2Vec2ConformerModel",
        {**_WIDE, **_HEADS, **_NO_DROPOUT, **_WAVES, "max_source_positions": 30},
        "Wav2Vec2ConformerConfig",
        _waves,
    ),
    "w2v-BERT 2.0": _speech(
        "Wav2Vec2BertModel",
        {**_WIDE, **_HEADS, **_NO_DROPOUT, **_FEATURES, **_SHAW},
        "Wav2Vec2BertConfig",
        _features(20),
    ),
    "w2v-BERT, relative": _speech(
        "Wav2Vec2BertModel",
        {
            **_WIDE,
            **_HEADS,
            **_NO_DROPOUT,
            **_FEATURES,
            "position_embeddings_type": "relative",
        },
        "Wav2Vec2BertConfig",
        _features(20),
    ),
    "Seamless M4T, speech": _speech(
        "SeamlessM4TSpeechEncoder",
        _SEAMLESS,
        "SeamlessM4TConfig",
        _features(20),
        folder="seamless_m4t",
    ),
    # Its mask of chunks is bool, which eager attention adds to the scores.
    "Seamless M4T v2, speech": _speech(
        "SeamlessM4Tv2SpeechEncoder",
        {**_SEAMLESS, **_SHAW, "speech_encoder_chunk_size": 10, "speech_encoder_left_chunk_num": 1},
        "SeamlessM4Tv2Config",
        _features(20),
        folder="seamless_m4t_v2",
        oracle="sdpa",
        seen=_shown,
    ),
    "FastSpeech2-Conformer": _speech(
        "FastSpeech2ConformerModel",
        _FASTSPEECH2,
        "FastSpeech2ConformerConfig",
        _fastspeech2,
        part="encoder",
    ),
    "Parakeet": _speech(
        "ParakeetEncoder", _PARAKEET, "ParakeetEncoderConfig", _features(16, 8), seen=_told
    ),
    # Its bool mask is what sdpa has; eager attention inverts it.
    "Nemotron ASR, streaming": _speech(
        "NemotronAsrStreamingEncoder",
        {**_PARAKEET, "sliding_window": 9, "default_num_lookahead_tokens": 2},
        "NemotronAsrStreamingEncoderConfig",
        _features(16, 8),
        seen=_told,
        oracle="sdpa",
    ),
    "Granite Speech": _speech(
        "GraniteSpeechCTCEncoder",
        _GRANITE,
        "GraniteSpeechEncoderConfig",
        _granite,
        folder="granite_speech",
    ),
    "Granite Speech Plus": _speech(
        "GraniteSpeechPlusCTCEncoder",
        _GRANITE,
        "GraniteSpeechPlusEncoderConfig",
        _granite,
        folder="granite_speech_plus",
    ),
    "Granite Speech 5": _speech(
        "GraniteSpeech5Encoder",
        _GRANITE5,
        "GraniteSpeech5EncoderConfig",
        _features(20),
        folder="granite_speech5",
        seen=_told,
    ),
    # Its mask adds 1 to the scores of what is no padding.
    "Phi-4 multimodal, audio": _speech(
        "Phi4MultimodalAudioModel",
        _PHI4,
        "Phi4MultimodalAudioConfig",
        _phi4,
        folder="phi4_multimodal",
    ),
    "Phi-4 multimodal, audio in chunks": _speech(
        "Phi4MultimodalAudioModel",
        {**_PHI4, "chunk_size": 9, "left_chunk": 1},
        "Phi4MultimodalAudioConfig",
        _phi4,
        folder="phi4_multimodal",
    ),
    "Gemma 3n, audio": _speech(
        "Gemma3nAudioEncoder", _GEMMA3N, "Gemma3nAudioConfig", _gemma3n, folder="gemma3n"
    ),
    "Gemma 4, audio": _speech(
        "Gemma4AudioModel",
        _GEMMA4,
        "Gemma4AudioConfig",
        _features(8, 4, dtype=torch.bool),
        folder="gemma4",
        seen=_told,
    ),
    "SpeechT5": _speech("SpeechT5ForSpeechToText", _SPEECHT5, "SpeechT5Config", _speecht5),
    "VITS": _speech("VitsModel", _VITS, "VitsConfig", _vits, part="text_encoder"),
    "WavLM": _speech(
        "WavLMModel",
        {
            **_WIDE,
            **_HEADS,
            **_NO_DROPOUT,
            **_WAVES,
            "num_buckets": 12,
            "max_bucket_distance": 20,
        },
        "WavLMConfig",
        _waves,
    ),
}
