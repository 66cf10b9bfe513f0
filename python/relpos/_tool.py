"""What the tool asks about positions of one's own: python -m relpos._tool REQUEST prints a reply.

Both are JSON. REQUEST has sides (position: module:Class or a sum with one; params: a state dict or
""), what ("" is the command's default), others (families of sides that the tool computes itself),
grids ([queries, keys, q_offset]), seed, sizes (heads, head_dim, length) and show: whether matrices
are those of relpos show, or one stack [heads, queries, keys] of relpos compare. The reply has what
and, of each side, its options and matrices by grid; or error.
"""

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import relpos
from relpos import terms
from relpos._base.errors import wrong_value
from relpos._position.named import is_named, made_of, options_of
from relpos._position.own import Position

_BIASES = (terms.DistanceBias, terms.Slopes, terms.KeyBias)
_TABLES = {terms.RowTable: "key rows", terms.ColumnTable: "column rows"}
_MOST = 1 << 26  # numbers of one matrix, as the tool prints them

Grid = Sequence[int]
Matrices = list[tuple[str, Tensor]]


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """The reply to a request."""
    for queries, keys, _ in request["grids"]:
        if queries * keys > _MOST:
            raise wrong_value("--query, --key", f"at most {_MOST} pairs", queries * keys)
    sides = [_Side(request, side) for side in request["sides"]]
    families = [*(side.family for side in sides), *request["others"]]
    what = request["what"] or _default(families, request["show"])
    found = []
    for side in sides:
        matrices = side.shown if request["show"] else side.compared
        grids = [[_json(*each) for each in matrices(what, grid)] for grid in request["grids"]]
        found.append({"options": side.options, "grids": grids})
    return {"what": what, "sides": found}


def _default(families: Sequence[str], show: bool) -> str:
    if all(family == "bias" for family in families):
        return "bias"
    return "index" if show or all(family == "rows" for family in families) else "score"


class _Side:
    """A position with the numbers of its constructor, or of a state dict, in double."""

    def __init__(self, request: Mapping[str, Any], side: Mapping[str, Any]) -> None:
        self.text, self.sizes = side["position"], request["sizes"]
        torch.manual_seed(request["seed"])
        given = {name: self.sizes[name] for name in ("heads", "head_dim")}
        self.parts = [part for _, part in made_of(self.text, self.sizes, given)]
        self.options = options_of(self.text) if is_named(self.text) else {}
        self.position = self.parts[0] if len(self.parts) == 1 else relpos.Sum(*self.parts)
        if side["params"]:
            self.position.load_state_dict(_state_dict(side["params"]))
        self.position.double()

    @property
    def family(self) -> str:
        """bias, rows, or nothing where it has terms of several kinds."""
        families = {_family(part) for part in self.parts}
        return families.pop() if len(families) == 1 else ""

    def shown(self, what: str, grid: Grid) -> Matrices:
        (part,) = self.parts
        if what == "distance":
            return [("distance", part.steps(*grid)[0][1])]
        if what == "index":
            return [("index", part.indices(*grid))]
        if what == "steps":
            return part.steps(*grid)
        if what == "bias":
            return [("bias", self.bias(grid))]
        found: Matrices = []
        for term in part._terms(*grid):
            name = _TABLES.get(type(term))
            if name is not None:
                found.append((name, term.dense(*grid)))
            if isinstance(term, terms.ValueTable):
                found.append(("value rows", term.dense(*grid, which="value")))
        if not found:
            raise self._lacks("rows", "rows")
        return found

    def compared(self, what: str, grid: Grid) -> Matrices:
        if what == "bias":
            return [("bias", self.bias(grid))]
        if what == "score":
            return [("score", self.score(grid))]
        if len(self.parts) != 1:
            raise ValueError(
                f"--what index: {self.text} is a sum, expected one scheme: try --what score"
            )
        return [("index", self.parts[0].indices(*grid)[None])]

    def bias(self, grid: Grid) -> Tensor:
        """[heads or 1, queries, keys], the sum of all biases."""
        found = []
        for part in self.parts:
            if not isinstance(part, Position):
                if _family(part) != "bias":
                    raise self._lacks("bias", "bias")
                found.append(part.dense(*grid))
                continue
            biases = [term for term in part._terms(*grid) if isinstance(term, _BIASES)]
            if not biases:
                raise self._lacks("bias", "bias")
            found += [term.dense(*grid) for term in biases]
        return torch.stack(torch.broadcast_tensors(*found)).sum(0)

    def score(self, grid: Grid) -> Tensor:
        """Of queries and keys of ones, divided by their size."""
        queries, keys, offset = grid
        heads, dim = self._heads(grid)
        query, key = (torch.ones(1, heads, n, dim, dtype=torch.float64) for n in (queries, keys))
        given = {"position": self.position, "scale": 1 / dim, "q_offset": offset}
        return relpos.scores(query, key, **given)[0]

    def _heads(self, grid: Grid) -> tuple[int, int]:
        """How many heads it has, and their size, where tables say it; else one, and sizes."""
        heads, dim = 1, self.sizes["head_dim"]
        for part in self.parts:
            heads = max(heads, getattr(part, "heads", None) or 1)
            dim = getattr(part, "head_dim", None) or dim
            for term in part._terms(*grid) if isinstance(part, Position) else ():
                table = getattr(term, "table", None)
                if isinstance(term, terms.DistanceBias) or (table is not None and table.dim() == 3):
                    heads = max(heads, table.shape[0])
                gated = part._has_gates
                if isinstance(term, (terms.RowTable, terms.ColumnTable)) and not gated:
                    dim = table.shape[-1]
        return heads, dim

    def _lacks(self, what: str, name: str) -> ValueError:
        return ValueError(f"--what {what}: {self.text} adds no {name}: try --what index")


def _family(part: Any) -> str:
    if not isinstance(part, Position):
        return part.scheme.family
    kinds = [type(term) for term in part._terms(2, 2, 0)]
    if all(issubclass(kind, _BIASES) for kind in kinds):
        return "bias"
    tables = (*_TABLES, terms.ValueTable)
    return "rows" if all(issubclass(kind, tables) for kind in kinds) else ""


def _state_dict(path: str) -> Any:
    if not os.path.isfile(path):
        raise wrong_value("--params", "a file of parameters", path)
    if path.endswith(".safetensors"):
        from safetensors.torch import load_file

        return load_file(path)
    return torch.load(path, weights_only=True)


def _json(name: str, matrix: Tensor) -> dict[str, Any]:
    kind = "real"
    if matrix.dtype == torch.bool:
        kind = "boolean"
    elif not matrix.is_floating_point():
        kind = "integer"
    numbers = matrix.detach().double().flatten().tolist()
    values = [x if math.isfinite(x) else str(x) for x in numbers]
    return {"name": name, "kind": kind, "shape": list(matrix.shape), "values": values}


def main(text: str, write: Callable[[str], None]) -> None:
    try:
        reply = answer(json.loads(text))
    except Exception as error:  # of the position's own code, too
        plain = isinstance(error, (ValueError, TypeError))
        reply = {"error": str(error) if plain else f"{type(error).__name__}: {error}"}
    write(json.dumps(reply))


def _answer_apart() -> None:
    """Answers on stdout; what positions print, at import and later, goes to stderr."""
    with os.fdopen(os.dup(1), "w") as stdout:
        os.dup2(2, 1)
        main(sys.argv[1], stdout.write)


if __name__ == "__main__":
    _answer_apart()
