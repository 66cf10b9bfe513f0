"""Which rotation of the catalogue a Hugging Face configuration asks for."""

from collections.abc import Mapping
from typing import Any

from relpos._base.errors import wrong_value
from relpos._position.registry import schemes

# The name of a class and its arguments.
Asked = tuple[str, dict[str, Any]]

# Of each rope_type: the class of relpos, the entries of rope_parameters that are its options, and
# those that may be missing or None.
_KINDS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "default": ("RoPE", (), ()),
    "linear": ("LinearRoPE", ("factor",), ()),
    "dynamic": ("DynamicRoPE", ("factor", "max_position_embeddings"), ()),
    "yarn": (
        "YaRN",
        ("factor", "original_max_position_embeddings"),
        ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate"),
    ),
    "longrope": (
        "LongRoPE",
        ("short_factor", "long_factor", "factor", "original_max_position_embeddings"),
        ("attention_factor",),
    ),
    "llama3": (
        "Llama3RoPE",
        ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
        (),
    ),
    "proportional": ("ProportionalRoPE", (), ("partial_rotary_factor", "factor")),
}
# Rotations of which a cache may hold turned keys: they turn alike in every call.
STATIC = ("default", "linear", "yarn", "llama3", "proportional")
# Model types of transformers 5.23.0 whose code turns pairs (2p, 2p + 1): no configuration says so.
_INTERLEAVED = (
    *("blt", "cohere", "cohere2", "cohere2_moe", "ernie4_5", "ernie4_5_moe", "glm", "glm4"),
    *("helium", "llama4", "llama4_text", "moonshine", "moonshine_streaming"),
)
# Model types whose pairs turn by time, height and width in the order that mrope_section says, and
# those in which the three take turns.
_BY_SECTION = ("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text")
_IN_TURNS = ("qwen3_vl", "qwen3_vl_text", "qwen3_vl_moe", "qwen3_vl_moe_text")


def rotation(
    parameters: Mapping[str, Any],
    head_dim: int,
    rotary_dim: int | None,
    layout: str,
    kinds: tuple[str, ...] = tuple(_KINDS),
) -> Asked:
    """The rotation of rope_parameters, its angles computed as transformers computes them. Raises
    ValueError where relpos has none of that rope_type."""
    kind = _kind_of(parameters)
    name, options, optional = _KINDS.get(kind, ("", (), ()))
    there = {scheme.class_name for scheme in schemes()}
    if name not in there or kind not in kinds:
        known = ", ".join(key for key in kinds if _KINDS[key][0] in there)
        raise ValueError(f"rope_type: expected one that relpos has, {known}; got {kind!r}")
    missing = [key for key in ("rope_theta", *options) if parameters.get(key) is None]
    if missing:
        raise wrong_value("rope_parameters", ", ".join(missing), dict(parameters))
    given = (*options, *(key for key in optional if parameters.get(key) is not None))
    return name, {
        "head_dim": head_dim,
        "layout": layout,
        "base": float(parameters["rope_theta"]),
        "rotary_dim": None if kind == "proportional" else rotary_dim,
        "angle": "float32",
        **{option: parameters[option] for option in given},
    }


def _kind_of(parameters: Mapping[str, Any]) -> Any:
    return parameters.get("rope_type", parameters.get("type", "default"))


def _parameters_of(config: Any, model: str, layer_type: str | None) -> dict[str, Any]:
    """rope_parameters of the layers meant, with what transformers reads elsewhere."""
    whole = getattr(config, "rope_parameters", None)
    if not whole and getattr(config, "rope_theta", None) is not None:
        scaling = getattr(config, "rope_scaling", None) or {}
        whole = {**scaling, "rope_theta": config.rope_theta}
    if not whole:
        raise wrong_value("config", "one with rope_parameters", f"{model}, which has none")
    parameters = whole
    if all(isinstance(each, Mapping) for each in whole.values()):
        if layer_type not in whole:
            raise ValueError(
                f"layer_type: expected one of {', '.join(whole)}, which {model} rotates each "
                f"in its own way, got {layer_type}"
            )
        parameters = whole[layer_type]
    found = dict(parameters)
    if "truncate" in found and "truncate" not in whole:
        del found["truncate"]  # transformers reads that of the whole alone
    for entry in ("max_position_embeddings", "original_max_position_embeddings"):
        if found.get(entry) is None:
            found[entry] = getattr(config, entry, None)
    return found


def _with_factor(parameters: dict[str, Any]) -> dict[str, Any]:
    """What a factor that is not given follows from."""
    most, before = (
        parameters.get(f"{which}max_position_embeddings") for which in ("", "original_")
    )
    kind = parameters.get("rope_type", parameters.get("type"))
    if kind in ("yarn", "longrope") and parameters.get("factor") is None and most and before:
        parameters["factor"] = most / before
    return parameters


def _of_three_axes(parameters: Mapping[str, Any], config: Any, model: str, head_dim: int) -> Asked:
    kind = _kind_of(parameters)
    if model not in _BY_SECTION + _IN_TURNS or kind not in ("default", "mrope"):
        raise wrong_value(
            "config",
            "a model whose use of mrope_section is known",
            f"{model} of rope_type {kind!r}",
            "make the rotation with relpos.MRoPE",
        )
    return "MRoPE", {
        "head_dim": head_dim,
        "layout": "half",
        "base": float(parameters["rope_theta"]),
        "angle": "float32",
        "section": parameters.get("mrope_section", getattr(config, "mrope_section", None)),
        "interleaved": model in _IN_TURNS,
    }


def asked_for(config: Any, layer_type: str | None) -> Asked:
    """What RoPE.from_config makes."""
    model = getattr(config, "model_type", "") or type(config).__name__
    parameters = _with_factor(_parameters_of(config, model, layer_type))
    if parameters.get("qk_rope_head_dim", getattr(config, "qk_rope_head_dim", None)) is not None:
        raise wrong_value(
            "config",
            "heads that turn as a whole",
            f"qk_rope_head_dim in {model}",
            "make the rotation of that part with relpos.RoPE, which has start and rotary_dim",
        )
    if parameters.get("rope_type") == "axial":
        raise wrong_value(
            "config",
            "a rotation by position",
            f"rope_type 'axial' in {model}, whose grid each image decides",
            "make it with relpos.AxialRoPE",
        )
    head_dim = getattr(config, "head_dim", None)
    if parameters.get("rope_type") == "proportional":
        head_dim = getattr(config, "global_head_dim", None) or head_dim
    if head_dim is None:
        head_dim = config.hidden_size // config.num_attention_heads
    if parameters.get("mrope_section", getattr(config, "mrope_section", None)) is not None:
        return _of_three_axes(parameters, config, model, head_dim)
    share = parameters.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None))
    rotary_dim = None if share is None else int(head_dim * share)
    layout = "interleaved" if model in _INTERLEAVED else "half"
    return rotation(parameters, head_dim, rotary_dim, layout)
