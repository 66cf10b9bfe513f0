"""Where the kernels of the GPU run, by RELPOS_GPU, and how often they ran."""

import os
import sys
from collections import Counter
from importlib import metadata

_CHOICES = ("auto", "interpret")


def _interprets() -> bool:
    """Whether RELPOS_GPU asks for Triton's interpreter, which Triton decides when it is
    imported."""
    asked = os.environ.get("RELPOS_GPU", "auto")
    if asked not in _CHOICES:
        raise ValueError(f"RELPOS_GPU: expected one of {', '.join(_CHOICES)}, got {asked!r}")
    if asked != "interpret":
        return False
    if sys.modules.get("triton") is not None and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError(
            "RELPOS_GPU=interpret: expected that nothing had imported triton yet, which was: "
            "import relpos first, or set TRITON_INTERPRET=1, too"
        )
    os.environ["TRITON_INTERPRET"] = "1"
    return True


INTERPRETS = _interprets()
COUNTS: Counter[str] = Counter()


def launches() -> dict[str, int]:
    """{kernel: how often it was launched so far}, of the kernels of this process."""
    return dict(COUNTS)


def installed() -> str:
    """The Triton that computes here, which this does not import."""
    try:
        found = f"Triton {metadata.version('triton')}"
    except metadata.PackageNotFoundError:
        return "Triton is not installed"
    return f"the interpreter of {found}, for tensors of the CPU" if INTERPRETS else found
