"""Inputs with which a model can be called, from its forward's names, its config and its weights."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from relpos.hf._trial import draw

_SIZES = ("image_size", "img_size", "input_size")
_CHANNELS = ("num_channels", "in_channels", "in_chans", "num_input_channels")
_BANDS = ("num_mel_bins", "input_feat_per_channel", "feature_size", "n_mels", "input_dim")
_WIDTHS = ("hidden_size", "d_model", "embed_dim", "dim", "n_embd", "hidden_dim", "width")
_MOST, _FEW = 150, 40  # calls of one model, and of one with more parameters than _LARGE
_LARGE = 2**28
_WIDEST = 4096


@dataclass
class _Asked:
    """The model that is to be called, and about how many tokens it is to get."""

    model: nn.Module
    length: int
    method: str

    @cached_property
    def names(self) -> Any:
        """The arguments of the method, by name."""
        return inspect.signature(getattr(self.model, self.method)).parameters

    @cached_property
    def config(self) -> Any:
        return self.model.config

    @cached_property
    def configs(self) -> list[Any]:
        """The config and those in it."""
        return [self.config, *(v for k, v in vars(self.config).items() if k.endswith("config"))]

    def numbers(self, *names: str) -> list[int]:
        """The different numbers that a config or one inside it has under these names."""
        found: list[int] = []
        for part in self.configs:
            for name in names:
                value = getattr(part, name, None)
                if isinstance(value, (list, tuple)) and value and isinstance(value[0], int):
                    value = value[0]
                if isinstance(value, int) and value > 0 and value not in found:
                    found.append(value)
        return found

    def has(self, *names: str) -> bool:
        return any(hasattr(part, name) for part in self.configs for name in names)

    @cached_property
    def taken(self) -> list[int]:
        """What the first layers with weights take: their features, channels or whole patches."""
        found: list[int] = []
        for part in islice(self.model.modules(), 40):
            weight = getattr(part, "weight", None)
            if isinstance(weight, Tensor) and not isinstance(part, nn.Embedding) and weight.dim():
                many = weight.dim() > 3
                width = weight[0].numel() if many else weight.shape[min(1, weight.dim() - 1)]
                if 1 < width <= _WIDEST and width not in found:
                    found.append(width)
        return found[:4]


_METHODS = ("get_image_features", "get_video_features", "get_audio_features")


def methods(model: nn.Module) -> list[str]:
    """The methods of a model that run parts of it: what a call of the whole may not reach without
    tokens that stand for an image or a sound."""
    return [name for name in _METHODS if hasattr(model, name)]


def calls(model: nn.Module, length: int, method: str = "forward") -> Iterator[dict[str, Any]]:
    """Keywords for a method of a model that may do, the likeliest first, with about `length` tokens
    where the caller can choose."""
    large = sum(each.numel() for each in model.parameters()) > _LARGE
    return islice(_calls(_Asked(model, length, method)), _FEW if large else _MOST)


def _calls(asked: _Asked) -> Iterator[dict[str, Any]]:
    model, length, names = asked.model, asked.length, asked.names
    needed = {
        name
        for name, each in names.items()
        if each.default is inspect.Parameter.empty
        and each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    }
    tokens = torch.arange(3, 3 + length).remainder(37).add(3).repeat(2, 1)
    tokens[1:] += 5
    text: dict[str, Any] = {}
    if "input_ids" in names:
        text["input_ids"] = tokens
    if "decoder_input_ids" in names:
        text["decoder_input_ids"] = tokens[:, : max(1, length - 1)]
    ways = [name for name in _WAYS if name in names]
    for name in _BY_NAME:
        if name in names and name not in (*text, *ways) and (name in needed or name in _ALWAYS):
            text[name] = _BY_NAME[name](asked)
    main = getattr(model, "main_input_name", "input_ids")
    if not needed - {*text} and ("input_ids" in text or not ways) and main not in ways:
        yield dict(text)
    first = [name for name in ways if name == main or name in needed] or ways
    for name in sorted(first, key=lambda each: each != main):
        for way in _WAYS[name](asked):
            yield from _beside(text | _series(asked, way, names), {name: way}, names, needed)
    if "input_ids" in text or "decoder_input_ids" in text:
        for books in asked.numbers("num_codebooks", "num_channels"):
            yield {
                name: each[..., None].expand(-1, -1, books) if name == "decoder_input_ids" else each
                for name, each in text.items()
            }
    if "encoder_hidden_states" in names and "encoder_hidden_states" not in text and text:
        for width in asked.numbers("encoder_hidden_size", *_WIDTHS):
            yield {**text, "encoder_hidden_states": draw(2, 5, width)}
    if "inputs_embeds" in names:
        no_ids = {"input_ids": None} if "input_ids" in text else {}
        for width in dict.fromkeys((*asked.numbers(*_WIDTHS), *asked.taken)):
            yield {**text, **no_ids, "inputs_embeds": draw(2, length, width)}
    if "hidden_states" in names:
        for width in asked.numbers(*_WIDTHS):
            yield {**text, "hidden_states": draw(2, length, width)}


def _beside(
    text: dict[str, Any], way: dict[str, Any], names: Any, needed: set[str]
) -> Iterator[dict[str, Any]]:
    """A way beside the text, with as many rows as it, and without it; also with masks of its
    steps."""
    ((main, states),) = way.items()
    masks = [name for name in _MASKS if name in names and name not in text]
    rows = [x for name, x in text.items() if name.endswith(("input_ids", "input_values"))]
    both = [torch.cat([states, states])] if rows and states.shape[0] == 1 else []
    for x in (*both, states):
        every: list[dict[str, Any]] = [] if needed & {*masks} else [{}]
        if masks and x.dim() > 1:
            shapes = dict.fromkeys((x.shape[:2], x.shape[:: x.dim() - 1], x.shape))
            every += [{name: _MASKS[name](*shape) for name in masks} for shape in shapes]
        if "image_attention_mask" in names and "input_ids" in text and x.dim() == 5:
            shape = *text["input_ids"].shape, x.shape[1]
            every.append({"image_attention_mask": _seen(*shape)})
        for more in every:
            yield text | {main: x} | more
    if "input_ids" in text:
        rest = {name: each for name, each in text.items() if name != "input_ids"}
        yield from _beside(rest, way, names, needed)


def _series(asked: _Asked, past: Tensor, names: Any) -> dict[str, Any]:
    """What models of time series get beside the past values."""
    if "past_time_features" not in names:
        return {}
    features = getattr(asked.config, "num_time_features", 0)
    ahead = getattr(asked.config, "prediction_length", 1)
    return {
        "past_time_features": draw(*past.shape[:2], features),
        "future_values": draw(past.shape[0], ahead, *past.shape[2:]),
        "future_time_features": draw(past.shape[0], ahead, features),
    }


def _images(asked: _Asked) -> Iterator[Tensor]:
    channels = [*asked.numbers(*_CHANNELS), 3][0]
    sizes = [n for n in asked.numbers(*_SIZES) if n <= 512] or [64]
    for part in asked.configs:
        for name in _SIZES:
            pair = getattr(part, name, None)
            if isinstance(pair, (list, tuple)) and len(pair) == 2:
                yield draw(1, channels, *pair)
    for size in dict.fromkeys((*sizes, 64, 224)):
        yield draw(1, channels, size, size)


def _videos(asked: _Asked) -> Iterator[Tensor]:
    frames = [*asked.numbers("num_frames", "frames_per_clip", "video_length"), 2][0]
    for image in _images(asked):
        yield image[:, None].expand(-1, frames, -1, -1, -1).contiguous()


def _patches(asked: _Asked) -> Iterator[Tensor]:
    """Rows of pixels, one a patch of the grid that _grid gives."""
    patches = int(_grid(asked).prod(1).sum())
    channels = [*asked.numbers(*_CHANNELS), 3][0]
    frames = [*asked.numbers("temporal_patch_size"), 1][0]
    for patch in (*asked.numbers("patch_size"), 14):
        yield draw(patches, channels * frames * patch * patch)
        yield draw(patches, channels, patch, patch)
        yield draw(1, patches, channels * frames * patch * patch)
    if any("grid" in name for name in asked.names):
        for width in asked.taken:
            yield draw(patches, width)
    for patch in asked.numbers("patch_size"):  # pixels of the patches that are merged to a token
        side = patch * [*asked.numbers("spatial_merge_size", "merge_size"), 1][0]
        yield draw(patches, side, side, channels)


def _hidden(asked: _Asked) -> Iterator[Tensor]:
    if asked.has("spatial_merge_size", "patch_size"):
        yield from _patches(asked)
    for width in (*asked.numbers("input_size"), *asked.taken):
        yield draw(2, 8 * asked.length, width)


def _pixels(asked: _Asked) -> Iterator[Tensor]:
    if asked.has("spatial_merge_size", "merge_kernel_size") or any(
        "grid" in n for n in asked.names
    ):
        yield from _patches(asked)
    frames = asked.has("num_frames", "frames_per_clip")
    if frames:
        yield from _videos(asked)
    yield from _images(asked)
    for patch in asked.numbers("patch_size"):
        yield draw(1, 16, 3 * patch * patch)
    for image in _images(asked):
        yield image[:, None].expand(-1, 2, -1, -1, -1).contiguous()
        break
    if not frames:
        yield from _videos(asked)


def _features(asked: _Asked) -> Iterator[Tensor]:
    most = asked.numbers("max_source_positions")
    bands = dict.fromkeys((*asked.numbers(*_BANDS), *asked.taken, 80, 128))
    windows = (2 * n for n in asked.numbers("n_window"))
    for steps in (*(2 * n for n in most if n <= 1500), *windows, 8 * asked.length, 128, 1024):
        for each in bands:
            yield draw(1, steps, each)
            yield draw(1, each, steps)


def _waves(asked: _Asked) -> Iterator[Tensor]:
    yield draw(2, 800 * asked.length)
    yield draw(1, 1, 800 * asked.length)
    yield from _features(asked)
    yield from _images(asked)


def _past(asked: _Asked) -> Iterator[Tensor]:
    """Series of numbers: as many as the model looks back."""
    lags = [max(part.lags_sequence) for part in asked.configs if hasattr(part, "lags_sequence")]
    steps = [n + max(lags, default=0) for n in asked.numbers("context_length") if n <= 2048] or [
        8 * n for n in asked.numbers("patch_length", "patch_len")
    ]
    for length in (*steps, 64, 512):
        yield draw(2, length)
        for channels in asked.numbers("num_input_channels", "input_size"):
            yield draw(2, length, channels)


def _patched(asked: _Asked) -> Iterator[Tensor]:
    for width in asked.numbers("patch_length"):
        yield draw(2, *asked.numbers("num_input_channels")[:1], 8, width)


_WAYS = {
    "hidden_states": _hidden,
    "pixel_values": _pixels,
    "pixel_values_videos": _videos,
    "input_features": _features,
    "input_values": _waves,
    "audio_values": _waves,
    "audio_mel": _features,
    "spectrogram": _features,
    "past_values": _past,
    "patch_input": _patched,
}


def _seen(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.int64)


# Which steps of a way are no padding.
_MASKS = {
    "input_features_mask": _seen,
    "audio_mel_mask": lambda *shape: _seen(*shape).bool(),
    "past_observed_mask": _seen,
    "observed_mask": _seen,
    "past_values_padding": lambda *shape: _seen(*shape) - 1,
}


def _grid(asked: _Asked) -> Tensor:
    return torch.tensor([[1, 4, 4], [1, 4, 8]])


def _boxes(asked: _Asked) -> Tensor:
    corner = torch.arange(2 * asked.length).view(2, asked.length, 1) % 50
    return torch.cat([corner, corner, corner + 9, corner + 5], dim=-1)


def _states(asked: _Asked) -> Tensor:
    widths = asked.numbers("encoder_hidden_size", *_WIDTHS) or [1]
    return draw(2, asked.length, widths[0])


_BY_NAME = {
    "image_grid_hws": lambda asked: _grid(asked)[:, 1:],
    "grid_hws": lambda asked: _grid(asked)[:, 1:],
    "target_sizes": lambda asked: torch.tensor([[4, 4]]),
    "merge_sizes": lambda asked: torch.tensor([1, 1]),
    "pixel_attention_mask": lambda asked: torch.ones(1, 16, dtype=torch.int64),
    "spatial_shapes": lambda asked: torch.tensor([[4, 4]]),
    "pixel_position_ids": lambda asked: torch.stack(
        [torch.arange(16) % 4, torch.arange(16) // 4], dim=-1
    )[None],
    "attention_mask": lambda asked: torch.ones(2, asked.length, dtype=torch.int64),
    "bbox": _boxes,
    "position_ids": lambda asked: torch.arange(asked.length)[None],
    "grid_thw": _grid,
    "image_grid_thw": _grid,
    "output_attentions": lambda asked: False,
    "encoder_hidden_states": _states,
    "query_embeds": _states,
    "noise_embeds": _states,
    "mask": lambda asked: None,
    "freq": lambda asked: torch.zeros(2, dtype=torch.int64),
    "visual_feats": lambda asked: draw(2, 5, *asked.numbers("visual_feat_dim")[:1]),
    "visual_pos": lambda asked: draw(2, 5, *asked.numbers("visual_pos_dim")[:1]).abs(),
}
_ALWAYS = (
    "bbox",
    "visual_feats",
    "visual_pos",
    "target_sizes",
)  # needed, whatever a forward says
