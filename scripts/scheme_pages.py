"""A page for each scheme, made from where each fact lives: the registry (options, parameters,
names in checkpoints), docs/schemes.md (paper, use, errors of others), docs/families (formula),
docs/benchmarks.md (cost), docs/parity.md (peers), tests/oracles (test)."""

import re
from pathlib import Path

import draw_picture
import relpos

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FAMILIES = {"bias": "biases", "rows": "rows", "rotation": "rotations", "sink": "sinks"}
COLUMNS = re.compile(r"(?<!\\)\|")


def cells(line):
    return [cell.strip() for cell in COLUMNS.split(line.strip().strip("|"))]


def rows_of(text):
    """{scheme: {column: cell}} of the tables whose first column names schemes."""
    found, columns = {}, []
    for line in text.splitlines():
        if not line.startswith("|"):
            columns = []
        elif not columns:
            columns = cells(line)
        elif re.match(r"\| `\w+` \|", line) and columns[0] == "scheme":
            row = dict(zip(columns, cells(line), strict=True))
            found.setdefault(row["scheme"].strip("`"), {}).update(row)
    return found


def costs():
    """What docs/benchmarks.md measured: where and how, and {scheme: [(case, cells)]}."""
    text = (DOCS / "benchmarks.md").read_text()
    day, machine = re.search(r"^1\. (\S+) \S+: (.*?): ", text, re.MULTILINE).groups()
    conditions = re.search(r"^(float32, B 1.*?)(?: %|\n)", text, re.MULTILINE)[1]
    found = {}
    for line in text.splitlines():
        if re.match(r"\| \w+(?:, [^|]*)?, (?:forward|backward) \| [\d.]+ x of plain", line):
            case, measured, spread, milliseconds = cells(line)
            name, _, case = case.partition(", ")
            row = case, measured.removesuffix(" x of plain"), spread, milliseconds
            found.setdefault(name, []).append(row)
    return f"on an {machine} ({day}). {conditions}", found


def peers():
    """{scheme: [(peer, function, package)]} that docs/parity.md compares with."""
    found = {}
    for line in (DOCS / "parity.md").read_text().splitlines():
        row = cells(line) if line.startswith("|") else []
        if len(row) == 11 and re.fullmatch(r"\w+", row[1]):
            found.setdefault(row[1], []).append(tuple(row[:1] + row[2:4]))
    return found


def table(columns, rows):
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def cell(text):
    return str(text).replace("|", "\\|")


def moved(text):
    """A cell of a page in docs/, or of one in docs/families, on a page in schemes/."""
    text = re.sub(r"\]\((?!\.\./|\w+://)", "](../", text)
    return text.replace("](../#", "](../schemes.md#")


def options_of(scheme):
    rows = []
    for option in scheme.options:
        kind = " or ".join(f"`{c}`" for c in option.choices) or option.type
        default = "required" if option.required else f"`{option.default}`"
        doc = option.doc + (f". Also: {', '.join(option.aliases)}" if option.aliases else "")
        rows.append([f"`{option.name}`", cell(kind), cell(default), cell(doc)])
    if not rows:
        return "None.\n"
    return table(["option", "type", "default", "meaning"], rows)


def parameters_of(description, told):
    """The shapes are those of the example; docs/schemes.md says what they are made of."""
    rows = []
    for spec in description.parameters:
        kind = "input of each call" if spec.input else "trained" if spec.trainable else "fixed"
        shape = "[" + ", ".join(str(size) for size in spec.shape) + "]"
        start = "" if spec.input else spec.init
        rows.append([f"`{spec.name}`", shape, kind, start, cell(spec.doc)])
    if not rows:
        return "None.\n"
    head = ["parameter", f"of `{description.text}`", "kind", "starts as", "meaning"]
    return f"{told[:1].upper()}{told[1:]}.\n\n{table(head, rows)}"


def names_of(description):
    rows = [
        [f"`{spec.name}`", origin.project, f"`{origin.name}`", "yes" if origin.transposed else ""]
        for spec in description.parameters
        for origin in spec.origins
    ]
    return table(["here", "project", "there", "transposed"], rows) if rows else ""


def literal(value):
    """A value of an option in Python."""
    if isinstance(value, list):
        return "[" + ", ".join(f"{number:g}" for number in value) + "]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def plain(value):
    """A value of an option on the command line."""
    return ",".join(f"{n:g}" for n in value) if isinstance(value, list) else str(value)


def example_of(scheme, description):
    given = ", ".join(f"{name}={literal(value)}" for name, value in scheme.example().items())
    call = f"relpos.{scheme.class_name}({given})"
    lines = ["import relpos", "", f"position = {call}", "print(position.describe())"]
    words = [
        f"--{name.replace('_', '-')} {plain(value)}" for name, value in scheme.example().items()
    ]
    command = " ".join(["relpos show", scheme.name, *words, "--query 6 --key 6"])
    more = ""
    inputs = [spec.name for spec in description.parameters if spec.input]
    if inputs:
        given = f"`position({', '.join(inputs)})`"
        more = f"\nEach call gets its inputs: {given}, with gradients to those of floating dtype"
        more += " ([inputs](../python.md#inputs-of-a-call)).\n"
    python = "\n".join(lines)
    return f"```python\n{python}\n```\n\n```sh\n{command}\n```\n{more}"


