"""Small models of every type of transformers, from configurations that are made small by rules."""

import copy
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from relpos.hf._inputs import calls

# What a number in a configuration becomes; the first pattern that its whole name matches counts.
_HIDDEN, _HEADS, _HEAD_DIM, _VOCAB = 64, 4, 16, 99
_RULES: tuple[tuple[str, int], ...] = (
    (r"(codebook_size)", 64),
    (r"(mamba_d_state|mamba_chunk_size|ssm_state_size)", 16),
    (r"(coordinate_size)", 10),
    (r"(shape_size)", 12),
    (r"(intra_bottleneck_size|output_channels|nemo_conv_channels|.*_out_channel)", _HIDDEN),
    (r"(rotary_dim)", 8),
    (r"(num_feat_extract_layers|num_kv_shared_layers|conv_.*)", 2**30),
    (r"(vocab_size|.*_vocab_size|vocab_size_.*|n_vocab|num_embeddings)", _VOCAB),
    (r"(num_kv_heads|num_key_value_heads|.*_num_key_value_heads|num_kv_attention_heads)", 2),
    (r"(.*num_attention_heads|.*attention_heads|n_heads?|num_heads|num_global_heads)", _HEADS),
    (r"(head_dim|.*_head_dim|d_kv|attention_head_dim|kv_channels|attention_head_size)", _HEAD_DIM),
    (r"(q_lora_rank|kv_lora_rank|.*lora_rank|.*_rank)", 16),
    (r"(.*num_.*experts_per_to.*|top_k|num_selected_experts|moe_topk|moe_k|.*experts_per_tok)", 2),
    (r"(num_.*experts|n_routed_experts|.*num_experts|moe_num_experts)", 4),
    (r"(n_group|topk_group|num_expert_group|n_shared_experts|moe_num_shared_experts)", 1),
    (r"(first_k_dense_replace|num_dense_layers|moe_layer_start_index|first_k_dense.*)", 1),
    (r"(.*intermediate_size.*|.*ffn_.*dim|d_ff|n_inner)", 96),
    (r"(.*ffn_hidden_size|.*mlp_dim|feed_forward.*)", 96),
    (r"(.*hidden_layers.*|.*_layers|n_layers?|num_blocks|depth|.*_depth|num_.*layers)", 2),
    (r"(.*hidden_size|.*hidden_dim|d_model|n_embd|.*embed_dim)", _HIDDEN),
    (r"(dim|width|emb_dim|.*_hidden)", _HIDDEN),
    (r"(embedding_size|word_embed_proj_dim|projection_dim|d_embed|model_dim)", _HIDDEN),
    (r"(embed_size|.*_channels_out|proj_dim|out_dim|output_dim|projector_dim)", _HIDDEN),
    (r"(projection_size|query_dim|out_hidden_size)", _HIDDEN),
    (r"(sliding_window|attention_window|local_attention|window_size)", 6),
    (r"(chunk_size|attention_chunk_size)", 6),
    (r"(image_size|img_size|input_size|crop_size|resolution)", 32),
    (r"(patch_size|.*_patch_size)", 8),
)  # fmt: skip
_LAYERWISE = ("layer_types", "mlp_layer_types", "layers_block_type", "block_types")


# Positions that a configuration leaves out when it is not asked.
_ON = {
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "use_relative_position_bias": True,
    "use_relative_position_embeddings": True,
}


def shrunk(name: str, value: Any) -> Any:
    """The entry of a small configuration in the place of a number or a list of numbers."""
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        return value
    for pattern, small in _RULES:
        if re.fullmatch(pattern, name):
            return min(value, small)
    if name.endswith(("_token_id", "_token_index", "_id", "_token")) and value >= _VOCAB - 10:
        return 3 + sum(map(ord, name)) % (_VOCAB - 10)
    return value


# What a number becomes that a configuration leaves open.
_OPEN = {
    "num_key_value_heads": _HEADS,
    "head_dim": _HEAD_DIM,
    "vocab_size": _VOCAB,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "image_size": 32,
    "prediction_length": 4,
    "pad_token_id": 0,
    "default_language": "en_XX",
}


def options(kind: type) -> dict[str, Any]:
    """Keywords that make a small configuration of a class."""
    whole = kind()
    parts = getattr(kind, "sub_configs", None) or {}
    made: dict[str, Any] = {}
    for name, value in vars(whole).items():
        if name.startswith("_") or name in ("transformers_version", "architectures"):
            continue
        if name in parts:
            if value is not None:
                made[name] = options(type(value)) | {"model_type": type(value).model_type}
            continue
        small = _OPEN.get(name) if value is None else shrunk(name, value)
        if not value:
            small = _ON.get(name, small)
        if small is not None and small != value:
            made[name] = small
    made |= _lists(whole)
    heads = [vars(whole).get(name) for name in ("num_key_value_heads", "num_attention_heads")]
    if heads[0] == heads[1] and isinstance(heads[0], int):
        made["num_key_value_heads"] = made.get("num_attention_heads", heads[0])
    if vars(whole).get("num_kv_shared_layers"):
        made["num_kv_shared_layers"] = 0
    made |= _by_layer(whole)
    if vars(whole).get("rope_parameters") == {}:
        kinds = dict.fromkeys(made.get("layer_types") or whole.layer_types)
        made["rope_parameters"] = {
            kind: {"rope_type": "default", "rope_theta": 1e4} for kind in kinds
        }
    return made


