#!python
"""relpos: becomes the tool that lies in the package beside the library that both use."""

import importlib.util
import os
import sys

# Found without being imported, which would bring NumPy.
(package,) = importlib.util.find_spec("relpos").submodule_search_locations
os.environ.setdefault("RELPOS_PYTHON", sys.executable)
tool = os.path.join(package, "bin", "relpos")
if not os.path.exists(tool):
    sys.exit(f"relpos: expected the tool in {tool}, which is not there: reinstall relpos")
os.execv(tool, ["relpos", *sys.argv[1:]])
