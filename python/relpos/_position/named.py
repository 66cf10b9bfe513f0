"""Positions by the text module:Class, for the lab and the tool."""

import ast
import contextlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from relpos import _core
from relpos._base.errors import kind_of, wrong_type, wrong_value
from relpos._position.classes import CLASSES
from relpos._position.registry import schemes
from relpos._position.sum import PositionModule

_TEXT = re.compile(r"\s*([\w.]+):([A-Za-z_][\w.]*)\s*(?:\((.*)\))?\s*", re.DOTALL)

# What arguments of a constructor are called that have these sizes.
_CALLED = {
    "heads": ("heads", "num_heads", "n_heads", "n_head", "nheads"),
    "head_dim": ("head_dim", "dim", "dims", "d_head", "head_size"),
    "length": ("length", "max_length", "max_len", "max_distance"),
}


def is_named(text: str) -> bool:
    """Whether a text is module:Class or module:Class(name=value, ...)."""
    return _TEXT.fullmatch(text) is not None


def parts_of(text: str) -> list[str]:
    """The texts that a sum joins by +, outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for c in text:
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        depth += (c in "([{") - (c in ")]}")
        if c == "+" and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts]


def named_class(text: str) -> Any:
    """What stands behind module:Class, a class or a function or a position. A module of the current
    folder is found last, so that it takes the place of no other."""
    match = _TEXT.fullmatch(text)
    assert match is not None
    module, name, _ = match.groups()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is the results'
            found = _import(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module + ".").startswith(error.name + "."):
            raise  # something that the module imports
        where = f"a module that Python finds, or one in {os.getcwd()}"
        raise ValueError(f"{text}: expected {where}, found no {error.name}") from None
    for step in name.split("."):
        if not hasattr(found, step):
            raise wrong_value(text, f"a class of {module}", f"no {step} in it")
        found = getattr(found, step)
    return found


def make_named(text: str, sizes: Mapping[str, int]) -> Any:
    """The position that module:Class(name=value, ...) makes. Required arguments that the text
    leaves out are filled from sizes: heads, head_dim, length, under the names that they usually
    have."""
    made = named_class(text)
    options = options_of(text)
    if not isinstance(made, PositionModule):
        if not callable(made):
            raise wrong_type(text, "a class of positions", kind_of(made))
        with contextlib.redirect_stdout(sys.stderr):
            made = made(**options, **_filled(text, made, options, sizes))
    if not isinstance(made, PositionModule):
        raise wrong_type(text, "a class of positions, such as relpos.Position", kind_of(made))
    return made


def made_of(
    text: str, sizes: Mapping[str, int], options: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """The positions that a text, or a sum of texts, makes, each with what it is called. sizes: as
    in make_named; options: what the text of a scheme may leave out."""
    classes = {scheme.name: CLASSES[scheme.class_name] for scheme in schemes()}
    made: list[tuple[str, Any]] = []
    for part in parts_of(text):
        if is_named(part):
            made.append((part, make_named(part, sizes)))
            continue
        made += [(name, classes[name](**given)) for name, given in _core.parse(part, options)]
    return made


def options_of(text: str) -> dict[str, Any]:
    """What stands in the brackets."""
    match = _TEXT.fullmatch(text)
    said = (match and match[3]) or ""
    try:
        call = ast.parse(f"f({said})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
            raise ValueError
        return {str(given.arg): ast.literal_eval(given.value) for given in call.keywords}
    except (SyntaxError, ValueError):
        raise wrong_value(text, "options as name=value, with plain values", said) from None


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        here = os.getcwd()
        if error.name != name.partition(".")[0] or here in sys.path:
            raise
        sys.path.append(here)
        importlib.invalidate_caches()
        return importlib.import_module(name)


def _filled(
    text: str, made: Any, options: Mapping[str, Any], sizes: Mapping[str, int]
) -> dict[str, int]:
    of_name = {name: size for size, names in _CALLED.items() for name in names}
    filled = {}
    for parameter in inspect.signature(made).parameters.values():
        required = parameter.default is parameter.empty and parameter.kind in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        )
        if not required or parameter.name in options:
            continue
        size = of_name.get(parameter.name)
        if size not in sizes:
            wanted = f"{parameter.name}, which nothing else says"
            raise wrong_value(text, wanted, "none", f"write {text.strip()}({parameter.name}=...)")
        filled[parameter.name] = sizes[size]
    return filled


def summary_of(made: Any) -> str:
    """The first line of its docstring, empty where it has none of its own."""
    own = vars(made if isinstance(made, type) else type(made)).get("__doc__") or ""
    return own.strip().partition("\n")[0]
