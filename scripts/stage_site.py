"""Lays out what Sphinx reads: README.md as the entry, docs/ as it is, and pages made from the
registry of schemes, the packages and the headers. scripts/docs.sh runs it.

.venv/bin/python scripts/stage_site.py FOLDER
"""

import re
import shutil
import sys
from pathlib import Path

import scheme_pages

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
ROOT_PAGES |= {"SECURITY.md": "security.md"}

# The navigation. A page that this tree does not have is left out; one that is not named here is a
# warning of Sphinx, and so an error.
NAVIGATION = {
    "Start": ["In five lines <self>", "install"],
    "How-to": [
        *["which", "from-flexattention", "from-flash-attn", "checkpoint", "training-a-bias"],
        *["long-sequences", "distributed", "huggingface", "coverage", "generation"],
        *["own-schemes", "compositions", "python", "gpu", "numpy", "jax", "c", "cpp", "cli"],
    ],
    "Schemes": ["schemes", *(f"families/{page}" for page in scheme_pages.FAMILIES.values())],
    "Reference": ["reference/python/index", "reference/cpp/index", "promises"],
    "Explanation": [
        *["design", "kernels", "accuracy", "memory", "reliability", "benchmarks", "parity"],
        "notebooks",
    ],
    "Project": ["contributing", "changelog", "security"],
}
# Of the Python reference; those that this tree does not have are left out.
MODULES = ["relpos", "relpos.nn", "relpos.compat", "relpos.compose", "relpos.terms"]
MODULES += ["relpos.testing", "relpos.hf", "relpos.distributed", "relpos.gpu", "relpos.numpy"]
MODULES += ["relpos.jax"]


def toctree(pages, *, caption="", options=()):
    lines = [*([f":caption: {caption}"] if caption else []), *options, "", *pages]
    return "\n".join(["```{toctree}", *lines, "```", ""])


def without_comments(text):
    return re.sub(r"^<!--.*?-->\n", "", text, flags=re.MULTILINE | re.DOTALL)


def linked(text, *, of_root=False):
    """Links to files that are pages elsewhere on the site."""
    text = re.sub(r"\]\(\.\./include/relpos/(\w+)\.h\)", r"](reference/cpp/\1.md)", text)
    for name, page in ROOT_PAGES.items():
        text = re.sub(rf"\]\((?:\.\./)?{re.escape(name)}", f"]({page}", text)
    return text.replace("](docs/", "](") if of_root else text


def stage_pages(out):
    for path in [*DOCS.glob("*.*"), *DOCS.glob("families/*.*")]:
        to = out / path.relative_to(DOCS)
        to.parent.mkdir(exist_ok=True)
        if path.suffix == ".md":
            to.write_text(linked(without_comments(path.read_text())))
        else:
            shutil.copy(path, to)
    for name, page in ROOT_PAGES.items():
        (out / page).write_text(linked(without_comments((ROOT / name).read_text()), of_root=True))


def stage_index(out):
    text = linked(without_comments((ROOT / "README.md").read_text()), of_root=True)
    parts = [text]
    for caption, pages in NAVIGATION.items():
        there = [page for page in pages if "<self>" in page or (out / f"{page}.md").exists()]
        parts.append(toctree(there, caption=caption, options=[":hidden:"]))
    (out / "index.md").write_text("\n".join(parts))


def rest(*lines):
    return "\n".join(["```{eval-rst}", *lines, "```", ""])


def stage_python(out):
    """A page a module; classes of schemes have theirs, and what all of them can do is on one."""
    import importlib
    import importlib.util
    import inspect

    import relpos

    out.mkdir(parents=True)
    of_schemes = {scheme.class_name for scheme in relpos.schemes()}
    pages, shown = [], {}
    for name in MODULES:
        if importlib.util.find_spec(name) is None:
            continue
        try:
            module = importlib.import_module(name)
        except ImportError as error:  # what it needs is optional, such as JAX
            print(f"docs: no reference of {name}: {error}")
            continue
        made = [f"# {name}", ""]
        made.append(rest(f".. automodule:: {name}", "   :no-members:"))
        own = [n for n, thing in vars(module).items() if getattr(thing, "__module__", "") == name]
        for item in getattr(module, "__all__", [n for n in own if not n.startswith("_")]):
            thing = getattr(module, item)
            if item in of_schemes or inspect.ismodule(thing) or isinstance(thing, str):
                continue
            kind = "class" if inspect.isclass(thing) else "function"
            first = shown.setdefault(id(thing), f"{name}.{item}")
            if first != f"{name}.{item}":  # said once, where it comes first
                made.append(f"- {{py:{'class' if kind == 'class' else 'func'}}}`{first}`\n")
                continue
            members = ["   :members:"] if kind == "class" else []
            made.append(rest(f".. auto{kind}:: {name}.{item}", *members))
        page = name.replace(".", "-")
        (out / f"{page}.md").write_text("\n".join(made))
        pages.append(page)
    (out / "schemes.md").write_text(scheme_pages.classes_page())
    index = "# Python\n\n`help(relpos.NAME)` prints the same in Python.\n\n"
    tree = toctree(["relpos", "schemes", *pages[1:]], options=[":maxdepth: 1"])
    (out / "index.md").write_text(index + tree)


def stage_cpp(out):
    """A page a header, in the order in which relpos.h includes them and then the others."""
    out.mkdir(parents=True)
    folder = ROOT / "include/relpos"
    order = re.findall(r'#include [<"]relpos/(\w+)\.h', (folder / "relpos.h").read_text())
    order += sorted({path.stem for path in folder.glob("*.h")} - {*order, "relpos"})
    for name in order:
        lines = [f".. doxygenfile:: {name}.h", "   :project: relpos"]
        (out / f"{name}.md").write_text(f"# {name}.h\n\n{rest(*lines)}")
    index = (DOCS / "site/reference-cpp.md").read_text() + "\n"
    (out / "index.md").write_text(index + toctree(order, options=[":maxdepth: 1"]))


def main(out):
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    stage_pages(out)
    scheme_pages.stage(out)
    stage_python(out / "reference/python")
    stage_cpp(out / "reference/cpp")
    stage_index(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
