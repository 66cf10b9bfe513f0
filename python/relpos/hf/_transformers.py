"""What relpos needs of transformers; tested by what is there, not by the version."""

import inspect
from typing import Any, NamedTuple

TESTED = "5.23.0"


class Interfaces(NamedTuple):
    """The two registries of transformers."""

    attention_functions: Any
    mask_functions: Any


def interfaces() -> Interfaces:
    """Raises ImportError if transformers is not installed or lacks what relpos uses."""
    try:
        import transformers as package
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise ImportError(
            "relpos.hf needs Hugging Face transformers, which is not installed: "
            f"pip install transformers=={TESTED}"
        ) from None
    try:
        from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
    except ImportError as error:
        raise _unsuitable(package.__version__, str(error)) from None
    needed = ("causal_mask_function", "bidirectional_mask_function", "sdpa_mask")
    missing = [name for name in needed if not hasattr(masking_utils, name)]
    if not missing:
        arguments = inspect.signature(masking_utils.sdpa_mask).parameters
        needed = ("q_length", "kv_length", "q_offset", "kv_offset", "mask_function")
        missing = [f"{name} of masking functions" for name in needed if name not in arguments]
    if missing:
        raise _unsuitable(package.__version__, f"no {', '.join(missing)}")
    return Interfaces(AttentionInterface, AttentionMaskInterface)


def _unsuitable(version: str, what: str) -> ImportError:
    return ImportError(
        f"relpos.hf: transformers {version} lacks what relpos needs ({what}); relpos is tested "
        f"with {TESTED}: pip install transformers=={TESTED}"
    )
