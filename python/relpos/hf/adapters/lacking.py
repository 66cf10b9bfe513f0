"""Attention classes whose positions are a scheme of relpos, but which no adapter runs on it. They
stay as they are, and report says why."""

_SCHEMES = {
    "DisentangledSelfAttention": "DeBERTa",
    "XLNetRelativeAttention": "XLNet",
    "FunnelRelMultiheadAttention": "Funnel",
}
LACKING = {
    name: f"its positions are relpos.{scheme}; fuse has no adapter to it"
    for name, scheme in _SCHEMES.items()
}
