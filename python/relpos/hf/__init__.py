"""Hugging Face transformers on relpos.

    relpos.hf.register()            # then attn_implementation="relpos" in from_pretrained
    relpos.hf.linearize(model)      # position terms into the kernel; weights untouched
    print(relpos.hf.report(model))  # what is fused in each layer, what is not, and why

Importing this module does not import transformers. The functions do, and their errors say what is
missing.
"""

from relpos.hf._interface import register
from relpos.hf._linearize import linearize
from relpos.hf._report import LayerReport, Report, report

__all__ = ["LayerReport", "Report", "linearize", "register", "report"]
