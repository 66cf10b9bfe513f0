"""Writes build/sbom.json, what relpos is built of and tested with, as CycloneDX 1.5: the packages
of requirements.lock with their hashes, the headers that it compiles, and the file of another
project in third_party/.

.venv/bin/python scripts/sbom.py
"""

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]
FETCHED = re.compile(r'relpos_fetch\(\w+ "([^"]+)" [\w-]+\s+(\S+)\s+(\w{64})')
LOCKED = re.compile(r"^([\w.-]+)==(\S+) --hash=sha256:(\w{64})$", re.MULTILINE)
LICENCES = {"Highway": "Apache-2.0", "nlohmann/json": "MIT"}


def component(kind, name, version, **more):
    return {"type": kind, "name": name, "version": version} | more


def hashed(digest):
    return {"hashes": [{"alg": "SHA-256", "content": digest}]}


def compiled():
    """Headers whose code is in the library, at the versions that RELPOS_FETCH downloads."""
    text = (ROOT / "CMakeLists.txt").read_text()
    for name, url, digest in FETCHED.findall(text):
        version = re.search(r"v?(\d+\.\d+\.\d+)", url)[1]
        source = {"externalReferences": [{"type": "distribution", "url": url}]}
        licence = {"licenses": [{"license": {"id": LICENCES[name]}}]}
        yield component(
            "library", name, version, scope="required", **source, **licence, **hashed(digest)
        )


def packages():
    """Of the build and the tests; of a user's environment numpy alone is needed."""
    for name, version, digest in LOCKED.findall((ROOT / "requirements.lock").read_text()):
        scope = "required" if name in ("numpy", "nanobind") else "excluded"
        purl = f"pkg:pypi/{name.lower()}@{version}"
        yield component("library", name, version, scope=scope, purl=purl, **hashed(digest))


def bill():
    version = re.search(
        r'RELPOS_VERSION "([^"]+)"', (ROOT / "include/relpos/version.h").read_text()
    )[1]
    contained = component(
        "file",
        "xla/ffi/api/c_api.h",
        "jaxlib 0.10.2",
        scope="required",
        licenses=[{"license": {"id": "Apache-2.0"}}],
    )
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component("library", "relpos", version)},
        "components": [*compiled(), contained, *packages()],
    }


def main():
    to = ROOT / "build/sbom.json"
    to.parent.mkdir(exist_ok=True)
    to.write_text(json.dumps(bill(), indent=2) + "\n")
    print(f"sbom: {to.relative_to(ROOT)}: {len(bill()['components'])} components")


if __name__ == "__main__":
    main()
