"""Whether one case holds, and the least case that fails as it does."""

import traceback

import relpos
import torch

from tests.fuzz import ranks, routes
from tests.fuzz.call import FuzzCall
from tests.fuzz.factors import PLAIN, text_of
from tests.fuzz.rules import makes_sense, refusal, said
from tests.support.promise import (
    Bounded,
    eps_of,
    missed,
    promised,
    promised_scores,
    promised_weights,
    work_type,
)
from tests.support.threads import threads
from tests.support.unit_promise import Kept, applies, decided, reference


def problems_of(case):
    """What is wrong in a case, as lines; none when all is well."""
    entries = refusal(case)
    try:
        with threads(int(case["threads"])):
            call = FuzzCall(case)
            found, weights = computed(call)
    except Exception as error:
        if any(said(entry, error) for entry in entries):
            return []
        wanted = f", expected {entries[0].says!r}" if entries else ""
        return [f"{type(error).__name__}: {error}{wanted} ({where(error)})"]
    if entries:
        return [f"not refused: {entries[0].name}: {entries[0].reason}"]
    problems = []
    if case["threads"] != "1":
        with threads(1):
            again, _ = computed(call)
        names = [n for n in found if not torch.equal(bits_of(found[n]), bits_of(again[n]))]
        problems = [
            f"{name}: other bits on {case['threads']} threads than on one" for name in names
        ]
    return problems + judged(call, found, weights)


def bits_of(x):
    return x.contiguous().view(torch.uint8) if x.dim() else x


def where(error):
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"


def computed(call):
    """({result: tensor}, weights or None)."""
    if call.fuzz["route"] in ranks.FUNCTIONS:
        return ranks.computed(call), None
    before = [x.detach().clone() for x in call.run_leaves()]
    with torch.set_grad_enabled(call.fuzz["wants"] != "nothing"):
        out, lse, weights = routes.attended(call)
    found = call.results(out, lse)
    for x, was in zip(call.run_leaves(), before, strict=True):
        assert x.detach().equal(was) or x.isnan().any(), "an input was changed"
    if call.fuzz["also"] == "scores":
        options = call.keywords()
        for name in ("dropout_p", "sinks", "float32_products"):
            options.pop(name, None)
        with torch.no_grad():
            found["scores"] = relpos.scores(*call.run[:2], **options)
    return found, weights


def judged(call, found, weights):
    keep = routes.kept(call)
    promises, at = promised(call, keep)
    if weights is not None:
        found["weights"] = weights
        lse = found.get("lse", promises["lse"].exact)
        seen = torch.ones_like(call.allowed) if keep is None else keep
        promises["weights"] = promised_weights(call, at, lse, seen)
    if "scores" in found:
        promises["scores"] = promised_scores(call, at)
    if "lse" not in found:
        del promises["lse"]
    if call.sequences:
        for name in ("out", "lse"):
            if name in found:
                inside(call, name, found, promises)
        from_later_sequences(call, promises)
    lines = [f"no {name}" for name in promises.keys() - found.keys()]
    lines += [f"{name} was not asked for" for name in found.keys() - promises.keys()]
    lines += wrong_types(call, found)
    target = relpos.show_config()["target"]
    by_unit = applies(target, call.dtype) and call.fuzz["products"] == "own"
    theirs = reference(call, keep) if by_unit else {}
    if by_unit:  # its promise says nothing of them
        promises = {n: p for n, p in promises.items() if n not in ("weights", "scores")}
    if call.fuzz["route"] in ranks.FUNCTIONS:  # two calls and their sum, each with its errors
        promises = {n: Bounded(p.exact, 2.0 * p.bound) for n, p in promises.items()}
    for name in promises.keys() & found.keys():
        line = missed(name, found[name], promises[name])
        if line and name in theirs and found[name].shape == promises[name].exact.shape:
            results = found[name], theirs[name], promises[name]
            kept_it = Kept().share(name, name, *results, decided(call, at)) <= 1.0
            line = None if kept_it else line
        lines += [line] if line else []
    return lines


def inside(call, name, found, promises):
    """Leaves out the rows of queries that no packed sequence has."""
    seen = call.inside if name == "lse" else call.inside[..., None]
    promise = promises[name]
    exact = torch.where(seen, promise.exact, 0.0)
    promises[name] = Bounded(exact, torch.where(seen, promise.bound, 1e-300))
    found[name] = torch.where(seen, found[name], 0.0)


def from_later_sequences(call, promises):
    """Adds what the gradients of inputs that are summed over keys may have of later sequences: the
    sums run over all of them, in double."""
    share = 2.0**-53 / eps_of(call.dtype)
    for index, module in enumerate(call.modules):
        specs = [*module._specs, *module._inputs]
        for spec in (specs[n] for n in module._cumulative):
            name = f"gradient of part {index} {spec.name}"
            if name in promises:
                exact, bound = promises[name].exact, promises[name].bound
                of_rows = bound[..., :1]
                later = of_rows.flip(0).cumsum(0).flip(0) - of_rows
                promises[name] = Bounded(exact, bound + share * later)


def wrong_types(call, found):
    wanted = {"out": call.dtype, "lse": work_type(call.dtype)}
    return [
        f"{name} is {found[name].dtype}, expected {dtype}"
        for name, dtype in wanted.items()
        if name in found and found[name].dtype != dtype
    ]


def line_of(case, problems):
    """One line that says what is wrong and repeats it."""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{problems[0]}{more}\n    python -m tests.fuzz --case '{text_of(case)}'"


def shrunk(case, problems, judge=problems_of):
    """(case, problems) with every factor at its plain value that need not be another, as long as
    something fails."""
    changed = True
    while changed:
        changed = False
        for name, plain in PLAIN.items():
            trial = case | {name: plain}
            if case[name] == plain or not makes_sense(trial):
                continue
            found = judge(trial)
            if found:
                case, problems, changed = trial, found, True
    return case, problems
