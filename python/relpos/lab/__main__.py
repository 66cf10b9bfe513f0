import importlib.util
import sys

if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        print("relpos lab: needs PyTorch: pip install 'relpos[torch]'", file=sys.stderr)
        raise SystemExit(2)
    from relpos.lab.cli import main

    raise SystemExit(main())
