"""Attention classes whose scheme relpos does not have yet. They stay as they are, and report says
why."""

_DISENTANGLED = (
    "disentangled attention (content to position and back): no such scheme in relpos yet"
)
_CONFORMER = "relative positions of a Conformer (query and table, shifted): no such scheme yet"
_SHAW_LIKE = "a relative table of keys of its own kind: no adapter to relpos.Shaw yet"
_TWO_STREAM = "Transformer-XL terms with learned query offsets: no such scheme in relpos yet"
_GATED = "T5 buckets under a gate that reads the query: no such scheme in relpos yet"
_WINDOWS = "a two-dimensional table over windows of an image: no such scheme in relpos yet"

LACKING = {
    "DisentangledSelfAttention": _DISENTANGLED,
    "Wav2Vec2ConformerSelfAttention": _CONFORMER,
    "Wav2Vec2BertSelfAttention": _CONFORMER,
    "SeamlessM4TConformerSelfAttention": _CONFORMER,
    "SeamlessM4Tv2ConformerSelfAttention": _CONFORMER,
    "FastSpeech2ConformerAttention": _CONFORMER,
    "ParakeetEncoderAttention": _CONFORMER,
    "SpeechT5Attention": _SHAW_LIKE,
    "VitsAttention": _SHAW_LIKE,
    "XLNetRelativeAttention": _TWO_STREAM,
    "FunnelRelMultiheadAttention": _TWO_STREAM,
    "WavLMAttention": _GATED,
    "SwinAttention": _WINDOWS,
    "Swinv2SelfAttention": _WINDOWS,
    "BeitAttention": _WINDOWS,
}
