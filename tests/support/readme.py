"""What README.md shows first; run as a program, that it holds for the relpos that is installed."""

import contextlib
import io
import re

from tests import ROOT


def first_lines():
    """Its first lines of Python, which need NumPy alone, and what they print."""
    text = (ROOT / "README.md").read_text()
    found = re.search(r"```python\n(.*?)```\n\nThis prints `(.*?)`", text, re.DOTALL)
    code, printed = found.groups()
    assert "relpos.numpy" in code
    return code, printed


def main():
    code, printed = first_lines()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(code, {})
    if said.getvalue().strip() != printed:
        raise SystemExit(f"README.md: expected {printed!r}, got {said.getvalue().strip()!r}")


if __name__ == "__main__":
    main()
