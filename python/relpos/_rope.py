"""The rotation of the catalogue that a Hugging Face configuration asks for."""

from collections.abc import Mapping
from typing import Any

# Of each rope_type: the class of relpos, and the entries of rope_parameters that are its options.
_KINDS = {
    "default": ("RoPE", ()),
    "llama3": (
        "Llama3RoPE",
        ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    ),
}
# Model types of transformers 5.23.0 whose code turns pairs (2p, 2p + 1): no configuration says so.
_INTERLEAVED = (
    *("blt", "cohere", "cohere2", "cohere2_moe", "ernie4_5", "ernie4_5_moe", "glm", "glm4"),
    *("helium", "llama4", "llama4_text", "moonshine", "moonshine_streaming"),
)


def rotation(
    parameters: Mapping[str, Any], head_dim: int, rotary_dim: int | None, layout: str
) -> Any:
    """The rotation of rope_parameters, its angles computed as transformers computes them. Raises
    ValueError where relpos has none of that rope_type."""
    from relpos._position import CLASSES

    kind = parameters.get("rope_type", parameters.get("type", "default"))
    name, options = _KINDS.get(kind, (None, ()))
    if name not in CLASSES:
        known = ", ".join(key for key, (each, _) in _KINDS.items() if each in CLASSES)
        raise ValueError(f"rope_type: expected one that relpos has, {known}; got {kind!r}")
    missing = [key for key in ("rope_theta", *options) if parameters.get(key) is None]
    if missing:
        raise ValueError(f"rope_parameters: expected {', '.join(missing)}, got {dict(parameters)}")
    return CLASSES[name](
        head_dim,
        layout=layout,
        base=float(parameters["rope_theta"]),
        rotary_dim=rotary_dim,
        angle="float32",
        **{option: parameters[option] for option in options},
    )


def from_config(config: Any, layer_type: str | None) -> Any:
    """As RoPE.from_config says."""
    parameters = getattr(config, "rope_parameters", None)
    if not parameters and getattr(config, "rope_theta", None) is not None:
        parameters = {
            **(getattr(config, "rope_scaling", None) or {}),
            "rope_theta": config.rope_theta,
        }
    model = getattr(config, "model_type", "") or type(config).__name__
    if not parameters:
        raise ValueError(f"config: expected one with rope_parameters, got {model}, which has none")
    if all(isinstance(each, Mapping) for each in parameters.values()):
        if layer_type not in parameters:
            raise ValueError(
                f"layer_type: expected one of {', '.join(parameters)}, which {model} rotates each "
                f"in its own way, got {layer_type}"
            )
        parameters = parameters[layer_type]
    for entry in ("mrope_section", "qk_rope_head_dim"):
        if parameters.get(entry, getattr(config, entry, None)) is not None:
            raise ValueError(
                f"config: expected one position for each token and heads of one kind, got {entry} "
                f"in {model}: make the rotation of each part with relpos.RoPE"
            )
    head_dim = getattr(config, "head_dim", None)
    if head_dim is None:
        head_dim = config.hidden_size // config.num_attention_heads
    share = parameters.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None))
    rotary_dim = None if share is None else int(head_dim * share)
    layout = "interleaved" if model in _INTERLEAVED else "half"
    return rotation(parameters, head_dim, rotary_dim, layout)
