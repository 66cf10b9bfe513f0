"""The launches that finish the results of passes."""

from typing import Any

import torch
import triton
from torch import Tensor

from relpos.gpu.layout import padded
from relpos.gpu.mode import INTERPRETS
from relpos.gpu.passes.finish import join_shares, mark_rows

_ROWS = 32  # of a program


def join(run: Any, to: Tensor, shares: Tensor, slope: float) -> None:
    """to [count, size]: slope times the sum of shares float32 [2, .., size]."""
    count, size = to.shape
    sizes = {"count": count, "size": size, "ROWS": _ROWS, "COLUMNS": padded(size)}
    given = {"to": to, "shares": shares, "slope": slope, "WIDEN": INTERPRETS}
    if size:
        run.launch(join_shares, (triton.cdiv(count, _ROWS),), None, **given, **sizes)


def odd_of(run: Any, x: Tensor, y: Tensor | None) -> Tensor:
    """int8: which rows of x [.., D] and y [.., Dv] are not finite."""
    count, x_size = x.shape[:-1].numel(), x.shape[-1]
    y_size = 1 if y is None else y.shape[-1]
    odd = run.workspace(count, dtype=torch.int8)
    sizes = {"count": count, "x_size": x_size, "y_size": y_size, "ROWS": _ROWS}
    sizes |= {"X": padded(x_size), "Y": padded(y_size)}
    if count:
        run.launch(mark_rows, (triton.cdiv(count, _ROWS),), None, odd=odd, x=x, y=y, **sizes)
    return odd
