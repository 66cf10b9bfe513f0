"""The same call on the GPU: kernels in Triton for CUDA tensors (docs/gpu.md).

RELPOS_GPU=interpret, set before relpos is imported, runs tensors of the CPU through the same
kernels, in Triton's interpreter."""

from typing import Any

from relpos.gpu.mode import INTERPRETS, launches

__all__ = ["launches"]


def takes(tensor: Any) -> bool:
    """Whether a call of this query is one of the kernels here."""
    return INTERPRETS or tensor.is_cuda


def kernels() -> Any:
    """relpos.gpu.calls, which imports Triton."""
    try:
        from relpos.gpu import calls
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "triton":
            raise
        raise ImportError(
            "relpos.attention on CUDA needs Triton, which is not installed: pip install triton"
        ) from None
    return calls
