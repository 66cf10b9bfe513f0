"""What README.md shows first."""

import re

from tests import ROOT


def first_lines():
    """Its first lines of Python, which need NumPy alone, and what they print."""
    text = (ROOT / "README.md").read_text()
    found = re.search(r"```python\n(.*?)```\n\nThis prints `(.*?)`", text, re.DOTALL)
    code, printed = found.groups()
    assert "relpos.numpy" in code
    return code, printed
