"""SAM, ViTDet and their kin: rows of the offset in height and of that in width."""

import functools
import inspect
from collections.abc import Iterator

from torch import Tensor, nn

import relpos
from relpos._position.part import Given, with_values
from relpos._position.position import SchemePosition
from relpos.hf._adapter import Adapter, Plan
from relpos.hf._interface import NAME
from relpos.hf._module import attended, wants_weights
from relpos.hf._trial import Compared, draw, prove, repeated


class _Images:
    """Attention over images [B, height, width, d]."""

    def _relpos_attended(
        self, states: Tensor, heads: int, weights: bool, dropout: float = 0.0
    ) -> tuple[Tensor, Tensor | None]:
        batch, height, width, _ = states.shape
        qkv = self.qkv(states).view(batch, height * width, 3, heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        out, found = attended(
            query,
            key,
            value,
            None,
            position=self._relpos_rows(height, width),
            dropout=dropout if self.training else 0.0,
            scale=self.scale,
            weights=weights,
        )
        return self.proj(out.unflatten(1, (height, width))), found

    def _relpos_rows(self, height: int, width: int) -> Given | None:
        if self._relpos_position is None:
            return None
        position = self._relpos_position
        if [height, width] != self._relpos_grid:
            position = _scheme(self.rel_pos_h.shape[1], height, width)
        rows = _resized(self.rel_pos_h, height), _resized(self.rel_pos_w, width)
        return with_values(position, rows)


class _Sam(_Images):
    """SamVisionAttention.forward on relpos."""

    def forward(
        self, hidden_states: Tensor, output_attentions: bool | None = None
    ) -> tuple[Tensor, Tensor | None]:
        wanted = wants_weights({"output_attentions": output_attentions})
        heads = self.num_attention_heads
        out, weights = self._relpos_attended(hidden_states, heads, wanted, self.dropout)
        return out, None if weights is None else weights.flatten(0, 1)


class _SamSdpa(_Images):
    """SamVisionSdpaAttention.forward on relpos: no weights, and no dropout."""

    def forward(
        self, hidden_states: Tensor, output_attentions: bool | None = False
    ) -> tuple[Tensor, None]:
        return self._relpos_attended(hidden_states, self.num_attention_heads, False)


class _SegGpt(_Images):
    """SegGptAttention.forward on relpos."""

    def forward(
        self, hidden_states: Tensor, output_attentions: bool | None = False
    ) -> tuple[Tensor, Tensor | None]:
        return self._relpos_attended(
            hidden_states, self.num_attention_heads, bool(output_attentions)
        )


class _VitDet(_Images):
    """VitDetAttention.forward on relpos."""

    def forward(
        self, hidden_state: Tensor, output_attentions: bool | None = False
    ) -> tuple[Tensor, ...]:
        found = self._relpos_attended(hidden_state, self.num_heads, bool(output_attentions))
        return found if output_attentions else found[:1]


@functools.lru_cache(64)
def _scheme(head_dim: int, height: int, width: int) -> SchemePosition:
    return relpos.Decomposed(head_dim, grid=[height, width])


def _resized(rows: Tensor, side: int) -> Tensor:
    """Rows of the offsets in a grid of another side, as the model makes them."""
    if rows.shape[0] == 2 * side - 1:
        return rows
    return nn.functional.interpolate(rows.mT[None], size=2 * side - 1, mode="linear")[0].mT


def _plan(mixin: type, has_rows: str, module: nn.Module, owner: nn.Module) -> Plan:
    state, what = {"_relpos_position": None}, "no positions of its own"
    grid = [5, 7]
    if getattr(module, has_rows):
        grid = [(len(rows) + 1) // 2 for rows in (module.rel_pos_h, module.rel_pos_w)]
        position = _scheme(module.rel_pos_h.shape[1], *grid)
        state = {"_relpos_position": position, "_relpos_grid": grid}
        what = f"rows of offsets in an image of {grid[0]} x {grid[1]} in the kernel"
    plan = Plan(what, mixin, state)
    prove(module, plan, _calls(module, owner, *grid), implementation=NAME)
    return plan


def _calls(module: nn.Module, owner: nn.Module, height: int, width: int) -> Iterator[Compared]:
    """Images of the model's sides, thin ones where they are long, and of other sizes."""
    sizes = [(height, 2), (2, width)] if height * width > 400 else [(height, width)]
    if not repeated(module, owner):
        sizes += [(1, 1), (3, 6), (5, 4)]
    name = next(iter(inspect.signature(module.forward).parameters))
    for size in sizes:
        given = {name: draw(2, *size, module.qkv.in_features)}
        yield Compared(given, given)


_SAM = ("Sam", "SamHQ", "DeepseekOcr2Sam", "UnlimitedOcrSam")
_COPIES = ("GotOcr2", "SLANeXt", "PPFormulaNet")
_FLAG = "use_relative_position_embeddings"
ADAPTERS = [
    Adapter(
        tuple(f"{name}VisionAttention" for name in (*_SAM, *_COPIES)),
        functools.partial(_plan, _Sam, "use_rel_pos"),
    ),
    Adapter(
        tuple(f"{name}VisionSdpaAttention" for name in _SAM),
        functools.partial(_plan, _SamSdpa, "use_rel_pos"),
    ),
    Adapter(("SegGptAttention",), functools.partial(_plan, _SegGpt, _FLAG)),
    Adapter(("VitDetAttention",), functools.partial(_plan, _VitDet, _FLAG)),
]
