"""Drawings as SVG text and pictures as PNG bytes, without a plotting library."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from html import escape

import numpy as np
from markupsafe import Markup


def tag(name: str, content: str = "", /, **attributes) -> str:
    """An element. `_` in a name becomes `-`, and a `_` at its end is dropped (class_)."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


class Drawing:
    """The elements of a drawing, and a frame inside its margins."""

    def __init__(
        self, width: float, height: float, *, left: float, right: float, top: float, bottom: float
    ) -> None:
        self.width, self.height = width, height
        self.left, self.right, self.top, self.bottom = left, width - right, top, height - bottom
        self.parts: list[str] = []

    def add(self, name: str, content: str = "", /, **attributes) -> None:
        self.parts.append(tag(name, content, **attributes))

    def text(self, x: float, y: float, content: str, class_: str, **attributes) -> None:
        self.add("text", escape(content), x=x, y=y, class_=class_, **attributes)

    def curve(self, points: Iterable[tuple[float, float]], class_: str, **attributes) -> None:
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.add("polyline", points=drawn, class_=class_, **attributes)

    def across(self, y: float, class_: str) -> None:
        """A line from the left of the frame to its right."""
        self.add("line", x1=self.left, y1=y, x2=self.right, y2=y, class_=class_)

    def level(self, y: float, name: str, small: str = "") -> None:
        """A line of the grid with its number."""
        self.across(y, "grid")
        self.text(self.left - 7, y + 4, name, f"tick end {small}")

    def unseen(self, begin: float, top: float, height: float) -> None:
        """Shades what lies right of `begin`: no training went there."""
        if begin < self.right:
            width = self.right - begin
            self.add("rect", x=begin, y=top, width=width, height=height, class_="unseen")

    def svg(self, label: str, class_: str = "") -> Markup:
        box = f"0 0 {_plain(self.width)} {_plain(self.height)}"
        about = {"viewBox": box, "class_": class_ or None, "role": "img", "aria_label": label}
        return Markup(tag("svg", "".join(self.parts), **about))


def picture(alpha: np.ndarray, colour: str) -> str:
    """A data: address of a PNG [rows, columns] of one colour (#rrggbb), opaque where alpha is 1."""
    rows, columns = alpha.shape
    pixels = np.empty((rows, columns, 4), dtype=np.uint8)
    pixels[..., :3] = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    pixels[..., 3] = np.round(255 * np.clip(alpha, 0, 1))
    lines = np.concatenate(  # every line begins with its filter: none
        [np.zeros((rows, 1), np.uint8), pixels.reshape(rows, -1)], axis=1
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    png = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(lines.tobytes(), 9))
        + chunk(b"IEND", b"")
    )
    return "data:image/png;base64," + base64.b64encode(png).decode()


def scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """The linear map of [low, high] to [start, end]."""
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers inside [low, high], `about` of them or a few more."""
    raw = (high - low) / about or 1.0
    power = 10 ** math.floor(math.log10(raw))
    step = max(power * m for m in (1, 2, 2.5, 5) if power * m <= raw * 1.001)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions for labels near `wanted`, at least `gap` apart, inside [low, high] if they fit."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    places = [float(wanted[i]) for i in order]
    for _ in range(200):
        for i in range(1, len(places)):
            overlap = gap - (places[i] - places[i - 1])
            if overlap > 0:
                places[i - 1] -= overlap / 2
                places[i] += overlap / 2
        if places:
            shift = max(0.0, low - places[0]) - max(0.0, places[-1] - high)
            places = [place + shift for place in places]
    result = [0.0] * len(wanted)
    for place, i in zip(places, order, strict=True):
        result[i] = place
    return result


def _plain(value) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