def page(scheme, row, formula, cost, conditions, compared):
    description = scheme.describe(**scheme.example())
    name, family = scheme.name, FAMILIES[scheme.family]
    signature = f"relpos.{scheme.class_name}{scheme.signature()}"
    said = scheme.headline.rstrip(".") + "."
    parts = [
        f"# {name}\n",
        f"{said[:1].upper()}{said[1:]} One of the [{family}](../families/{family}.md).\n",
        f"Source: {scheme.source}.\n",
        f"```{{py:class}} {signature}\n```\n",
        f"![What {name} gives to pairs of positions]({name}.svg)\n",
        "Queries down, keys to the right; beside it the same over the distance of the key, or for "
        "one patch of an image; grey pairs have no term.\n",
        "## Formula\n",
        moved(formula["formula"]) + "\n",
    ]
    which = formula.get("row m of the table")
    if which:
        parts.append(f"Row m: {moved(which)}.\n")
    parts += ["## Use\n", example_of(scheme, description)]
    parts += ["## Options\n", options_of(scheme)]
    parts += ["## Parameters\n", parameters_of(description, moved(row["parameters"]))]
    names = names_of(description)
    parts += ["## Names in checkpoints\n"]
    parts.append(
        names + "\n`load_state_dict` reads them, `origin_state_dict` writes them.\n"
        if names
        else "`load_state_dict` reads the names above; with these options it knows no others.\n"
        if description.parameters
        else "It has no parameters.\n"
    )
    parts += ["## In other code\n", f"Used by: {moved(row['used by'])}.\n"]
    wrong = row["what implementations get wrong"]
    if wrong:
        parts.append(f"What implementations get wrong: {moved(wrong)}.\n")
    parts.append("## Cost\n")
    if cost:
        parts.append(
            f"Times of the same call without a position, {conditions}\n\n"
            + table(["case", "x of plain", "spread", "milliseconds"], map(list, cost))
            + "\n[All rows](../benchmarks.md).\n"
        )
    else:
        parts.append("Not measured beside plain attention ([all rows](../benchmarks.md)).\n")
    parts.append("## Test\n")
    if compared:
        rows = [[cell(value) for value in peer] for peer in compared]
        parts.append(
            "Compared with the code that it comes from ([how exactly](../parity.md)):\n\n"
            + table(["peer", "class or function", "package"], rows)
        )
    oracle = ROOT / f"tests/oracles/{name}.py"
    parts.append(
        f"`tests/oracles/{name}.py` is the paper's formula in plain PyTorch. The tests compare "
        "every element of outputs and gradients with it, for these options and others, with every "
        "dtype, mask and SIMD target:\n"
    )
    parts.append(f"```python\n{oracle.read_text()}```\n")
    return "\n".join(parts)


def stage(out):
    schemes = sorted(relpos.schemes(), key=lambda scheme: scheme.name)
    told = rows_of((DOCS / "schemes.md").read_text())
    conditions, cost = costs()
    compared = peers()
    (out / "schemes").mkdir()
    for family, name in FAMILIES.items():
        text = (out / f"families/{name}.md").read_text()
        formulas = rows_of(text)
        of_family = [scheme for scheme in schemes if scheme.family == family]
        for scheme in of_family:
            made = page(
                *[scheme, told[scheme.name], formulas[scheme.name], cost.get(scheme.name)],
                *[conditions, compared.get(scheme.name)],
            )
            (out / f"schemes/{scheme.name}.md").write_text(made)
            (out / f"schemes/{scheme.name}.svg").write_text(draw_picture.of_page(scheme))
        tree = ["```{toctree}", ":hidden:", ""]
        tree += [f"../schemes/{scheme.name}" for scheme in of_family]
        text = to_pages(text, "../schemes") + "\n" + "\n".join([*tree, "```", ""])
        (out / f"families/{name}.md").write_text(text)
    listed = without_columns((out / "schemes.md").read_text())
    (out / "schemes.md").write_text(to_pages(listed, "schemes"))


def without_columns(text):
    """The tables of docs/schemes.md with the columns that fit; each page has the others."""
    found, columns = [], []
    for line in text.splitlines():
        if not line.startswith("|"):
            columns = []
        elif not columns:
            columns = cells(line)
        if columns[:2] == ["scheme", "class"]:
            line = "| " + " | ".join(cells(line)[:4]) + " |"
        found.append(line)
    return "\n".join(found) + "\n"


def to_pages(text, folder):
    """The first column of tables of schemes leads to their pages."""
    names = {scheme.name for scheme in relpos.schemes()}

    def link(match):
        return f"| [`{match[1]}`]({folder}/{match[1]}.md) |" if match[1] in names else match[0]

    return re.sub(r"^\| `(\w+)` \|", link, text, flags=re.MULTILINE)


def classes_page():
    """What the classes of all schemes have in common, and what rotations have besides."""
    base = ["forward", "describe", "dense", "indices", "steps", "origin_state_dict"]
    base += ["reset_parameters"]
    lines = ["# Classes of schemes", ""]
    lines += ["Each is a `torch.nn.Module`; `T5Bias` and `RoPE` stand for all of their kind.", ""]
    lines += ["## Every class", "", "```{eval-rst}"]
    lines += [f".. automethod:: relpos.T5Bias.{name}" for name in base]
    lines += ["```", "", "## Rotations", "", "```{eval-rst}"]
    lines += [f".. automethod:: relpos.RoPE.{name}" for name in ("from_config", "tables", "rotate")]
    lines += ["```", ""]
    rows = [
        [
            f"{{py:class}}`relpos.{scheme.class_name}`",
            f"[`{scheme.name}`](../../schemes/{scheme.name}.md)",
            cell(scheme.summary),
        ]
        for scheme in sorted(relpos.schemes(), key=lambda scheme: scheme.class_name.lower())
    ]
    return "\n".join(lines) + "\n## All\n\n" + table(["class", "scheme", "what it is"], rows)
