"""python -m relpos.hf COMMAND."""

import sys

from relpos.hf import coverage

_COMMANDS = {"coverage": coverage.main}


def main() -> int:
    name, *arguments = sys.argv[1:] or [""]
    if name in ("-h", "--help"):
        print(f"usage: python -m relpos.hf {{{','.join(_COMMANDS)}}} [--help]")
        return 0
    if name not in _COMMANDS:
        print(
            f"python -m relpos.hf: expected {', '.join(_COMMANDS)}, got {name!r}", file=sys.stderr
        )
        return 2
    return _COMMANDS[name](arguments)


if __name__ == "__main__":
    sys.exit(main())
