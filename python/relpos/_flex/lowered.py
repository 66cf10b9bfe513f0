"""relpos.from_score_mod: FlexAttention's function of a score, as options of relpos.attention."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relpos._base.arguments import integer, number
from relpos._base.errors import kind_of, shape_of, wrong_type, wrong_value
from relpos._flex.masks import both_masks, both_windows, mask_of, window_of
from relpos._flex.pieces import ScoreMod
from relpos._flex.plan import CLASS, DISTANCE, KEY, PAIR, plan_of
from relpos._flex.positions import Lowering, ScoreModBias, ScoreModKeys
from relpos._flex.sources import B, D, H
from relpos._position.sum import Composed
from relpos._position.terms import Term


def from_score_mod(
    score_mod: ScoreMod, heads: int, *, dtype: torch.dtype = torch.float32
) -> "LoweredScoreMod":
    """FlexAttention's score_mod as position, softcap, scale and mask of relpos.attention.

    Results are those of torch's flex_attention, with gradients to every tensor that the function
    captures. No matrix of queries and keys is made, unless the function captures one; classes of
    pairs by which it reads a table are bytes. On what it depends is proved, by the flow of data
    through its graph. The function itself is called in every attention, so that its tensors are
    read as they are then.

    Args:
      score_mod: score_mod(score, b, h, q_idx, kv_idx) -> the changed score; tensors without axes.
      heads: of the queries.
      dtype: of the score that the function sees: float64 for queries of float64, float32 else.

    Raises ValueError for what no term computes, with the reason and what would do instead.
    docs/from-flexattention.md lists what becomes what.

    Source: Dong et al. 2024, Flex Attention.
    """
    if not callable(score_mod):
        expected = "a function of score, b, h, q_idx and kv_idx"
        raise wrong_type("score_mod", expected, kind_of(score_mod))
    heads = integer("heads", heads, 1)
    if dtype not in (torch.float32, torch.float64):
        raise wrong_value("dtype", "torch.float32 or torch.float64", dtype)
    return LoweredScoreMod(Lowering(score_mod, heads, dtype, plan_of(score_mod, heads, dtype)))


class LoweredScoreMod:
    """A score_mod as options of relpos.attention, made by relpos.from_score_mod.

    lowered = relpos.from_score_mod(score_mod, heads=8)
    out = relpos.attention(query, key, value, **lowered.options_for(query, key))
    """

    def __init__(self, lowering: Lowering) -> None:
        self._lowering, self._plan = lowering, lowering.plan

    @property
    def options(self) -> dict[str, Any]:
        """position and softcap, for calls of any length and any offsets: kv_idx - q_idx is the
        distance of the call, kv_idx the row of a key.

        Raises ValueError where the function needs what depends on a call.
        """
        plan = self._plan
        needed = ["scale"] if plan.scale != 1.0 else []
        hides = self._hides()
        if plan.of(CLASS):
            needed.append("classes of the pairs")
        if plan.of(PAIR) or len(hides) < len(plan.masks):
            needed.append("attn_mask")
        if needed:
            raise ValueError(
                "options: expected a score_mod of position and softcap alone, got one that needs "
                f"{' and '.join(needed)} of a call: give **options_for(query, key)"
            )
        return self._options(hides)

    def options_for(self, query: Tensor, key: Tensor, scale: float | None = None) -> dict[str, Any]:
        """The options of a call with query [B, H, Lq, D] and key [B, Hk, Lk, D]: of position,
        softcap, scale, window and attn_mask those that the function needs.

        scale multiplies the products before the function gets them; None means 1 / sqrt(D). With
        them comes q_offset=0, for q_idx and kv_idx are the rows of query and key.
        """
        lowering = self._lowering
        if query.dim() != 4 or query.shape[1] != lowering.heads:
            wanted = f"[B, {lowering.heads}, Lq, D], with the heads of from_score_mod"
            raise wrong_value("query", wanted, shape_of(query))
        lowering.check()
        return self._options_of(query, key, scale)

    def _options_of(self, query: Tensor, key: Tensor, scale: float | None) -> dict[str, Any]:
        """options_for of a function that does as it did when it was traced."""
        plan, lowering = self._plan, self._lowering
        batch, queries, keys = query.shape[0], query.shape[2], key.shape[2]
        window, hides, mask = None, [], None
        for place, sources in plan.masks:
            condition = lowering.condition(place)
            seen = window_of(condition, queries, keys) if sources <= {D} else None
            if seen is not None:
                window = both_windows(window, seen)
            elif place in self._hides():
                hides.append(place)
            else:
                axes = batch if B in sources else 1, lowering.heads if H in sources else 1
                mask = both_masks(mask, mask_of(condition, *axes, queries, keys))
        terms, dense = lowering.pairs(batch, queries, keys)
        options = self._options(hides, terms)
        if window is not None:
            options["window"] = window
        if scale is not None or plan.scale != 1.0:
            given = query.shape[3] ** -0.5 if scale is None else number("scale", scale)
            options["scale"] = given * plan.scale
        mask = both_masks(dense, mask)
        if mask is not None:
            options["attn_mask"] = mask
        return {**options, "q_offset": 0}

    def describe(self) -> str:
        """What became of each part of the function."""
        plan, score_mod = self._plan, self._lowering.score_mod
        name = getattr(score_mod, "__name__", type(score_mod).__name__)
        lines = [f"score_mod {name}, {self._lowering.heads} heads"]
        if plan.scale != 1.0:
            lines.append(f"  score times {plan.scale:g}: scale")
        if plan.constant:
            lines.append(f"  {plan.constant:g} added: relpos.Position")
        becomes = {DISTANCE: "relpos.Position", KEY: "relpos.terms.KeyBias", PAIR: "attn_mask"}
        for piece in plan.pieces:
            if piece.kind in becomes:
                lines.append(f"  bias of {_listed(piece.sources)}: {becomes[piece.kind]}")
        by_class = "relpos.terms.PairBias, or attn_mask beyond 256 classes"
        for chosen in plan.groups().values():
            lines.append(f"  classes of pairs, of {_listed(plan.sources(chosen))}: {by_class}")
        if plan.softcap is not None:
            lines.append(f"  {plan.softcap:g} tanh(. / {plan.softcap:g}): softcap")
        for place, sources in plan.masks:
            kind = "-inf of a relpos.Position" if place in self._hides() else "attn_mask"
            kind = f"window, or {kind}" if sources <= {D} else kind
            lines.append(f"  mask of {_listed(sources)}: {kind}")
        return "\n".join(lines)

    def _hides(self) -> list[int]:
        """The conditions that may be -inf of a bias, which a softcap would make a number."""
        if self._plan.softcap is not None:
            return []
        return [place for place, sources in self._plan.masks if sources <= {H, D}]

    def _options(self, hides: Sequence[int], terms: Sequence[Term] = ()) -> dict[str, Any]:
        plan = self._plan
        parts: list[Composed] = []
        if plan.of(DISTANCE) or plan.constant or hides:
            parts.append(ScoreModBias(self._lowering, hides))
        if plan.of(KEY):
            parts.append(ScoreModKeys(self._lowering))
        parts += terms
        options: dict[str, Any] = {}
        if parts:
            options["position"] = parts[0] if len(parts) == 1 else parts
        if plan.softcap is not None:
            options["softcap"] = plan.softcap
        return options


def _listed(sources: frozenset[str]) -> str:
    return ", ".join(sorted(sources)) or "nothing"
