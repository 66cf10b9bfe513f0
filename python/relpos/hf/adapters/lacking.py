"""Attention classes whose positions are a scheme of relpos, but which no adapter runs on it. They
stay as they are, and report says why."""

_SCHEMES = {
    "Wav2Vec2ConformerSelfAttention": "ConformerRelative",
    "Wav2Vec2BertSelfAttention": "Shaw",
    "SeamlessM4TConformerSelfAttention": "ConformerRelative",
    "SeamlessM4Tv2ConformerSelfAttention": "Shaw",
    "FastSpeech2ConformerAttention": "ConformerRelative",
    "ParakeetEncoderAttention": "ConformerRelative",
    "SpeechT5Attention": "Shaw",
    "VitsAttention": "VITS",
    "WavLMAttention": "GatedBuckets",
    "SwinAttention": "SwinBias",
    "Swinv2SelfAttention": "SwinV2Bias",
    "BeitAttention": "BeitBias",
}
LACKING = {
    name: f"its positions are relpos.{scheme}; fuse has no adapter to it"
    for name, scheme in _SCHEMES.items()
}
