"""The results of coverage, as docs/coverage.md has them."""

from typing import Any

STATES = ("fused", "attention", "untouched")
_HEADING = """# Models of transformers that relpos serves

Written by `python -m relpos.hf coverage` with transformers {version}: every model type is built from a small configuration with random
weights, fused by `relpos.hf.fuse`, and compared with the unfused model in float64: forward and gradients, padding, and where it generates
`generate()`, with beams and with a static cache. Parts that a call of the whole does not reach are called alone, with other inputs or by
`get_image_features()` and its like. *Fused*: the kernel computes attention and positions; *attention only*: attention on relpos, positions
(if any) by the model; *untouched*: as before, with the reason. *Rotates*, *other* or *plain* is the position of which the text of a class
speaks, or for which relpos has an adapter. A class has the best state that it had in a model; small configurations do not turn on every
option. What is not built is not known to work or to fail.
"""  # noqa: E501


def classes(results: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Of each attention class (file, name): its position, the best state that it had in a model,
    the reason, the model types, and what is wrong."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for result in results:
        for each in result["classes"]:
            key = each["file"], each["class"]
            entry = found.setdefault(key, {**each, "types": [], "wrong": []})
            if STATES.index(each["state"]) < STATES.index(entry["state"]):
                entry |= {"state": each["state"], "why": each["why"]}
            if result["type"] not in entry["types"]:
                entry["types"].append(result["type"])
                entry["wrong"] += result["wrong"]
    return found


def table(results: list[dict[str, Any]]) -> str:
    """The page in Markdown: how it came to be, the sums, and a line for each attention class. It
    does not hang on the order in which the results came."""
    import transformers

    results = sorted(results, key=lambda each: each["type"])
    found = classes(results)
    built = [each for each in results if "not_built" not in each]
    called = [each for each in built if each["classes"] and "not_called" not in each]
    wrong = [each for each in results if any("raises" not in why for why in each["wrong"])]
    raising = [each for each in results if any("raises" in why for why in each["wrong"])]
    lines = [
        _HEADING.format(version=transformers.__version__),
        f"{len(results)} model types, of which {len(built)} could be built from a small "
        f"configuration and {len(called)} have attention and could be called; "
        f"{len(wrong)} wrong, {len(raising)} raising.",
        "",
        "| position of the class | classes | fused | attention only | untouched |",
        "|---|---|---|---|---|",
    ]
    for kind in ("rotates", "other", "plain"):
        mine = [each for each in found.values() if each["position"] == kind]
        counts = [sum(each["state"] == state for each in mine) for state in STATES]
        lines.append(f"| {kind} | {len(mine)} | {' | '.join(map(str, counts))} |")
    lines += ["", "| class | model types | position | state | why |", "|---|---|---|---|---|"]
    for (_, name), each in sorted(found.items(), key=lambda item: item[0][::-1]):
        types = ", ".join(each["types"][:3]) + (", ..." if len(each["types"]) > 3 else "")
        state = _NAMES[each["state"]]
        if each["wrong"]:
            state = f"**{'raises' if 'raises' in each['wrong'][0] else 'wrong'}**"
        why = each["wrong"][0] if each["wrong"] else each["why"]
        why = " ".join(why.replace("|", "/").split())
        lines.append(f"| {name} | {types} | {each['position']} | {state} | {why[:160]} |")
    missing = [each for each in results if "not_built" in each]
    lines += ["", "Not built:", ""]
    lines += [f"- {each['type']}: {each['not_built'][:120]}" for each in missing]
    lines += [f"- {each['type']}: {each['not_called']}" for each in built if "not_called" in each]
    return "\n".join(lines)


_NAMES = {"fused": "fused", "attention": "attention only", "untouched": "untouched"}
