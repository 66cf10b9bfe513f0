"""A build backend that hands over the wheel of dist/ for the Python that asks.

Where dist/ has none, scripts/wheels.sh builds one for this system.
"""

import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def system():
    """The name that scripts/wheels.sh has for this system."""
    soabi = sysconfig.get_config_var("SOABI")
    if "darwin" in soabi:
        return "macos"
    return "musl" if "musl" in soabi else platform.machine()


def fetched(folder):
    """Whether dist/ has a wheel that this Python takes; it is in the folder then."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    pip += ["--no-index", "--no-deps", "--only-binary", ":all:", "--find-links", ROOT / "dist"]
    return subprocess.run([*pip, "--dest", folder, "relpos"], check=False).returncode == 0


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    if not fetched(wheel_directory):
        subprocess.run([ROOT / "scripts/wheels.sh", system()], check=True)
        if not fetched(wheel_directory):
            raise SystemExit(f"scripts/wheels.sh {system()} built no wheel for {sys.executable}")
    (wheel,) = Path(wheel_directory).glob("relpos-*.whl")
    return wheel.name
