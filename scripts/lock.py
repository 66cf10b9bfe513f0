"""Writes requirements.lock: every package of requirements.txt, and those that setup.sh
installs alone, with the hash of the file that pip takes here. `RELPOS_LOCKED=1 make build` installs
these files and no others.

.venv/bin/python scripts/lock.py
"""

import json
import pathlib
import platform
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
ALONE = re.compile(r"^ALONE=\((.*)\)", re.MULTILINE)


def resolved():
    """[(name, version, sha256)] of what pip would install."""
    alone = ALONE.search((ROOT / "scripts/setup.sh").read_text())[1].split()
    wheels = pathlib.Path("/opt/wheels")
    local = [f"--find-links={wheels}"] if wheels.is_dir() else []
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        command += ["--dry-run", "--ignore-installed", "--no-deps", "--report", report.name]
        subprocess.run([*command, *local, "-r", str(ROOT / "requirements.txt"), *alone], check=True)
        items = json.loads(pathlib.Path(report.name).read_text())["install"]
    found = []
    for item in items:
        hashes = item["download_info"]["archive_info"]["hashes"]
        found.append((item["metadata"]["name"], item["metadata"]["version"], hashes["sha256"]))
    return sorted(found, key=lambda each: each[0].lower())


def main():
    python = ".".join(platform.python_version_tuple()[:2])
    lines = [f"# For Python {python} on {platform.machine()} Linux, by scripts/lock.py."]
    lines += [f"{name}=={version} --hash=sha256:{digest}" for name, version, digest in resolved()]
    (ROOT / "requirements.lock").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
