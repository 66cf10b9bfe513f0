"""The gradients of sinks."""

from typing import Any

from relpos.gpu.inputs import sink_of
from relpos.gpu.mode import INTERPRETS
from relpos.gpu.sums.targets import Targets
from relpos.gpu.terms.sinks import sink_gradient


def write_sink_gradients(run: Any, given: dict[str, Any], targets: Targets) -> None:
    """Where they are wanted; given: what the kernels of the backward pass read."""
    for term, sink in zip(run.lowered.sinks, run.problem.sinks, strict=True):
        if not targets.wants(term.parameter):
            continue
        to = targets.to(term.parameter)
        run.launch(
            sink_gradient,
            (run.heads * (run.batch if to.dim() == 3 else 1),),
            None,
            gradient=sink_of(to, 1.0),
            sink=sink,
            softmax=given["softmax"],
            sums=given["sums"],
            shift=run.problem.row_shift,
            multiplier=term.multiplier,
            batch=run.batch,
            heads=run.heads,
            queries=run.queries,
            BLOCK=256,
            OF_ROWS=to.dim() == 3,
            WIDEN=INTERPRETS,
        )
