"""Hugging Face transformers on relpos.

    relpos.hf.register()            # then attn_implementation="relpos" in from_pretrained
    relpos.hf.fuse(model)           # position terms into the kernel; weights untouched
    print(relpos.hf.report(model))  # what is fused in each layer, what is not, and why
    relpos.hf.rope(model.config)    # the rotation of such a model: relpos.RoPE.from_config

Importing this module does not import transformers. The functions do, and their errors say what is
missing.
"""

from relpos._position.classes import Rotary
from relpos.hf._fuse import fuse, linearize, restore
from relpos.hf._interface import register
from relpos.hf._report import LayerReport, Report, report

rope = Rotary.from_config

__all__ = ["LayerReport", "Report", "fuse", "linearize", "register", "report", "restore", "rope"]