def _by_layer(whole: Any) -> dict[str, Any]:
    """Entries with one value for each layer: one layer of each type, two at least."""
    layers = vars(whole).get("num_hidden_layers")
    types = vars(whole).get("layer_types")
    lists = {
        name: list(value)
        for name, value in vars(whole).items()
        if isinstance(value, (list, tuple)) and layers and len(value) == layers > 2
    }
    if not lists:
        return {}
    kinds = list(types) if isinstance(types, (list, tuple)) and len(types) == layers else None
    first = [kinds.index(each) for each in dict.fromkeys(kinds)] if kinds else [0, layers - 1]
    at = sorted(first if len(first) > 1 else [0, layers - 1])
    made = {name: [value[n] for n in at] for name, value in lists.items()}
    for name, values in made.items():
        if all(isinstance(each, int) and not isinstance(each, bool) for each in values):
            made[name] = [shrunk(name, each) for each in values]
    return made | {"num_hidden_layers": len(at)}


def _lists(whole: Any) -> dict[str, Any]:
    made = {}
    for name, value in vars(whole).items():
        if (
            not isinstance(value, (list, tuple))
            or not value
            or not all(isinstance(each, int) and not isinstance(each, bool) for each in value)
        ):
            continue
        if name in ("depths", "num_blocks"):
            made[name] = [1] * len(value)
        elif name in ("num_heads", "num_attention_heads"):
            made[name] = [min(each, 2 + 2 * (i > 1)) for i, each in enumerate(value)]
        elif name in ("hidden_sizes", "embed_dims", "embed_dim", "dims", "neck_hidden_sizes"):
            made[name] = [16 * (1 + i) for i in range(len(value))]
        elif name in ("image_size", "img_size"):
            made[name] = [32] * len(value)
        elif name == "mrope_section":
            made[name] = [4, 2, 2]
    return made


_MOST = 20_000_000  # parameters
_HEADS_OF = (
    *("SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "CAUSAL_LM", "MULTIMODAL_LM"),
    *("IMAGE_TEXT_TO_TEXT",),
)


@functools.cache
def _classes() -> dict[str, str]:
    """The model class of every type: with a head that generates where there is one."""
    from transformers.models.auto import modeling_auto

    found: dict[str, str] = {}
    first = [f"MODEL_FOR_{head}_MAPPING_NAMES" for head in _HEADS_OF]
    every = [name for name in vars(modeling_auto) if name.endswith("_MAPPING_NAMES")]
    for name in (*first, "MODEL_MAPPING_NAMES", *sorted(every)):
        if name.startswith("MODEL_"):
            for kind, made in getattr(modeling_auto, name).items():
                found.setdefault(kind, made if isinstance(made, str) else made[0])
    return found


def types() -> list[str]:
    """The model types of the installed transformers."""
    return sorted(_classes())


def model(model_type: str) -> nn.Module:
    """A small model of a type, with random weights. Raises what transformers raises."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    made = options(CONFIG_MAPPING[model_type])
    kind = getattr(transformers, _classes()[model_type])

    def tried(given: dict[str, Any]) -> nn.Module:
        config = CONFIG_MAPPING[model_type](**copy.deepcopy(given))
        with torch.device("meta"):
            size = sum(each.numel() for each in kind(copy.deepcopy(config)).parameters())
        if size > _MOST:
            raise ValueError(f"its smallest model found has {size} parameters")
        torch.manual_seed(0)
        return kind(config)

    found = None
    for variant in _variants(made):
        try:
            built = _repaired(tried, variant)
        except Exception:
            if found is None and variant is made:
                raise
            continue
        found = built if found is None else found
        if callable_so(built):
            return built
    return found


def callable_so(built: nn.Module) -> bool:
    """Whether some call of a model runs."""
    tried = built.eval()
    with torch.no_grad():
        for given in calls(tried, 7):
            try:
                tried(**given)
            except Exception:
                continue
            return True
    return False


def _each(made: dict[str, Any], change: Callable) -> dict[str, Any]:
    """The entries, also those of parts, changed one by one."""
    return {
        key: _each(value, change) if isinstance(value, dict) else change(key, value)
        for key, value in made.items()
    }


def _variants(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The entries, and others for models whose code has defaults for large heads."""
    yield made
    yield {key: value for key, value in made.items() if key != "head_dim"}
    yield _each(made, lambda key, value: _HEADS if key.endswith("key_value_heads") else value)
    yield _each(made, lambda key, value: 32 if key == "window_size" else value)
    yield _each(made, lambda key, value: 256 if key == "output_channels" else value)
    for section in ([4, 2, 2], [2, 1, 1]):
        rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": section}
        if len(section) and sum(section) == 4:
            rope["partial_rotary_factor"] = 0.5
        yield made | {"rope_parameters": rope}
        if isinstance(made.get("text_config"), dict):
            yield made | {"text_config": made["text_config"] | {"rope_parameters": rope}}


def _repaired(make: Callable, made: dict[str, Any]) -> Any:
    """make(made), or without the one entry, or two, at which a configuration fails."""
    try:
        return make(made)
    except Exception as error:
        first = error
    for without in _entries(made):
        try:
            return make(_less(made, without))
        except ImportError:
            raise
        except Exception:
            continue
    raise first


def _entries(made: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, value in made.items():
        yield (name,)
        if isinstance(value, dict):
            for inner in value:
                if inner != "model_type":
                    yield (name, inner)


def _less(made: dict[str, Any], without: tuple[str, ...]) -> dict[str, Any]:
    name, *inner = without
    if not inner:
        return {key: value for key, value in made.items() if key != name}
    return made | {name: _less(made[name], tuple(inner))}
