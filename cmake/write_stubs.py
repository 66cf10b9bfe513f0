"""write_stubs.py CORE OUT: writes relpos/__init__.pyi for the schemes of a freshly built _core."""

import importlib.util
import pathlib
import sys

core, out = sys.argv[1:]
spec = importlib.util.spec_from_file_location("relpos._core", core)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules["relpos._core"] = module
sys.modules.setdefault("torch", None)  # the stubs need the registry alone
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

from relpos._position.stubs import stubs  # noqa: E402

pathlib.Path(out).write_text(stubs(), encoding="utf-8")
