"""Inputs with which a model can be called, from its forward's names and its config."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from relpos.hf._trial import draw

_SIZES = ("image_size", "img_size", "input_size")
_CHANNELS = ("num_channels", "in_channels", "in_chans", "num_input_channels")
_BANDS = ("num_mel_bins", "input_feat_per_channel", "feature_size", "n_mels", "input_dim")
_WIDTHS = ("hidden_size", "d_model", "embed_dim", "dim", "n_embd", "hidden_dim", "width")


def calls(model: nn.Module, length: int) -> Iterator[dict[str, Any]]:
    """Keywords for model.forward that may do, the likeliest first, with about `length` tokens where
    the caller can choose."""
    names = inspect.signature(model.forward).parameters
    config = model.config
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
    seen: dict[str, list[dict[str, Any]]] = {}
    for name, ways in _WAYS.items():
        if name in names:
            seen[name] = [{name: way} for way in ways(config, length)]
    for name in (needed | {"bbox"}) & {*names} - {*text, *seen}:
        way = _BY_NAME.get(name)
        if way is not None:
            text[name] = way(config, length)
    main = getattr(model, "main_input_name", "input_ids")
    if "input_ids" in text and main not in seen:
        yield dict(text)
    first = [name for name in seen if name == main or name in needed] or list(seen)
    for name in sorted(first, key=lambda each: each != main):
        for way in seen[name]:
            yield text | way
            if "input_ids" in text:
                yield {k: v for k, v in text.items() if k != "input_ids"} | way
    if "inputs_embeds" in names:
        no_ids = {"input_ids": None} if "input_ids" in text else {}
        for width in _all(config, _WIDTHS):
            yield {**text, **no_ids, "inputs_embeds": draw(2, length, width)}
    if "hidden_states" in names:
        for width in _all(config, _WIDTHS):
            yield {**text, "hidden_states": draw(2, length, width)}


def _all(config: Any, names: tuple[str, ...]) -> list[int]:
    """The different numbers that a config or one inside it has under these names."""
    found: list[int] = []
    parts = [config, *(v for k, v in vars(config).items() if k.endswith("config"))]
    for part in parts:
        for name in names:
            value = getattr(part, name, None)
            if isinstance(value, (list, tuple)) and value and isinstance(value[0], int):
                value = value[0]
            if isinstance(value, int) and value > 0 and value not in found:
                found.append(value)
    return found


def _images(config: Any, length: int) -> Iterator[Tensor]:
    channels = [*_all(config, _CHANNELS), 3][0]
    sizes = [n for n in _all(config, _SIZES) if n <= 512] or [64]
    parts = [config, *(v for k, v in vars(config).items() if k.endswith("config"))]
    for part in parts:
        for name in _SIZES:
            pair = getattr(part, name, None)
            if isinstance(pair, (list, tuple)) and len(pair) == 2:
                yield draw(1, channels, *pair)
    for size in (*sizes, 64, 224):
        yield draw(1, channels, size, size)


def _videos(config: Any, length: int) -> Iterator[Tensor]:
    frames = [*_all(config, ("num_frames", "frames_per_clip", "video_length")), 2][0]
    for image in _images(config, length):
        yield image[:, None].expand(-1, frames, -1, -1, -1).contiguous()


def _patches(config: Any, length: int) -> Iterator[Tensor]:
    """Rows of pixels, one a patch of the grid that _grid gives."""
    patches = int(_grid(config, length).prod(1).sum())
    channels = [*_all(config, _CHANNELS), 3][0]
    frames = [*_all(config, ("temporal_patch_size",)), 1][0]
    for patch in (*_all(config, ("patch_size",)), 14):
        yield draw(patches, channels * frames * patch * patch)
        yield draw(patches, channels, patch, patch)
        yield draw(1, patches, channels * frames * patch * patch)


def _hidden(config: Any, length: int) -> Iterator[Tensor]:
    if any(hasattr(config, name) for name in ("spatial_merge_size", "patch_size")):
        yield from _patches(config, length)


def _pixels(config: Any, length: int) -> Iterator[Tensor]:
    if hasattr(config, "spatial_merge_size") or hasattr(config, "merge_kernel_size"):
        yield from _patches(config, length)
    parts = [config, *(v for k, v in vars(config).items() if k.endswith("config"))]
    frames = any(
        hasattr(part, name) for part in parts for name in ("num_frames", "frames_per_clip")
    )
    if frames:
        yield from _videos(config, length)
    yield from _images(config, length)
    for patch in _all(config, ("patch_size",)):
        yield draw(1, 16, 3 * patch * patch)
    for image in _images(config, length):
        yield image[:, None].expand(-1, 2, -1, -1, -1).contiguous()
        break
    if not frames:
        yield from _videos(config, length)


def _features(config: Any, length: int) -> Iterator[Tensor]:
    most = _all(config, ("max_source_positions",))
    for bands in (*_all(config, _BANDS), 80, 128):
        for steps in (*(2 * n for n in most if n <= 1500), 8 * length, 128, 1024):
            yield draw(1, steps, bands)
            yield draw(1, bands, steps)


def _waves(config: Any, length: int) -> Iterator[Tensor]:
    yield draw(2, 800 * length)
    yield draw(1, 1, 800 * length)
    yield from _features(config, length)
    yield from _images(config, length)


_WAYS = {
    "hidden_states": _hidden,
    "pixel_values": _pixels,
    "pixel_values_videos": _videos,
    "input_features": _features,
    "input_values": _waves,
    "audio_values": _waves,
    "spectrogram": _features,
}


def _grid(config: Any, length: int) -> Tensor:
    return torch.tensor([[1, 4, 4], [1, 4, 8]])


def _boxes(config: Any, length: int) -> Tensor:
    corner = torch.arange(2 * length).view(2, length, 1) % 50
    return torch.cat([corner, corner, corner + 9, corner + 5], dim=-1)


def _steps(config: Any, length: int) -> Tensor:
    return torch.ones(1, 8 * length, dtype=torch.int64)


_BY_NAME = {
    "image_grid_hws": lambda config, length: _grid(config, length)[:, 1:],
    "grid_hws": lambda config, length: _grid(config, length)[:, 1:],
    "merge_sizes": lambda *_: torch.tensor([1, 1]),
    "input_features_mask": _steps,
    "audio_mel_mask": _steps,
    "pixel_attention_mask": lambda *_: torch.ones(1, 16, dtype=torch.int64),
    "spatial_shapes": lambda *_: torch.tensor([[4, 4]]),
    "pixel_position_ids": lambda *_: torch.stack(
        [torch.arange(16) % 4, torch.arange(16) // 4], dim=-1
    )[None],
    "attention_mask": lambda config, length: torch.ones(2, length, dtype=torch.int64),
    "bbox": _boxes,
    "position_ids": lambda config, length: torch.arange(length)[None],
    "grid_thw": _grid,
    "image_grid_thw": _grid,
    "output_attentions": lambda *_: False,
    "encoder_hidden_states": lambda config, length: draw(
        2, length, (_all(config, ("encoder_hidden_size", *_WIDTHS)) or [1])[0]
    ),
}
