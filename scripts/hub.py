"""Lays the installed relpos out as a kernel of Hugging Face's Kernel Hub, for `kernels`.

.venv/bin/python scripts/hub.py [FOLDER]    FOLDER: build/hub

FOLDER/build/VARIANT is imported from where it lies, under a name of its own and beside other
versions, so the package's imports of itself become relative ones.
"""

import ast
import hashlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "relpos"
KERNEL_VERSION = 1  # the branch v1 of the repository: one number for each break of the interface
# The extension links no library of torch; kernels takes such a build for this torch and newer ones.
VARIANT = f"torch-stable-abi26-cpu-{platform.machine()}-linux"
# The lab and the tools, which start processes that import relpos by its name.
LEFT_OUT = ("lab", "_tool.py", "__main__.py", "hf/__main__.py", "hf/coverage", "_position/stubs.py")

# What transformers asks of a kernel that is named in attn_implementation: one that has a
# flash_attn_varlen_func would get unpadded tokens without biases and masks, one with these two gets
# the calls and the masks of sdpa.
FRONT = '''"""relpos, attention with relative positions, as a kernel of the Kernel Hub."""

from . import relpos
from .relpos.hf._interface import attention_function as flash_attn_forward

_VARLEN = ("flash_attn_func", "flash_attn_varlen_func")  # in relpos.compat
globals().update({name: getattr(relpos, name) for name in relpos.__all__ if name not in _VARLEN})
supports_flash_attn = True
'''

CARD = """---
license: apache-2.0
tags: [kernels]
---

# relpos {version}

Attention with relative positions on the CPU: exact, trainable, linear in memory. The build is for
{machine} Linux, torch 2.6 or newer, and Python {python}.

    model = AutoModel.from_pretrained(..., attn_implementation="OWNER/relpos")

computes attention here; the positions in the kernel, and no Lq x Lk mask, come by

    kernel = kernels.get_kernel("OWNER/relpos", version={number}, trust_remote_code=True)
    kernel.hf.fuse(model)
"""


def parts(package: Path) -> Iterator[Path]:
    """The files of the kernel, relative to the package."""
    walk = os.walk(package, followlinks=True)
    for path in sorted(Path(folder, file) for folder, _, files in walk for file in files):
        name = path.relative_to(package)
        left_out = any(name.is_relative_to(each) for each in LEFT_OUT)
        if not left_out and (path.suffix == ".py" or ".so" in path.suffixes):
            yield name


def relative(source: str, depth: int) -> str:
    """A module whose imports of relpos are relative ones. depth: folders between it and relpos."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            rest = node.module.removeprefix(PACKAGE)
            new = f"from .{'.' * depth}{rest.removeprefix('.')} import"
            old = f"from {node.module} import"
        elif isinstance(node, ast.Import) and any(
            alias.name.split(".")[0] == PACKAGE for alias in node.names
        ):
            old = f"import {PACKAGE}"
            new = f"from ..{'.' * depth} import {PACKAGE}"
            if ast.unparse(node) != old:
                raise ValueError(f"expected {old!r} alone, got {ast.unparse(node)!r}")
        else:
            continue
        line, column = lines[node.lineno - 1], node.col_offset
        if not line[column:].startswith(old):
            raise ValueError(f"expected {old!r} in one line, got {line.strip()!r}")
        lines[node.lineno - 1] = line[:column] + new + line[column + len(old) :]
    return "".join(lines)


def lay_out(package: Path, version: str, folder: Path) -> Path:
    """Writes the repository of the kernel; returns the folder of the build."""
    build = folder / "build" / VARIANT
    shutil.rmtree(folder / "build", ignore_errors=True)
    contents = hashlib.sha256(FRONT.encode())
    for name in parts(package):
        data = (package / name).read_bytes()
        if name.suffix == ".py":
            data = relative(data.decode(), len(name.parts) - 1).encode()
        contents.update(data)
        (build / PACKAGE / name).parent.mkdir(parents=True, exist_ok=True)
        (build / PACKAGE / name).write_bytes(data)
    (build / "__init__.py").write_text(FRONT)
    metadata = {
        "id": f"{PACKAGE}_cpu_{contents.hexdigest()[:8]}",
        "name": PACKAGE,
        "version": KERNEL_VERSION,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cpu"},
    }
    (build / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    card = CARD.format(
        version=version,
        machine=platform.machine(),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        number=KERNEL_VERSION,
    )
    (folder / "README.md").write_text(card)
    return build


def main(folder: str = "build/hub") -> None:
    import relpos

    build = lay_out(Path(relpos.__file__).parent, relpos.__version__, Path(folder))
    shutil.copy(Path(__file__).parents[1] / "LICENSE", Path(folder) / "LICENSE")
    print(f"hub: {build}")


if __name__ == "__main__":
    main(*sys.argv[1:])
