"""The launches that write the gradients of keys and values."""

from typing import Any

import torch
import triton
from torch import Tensor

from relpos.gpu.passes.backward_keys import backward_keys
from relpos.gpu.passes.finish_launches import join
from relpos.gpu.passes.forward_launches import PROGRAMS
from relpos.gpu.problem import FAR_AWAY, NEAR

# Of sums of backward_keys, unless more are for twice as many programs; beside rows, whose bands
# take more, so that chunks of queries have few launches.
SHARE_BYTES, SHARE_BYTES_BESIDE_ROWS = 2**27, 2**30


def write_key_gradients(run: Any, dk: Tensor, dv: Tensor, given: dict[str, Any]) -> None:
    """The gradients of keys and values. given: what else backward_keys takes."""
    if not run.keys:
        return
    heads, slope = run.batch * run.kv_heads, run.lowered.scale
    sizes = {name: getattr(run, name) for name in ("kv_heads", "head_dim", "value_dim")}
    given = given | sizes
    whole = given | {"dk": dk, "dv": dv, "first_head": 0, "slope": slope}

    def programs(count: int) -> Any:
        return lambda tile: count * triton.cdiv(run.keys, tile.keys)

    if has_parts(run):
        _by_shares(run, dk, dv, given)
    else:
        near = run.far() and run.by_parts()
        tile = run.near_tile() if near else run.tile(backward_keys)
        run.tiles(backward_keys, programs(heads), tile, **whole, odd=None)
    run.again(backward_keys, programs(heads), 1, (dk, dv), **whole)


def _by_shares(run: Any, dk: Tensor, dv: Tensor, given: dict[str, Any]) -> None:
    """The same by a launch for the tiles of both parts and one for the others, of some heads at
    a time, whose sums are joined."""
    heads, sizes = run.batch * run.kv_heads, (run.head_dim, run.value_dim)
    tiles = {NEAR: run.near_tile(), FAR_AWAY: run.tile(backward_keys)}
    fill = triton.cdiv(2 * PROGRAMS, triton.cdiv(run.keys, tiles[FAR_AWAY].keys))
    held = SHARE_BYTES if run.kind == "biased" else SHARE_BYTES_BESIDE_ROWS
    most = min(heads, max(1, held // (8 * run.keys * sum(sizes)), fill))
    ends = given["ends"]
    more = {} if ends is None else {"ends": torch.empty_like(ends)}
    room = [run.workspace(2 * most * run.keys * size) for size in sizes]
    for first in range(0, heads, most):
        count = min(most, heads - first)
        of_heads = [2, count, run.keys]
        shares = [
            x[: 2 * count * run.keys * size].view(*of_heads, size)
            for x, size in zip(room, sizes, strict=True)
        ]
        for n, (share, tile) in enumerate(tiles.items()):
            to = {"dk": shares[0][n], "dv": shares[1][n], "first_head": first, "slope": 1.0}
            to |= more if share == FAR_AWAY else {}
            programs = count * triton.cdiv(run.keys, tile.keys)
            one = given | to | {"odd": None}
            run.tiles(backward_keys, lambda _, n=programs: n, tile, share=share, **one)
        rows = slice(first * run.keys, (first + count) * run.keys)
        for x, of_shares, slope in zip((dk, dv), shares, (run.lowered.scale, 1.0), strict=True):
            join(run, x.view(heads * run.keys, x.shape[3])[rows], of_shares, slope)
    if ends is not None:
        ends += more["ends"]


def has_parts(run: Any) -> bool:
    """Whether most tiles of a call with tables are seen as a whole, away from where they
    change. Shapes alone decide it."""
    lo, hi = run.problem.window
    longest = max(run.queries, run.keys)
    return run.far() and run.by_parts() and longest > 2 * (hi - lo + 1)
