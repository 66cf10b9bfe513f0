"""The results of coverage, as docs/coverage.md has them."""

from typing import Any

STATES = ("fused", "attention", "untouched")


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
    """Markdown: the sums, and a line for each attention class."""
    found = classes(results)
    built = [each for each in results if "not_built" not in each]
    called = [each for each in built if each["classes"] and "not_called" not in each]
    wrong = [each for each in results if any("raises" not in why for why in each["wrong"])]
    raising = [each for each in results if any("raises" in why for why in each["wrong"])]
    lines = [
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
