"""Runs conformance cases in a process of its own, because RELPOS_TARGET is read at first use.

RELPOS_TARGET=avx2 python tests/conformance_worker.py --case "{...}"      one case, printed
... --targets baseline,avx2 --chunks 0,3 --chunk-size 100                 a line of JSON a chunk
"""

import argparse
import ast
import json
import random
import sys
import traceback

import relpos
import torch
from cases import all_cases, configuration
from oracle import (
    WAYS,
    allowed_pairs,
    attend,
    gradients,
    part_of,
    positions,
    registry,
    spread,
    weights_of,
)

FORWARD, BACKWARD = 2.0, 3.0  # times the error of plain torch in the same dtype
OF_LARGEST = {torch.float32: 1e-6, torch.float64: 1e-12}


class Draw:
    """Random tensors of one case."""

    def __init__(self, seed):
        self.plain = random.Random(seed)
        self.torch = torch.Generator().manual_seed(seed)

    def normal(self, *shape):
        return torch.randn(*shape, generator=self.torch, dtype=torch.float64)

    def integers(self, low, high, *shape):
        return torch.randint(low, high, shape, generator=self.torch)

    def chance(self, p, *shape):
        return torch.rand(*shape, generator=self.torch) < p

    def strided(self, shape, kind, dtype):
        values = self.normal(*shape).to(dtype)
        batch, heads, length, size = shape
        if kind == "blhd":
            return values.transpose(1, 2).contiguous().transpose(1, 2)
        if kind == "sliced":
            wide = values.new_zeros(batch, heads, length + 1, size + 3)
            return wide[..., 1:, 1:-2].copy_(values)
        if kind == "stepped":
            wide = values.new_zeros(batch, heads, 2 * length, 2 * size)
            return wide[..., ::2, 1::2].copy_(values)
        if kind == "expanded":
            return values[:1, :1].expand(shape)
        return values


def boundaries(case, draw, dtype):
    """The masks of a case, as keyword arguments of the public call."""
    batch, heads = case["batch"], case["heads"][0]
    queries, keys = case["queries"], case["keys"]
    named = case["mask"].split("+")
    chosen = {}
    if "causal" in named:
        chosen["is_causal"] = True
    if "window" in named:
        reach = [-1, 0, 1, 3, 10, 40]
        chosen["window"] = (draw.plain.choice(reach), draw.plain.choice(reach))
    if "padding" in named:
        chosen["key_padding_mask"] = draw.chance(0.3, batch, keys)
    if "range" in named:
        shape = draw.plain.choice([(queries,), (batch, queries)])
        low = draw.integers(0, max(1, keys), *shape)
        chosen["key_range"] = (low, (low + draw.integers(0, keys + 2, *shape)).clamp(max=keys))
    if "bool" in named or "float" in named:
        shape = draw.plain.choice(
            [
                (queries, keys),
                (batch, 1, queries, keys),
                (batch, heads, queries, keys),
                (1, heads, 1, keys),
                (batch, 1, queries, 1),
                (1, 1, queries, keys),
            ]
        )
        seen = draw.chance(0.7, *shape)
        mask = torch.where(seen, draw.normal(*shape), -torch.inf).to(dtype)
        chosen["attn_mask"] = seen if "bool" in named else mask
    return chosen


def places(case, draw):
    """Offsets or positions of a case, as keyword arguments of the public call."""
    batch, queries, keys = case["batch"], case["queries"], case["keys"]
    kind = case["offsets"]
    bounded = "causal" in case["mask"] or "window" in case["mask"]
    if kind == "default" and (queries == keys or not (bounded or case["position"])):
        return {}
    if kind in ("default", "aligned"):
        return {"q_offset": keys - queries}
    if kind == "zero":
        return {"q_offset": 0}
    if kind == "both":
        return {"q_offset": draw.plain.randrange(-20, 60), "k_offset": draw.plain.randrange(-9, 30)}
    if kind == "ragged":
        q_offset = draw.integers(-5, 50, batch)
        return {"q_offset": q_offset, "k_offset": draw.plain.choice([0, 7, q_offset // 2])}
    if kind == "consecutive":
        start = draw.plain.randrange(-10, 40)
        return {
            "q_positions": torch.arange(queries) + start,
            "k_positions": torch.arange(keys),
        }
    shape = draw.plain.choice([(), (batch,)])
    q_positions = draw.integers(-30, 90, *shape, queries)
    k_positions = draw.integers(-30, 90, *shape, keys)
    if bounded or kind == "scattered":
        k_positions = k_positions.sort(dim=-1).values
    return {"q_positions": q_positions, "k_positions": k_positions}


def modules_of(case, draw, dtype):
    """(names and options, modules) with trained-looking numbers in every table."""
    chosen, schemes = configuration(case), registry()
    modules = []
    for name, options in chosen:
        module = schemes[name](**options)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(0.7 * draw.normal(*parameter.shape))
        keeps = case["tables"] == "float32" and dtype != torch.float64
        modules.append(module if keeps else module.to(dtype))
        for parameter in module.parameters():
            parameter.requires_grad_(case["wants"] in ("all", "tables"))
    return chosen, modules


def judge(name, ours, truth, peers, factor, slack=0.0):
    """None, or what is wrong: the error is at most `factor` times that of plain torch, plus 1e-6 of
    the largest value, plus `slack`, plus the rounding of a 16-bit result.

    `peers` are results of plain torch; the worst counts, and one is made when the others fail.
    """
    if ours.shape != truth.shape:
        return f"{name}: shape {tuple(ours.shape)}, expected {tuple(truth.shape)}"
    if truth.numel() == 0:
        return None
    finite = truth.isfinite()
    if not torch.equal(ours.double()[~finite], truth[~finite]):
        return f"{name}: differs where {truth[~finite].unique().tolist()} is expected"
    if not ours[finite].isfinite().all():
        return f"{name}: not finite where the formula is"
    truth = truth.where(finite, 0.0)
    error = (ours.double().where(finite, 0.0) - truth).abs()
    largest, worst = truth.abs().max(), 0.0
    for peer in peers:
        worst = max(worst, float((peer.double().where(finite, 0.0) - truth).abs().max()))
        bound = factor * worst + OF_LARGEST[work_type(peer.dtype)] * largest + slack
        if ours.dtype in (torch.bfloat16, torch.float16):
            info = torch.finfo(ours.dtype)
            bound = bound + 0.5 * info.eps * (truth.abs() + bound) + info.smallest_normal * info.eps
        if bool((error <= bound).all()):
            return None
    most = (error / bound.clamp(min=1e-300)).argmax()
    at = [int(n) for n in torch.unravel_index(most, truth.shape)]
    return (
        f"{name}: error {error.flatten()[most]:.3g} at {at}, plain torch {worst:.3g}, "
        f"largest value {largest:.3g}, ours {ours.flatten()[most]:.6g}, "
        f"expected {truth.flatten()[most]:.6g}"
    )


def work_type(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


class Call:
    """One case made real: the arguments of the public call and of the oracle."""

    def __init__(self, case):
        draw = Draw(case["seed"])
        self.case, self.dtype = case, getattr(torch, case["dtype"])
        heads, key_heads = case["heads"]
        batch, queries, keys = case["batch"], case["queries"], case["keys"]
        shapes = [
            (batch, heads, queries, case["head_dim"]),
            (batch, key_heads, keys, case["head_dim"]),
            (batch, key_heads, keys, case["value_dim"]),
        ]
        self.inputs = [draw.strided(shape, case["strides"], self.dtype) for shape in shapes]
        for name, x in zip("qkv", self.inputs, strict=True):
            wanted = {"all": "qkv", "inputs": "qkv", "key": "k", "tables": ""}[case["wants"]]
            x.requires_grad_(name in wanted)
        self.chosen, self.modules = modules_of(case, draw, self.dtype)
        self.masks, self.places = boundaries(case, draw, self.dtype), places(case, draw)
        self.added = self.masks.get("attn_mask")
        if self.added is None or self.added.dtype == torch.bool:
            self.added = None
        elif case["wants"] in ("all", "tables"):
            self.added.requires_grad_()
        out_shape = (batch, heads, queries, case["value_dim"])
        self.dout = draw.strided(out_shape, case["strides"], self.dtype)
        self.dlse = draw.normal(*out_shape[:3]).to(work_type(self.dtype)) if case["lse"] else None
        self.scale = case["scale"] or case["head_dim"] ** -0.5
        self.pos_q, self.pos_k = positions(batch, queries, keys, **self.places)
        self.allowed = allowed_pairs(self.pos_q, self.pos_k, heads=heads, **self.masks)

    def position(self):
        if len(self.modules) < 2:
            return self.modules[0] if self.modules else None
        total = self.modules[0]
        for module in self.modules[1:]:
            total = total + module
        return total

    def keywords(self):
        heads, key_heads = self.case["heads"]
        return {
            **self.masks,
            **self.places,
            "position": self.position(),
            "scale": self.case["scale"],
            "enable_gqa": heads != key_heads,
        }

    def leaves(self):
        """[(name, tensor)] of everything that may want a gradient."""
        named = list(zip("qkv", self.inputs, strict=True))
        for index, module in enumerate(self.modules):
            named += [(f"part {index} {name}", x) for name, x in module.named_parameters()]
        return named + ([("attn_mask", self.added)] if self.added is not None else [])

    def by_formula(self, dtype, keep, differentiate=True, **how):
        """(attended, gradients by leaf) of the oracle in `dtype`; `how` goes to `attend`."""
        q, k, v = (x.detach().to(dtype).requires_grad_(x.requires_grad) for x in self.inputs)
        leaves, parts = [q, k, v], []
        for (name, options), module in zip(self.chosen, self.modules, strict=True):
            wants = {n for n, x in module.named_parameters() if x.requires_grad}
            part = part_of(name, options, module).cast(dtype, wants)
            leaves += [part.parameters[n] for n, _ in module.named_parameters()]
            parts.append(part)
        added = self.added
        if added is not None:
            added = added.detach().to(dtype).requires_grad_(added.requires_grad)
            leaves.append(added)
        done = attend(
            q,
            k,
            v,
            parts,
            self.pos_q,
            self.pos_k,
            self.allowed,
            scale=self.scale,
            added=added,
            keep=keep,
            dropout_p=self.case["dropout"],
            **how,
        )
        if not differentiate:
            return done, None
        dlse = None if self.dlse is None else self.dlse.to(dtype)
        grads = gradients([done.out, done.lse], [self.dout.to(dtype), dlse], leaves)
        return done, grads

    def slack(self, truth):
        """Rounding of dS where its addends cancel to (nearly) nothing, by leaf order."""
        heads, key_heads = self.case["heads"]
        v = self.inputs[2].detach().double()
        dlse = None if self.dlse is None else self.dlse.double()
        sizes = spread(truth, v, self.dout.double(), dlse, heads // key_heads)
        if sizes.numel() == 0:
            return 0.0
        q, k = (x.detach().abs().max() if x.numel() else 0.0 for x in self.inputs[:2])
        return float(sizes.sum(-1).max()) * max(1.0, self.scale * float(max(q, k, 1.0)))


def run_case(case):
    """What is wrong with one case, as lines; none when all is well."""
    call = Call(case)
    dropout = case["dropout"]
    torch.manual_seed(case["seed"])
    got = relpos.attention(
        *call.inputs,
        **call.keywords(),
        dropout_p=dropout,
        return_lse=True,
        return_weights=dropout > 0,
    )
    out, lse = got[0], got[1]
    keep = None
    if dropout > 0:
        keep = got[2] != 0
    named = call.leaves()
    grads = gradients([out, lse], [call.dout, call.dlse], [x for _, x in named])

    truth, true_grads = call.by_formula(torch.float64, keep)
    plain = Peers(call, work_type(call.dtype), keep)
    linear = Peers(call, call.dtype, keep, from_lse=True)

    problems = [
        check_types(call, out, lse),
        judge("out", out.detach(), truth.out.detach(), plain.of("out"), FORWARD),
        judge("lse", lse.detach(), truth.lse.detach(), plain.of("lse"), FORWARD),
    ]
    if dropout > 0:
        held = (weights_given(lse, done, keep, dropout) for done, _ in plain)
        exact = weights_given(lse, truth, keep, dropout)
        problems.append(judge("weights", got[2], exact, held, FORWARD))
    slack = call.slack(truth)
    for index, (name, leaf) in enumerate(named):
        if not leaf.requires_grad:
            continue
        ours, exact = grads[index], true_grads[index]
        if ours.dtype != leaf.dtype:
            problems.append(f"gradient of {name}: {ours.dtype}, expected {leaf.dtype}")
        room = rounding_of_dscore(call.dtype, slack, exact)
        peers = linear.gradient(index)
        problems.append(judge(f"gradient of {name}", ours, exact, peers, BACKWARD, room))
    if case["seed"] % 6 == 0:
        problems.append(check_scores(call, truth, plain))
    return [problem for problem in problems if problem]


def weights_given(lse, done, keep, dropout):
    """exp(score - lse) after dropout, in the dtype of `done`: what is promised for a given lse."""
    weights = weights_of(done.score.detach(), lse.detach(), done.way.unit)
    return weights.where(keep, 0.0) / (1.0 - dropout)


def rounding_of_dscore(dtype, slack, exact):
    """Room for dS = P (dP - D): 16-bit calls read D from the output as stored, and where dP and D
    cancel to (nearly) nothing their own rounding is left."""
    eps = torch.finfo(dtype).eps
    if dtype in (torch.bfloat16, torch.float16):
        return 0.5 * eps * slack
    vanishes = exact.numel() and exact.abs().max() < 1e-2 * slack
    return 2 * eps * slack if vanishes else 0.0


class Peers:
    """Plain torch in one dtype, in each of its ways: made when asked for. From the exact lse it is
    asked for gradients, else for values."""

    def __init__(self, call, dtype, keep, from_lse=False):
        self.made = []
        self.make = lambda way: call.by_formula(
            dtype, keep, differentiate=from_lse, from_lse=from_lse, way=way
        )

    def __iter__(self):
        for n, way in enumerate(WAYS):
            if n == len(self.made):
                self.made.append(self.make(way))
            yield self.made[n]

    def of(self, name):
        return (getattr(done, name).detach() for done, _ in self)

    def gradient(self, index):
        return (grads[index] for _, grads in self)


def check_types(call, out, lse):
    if out.dtype != call.dtype or lse.dtype != work_type(call.dtype):
        return f"out is {out.dtype} and lse {lse.dtype} for inputs of {call.dtype}"
    return None


def check_scores(call, truth, plain):
    """relpos.scores, which holds -inf where a pair is hidden."""
    with torch.no_grad():
        ours = relpos.scores(*call.inputs[:2], **call.keywords())
    peers = (done.score.detach() / done.way.unit for done, _ in plain)
    return judge("scores", ours, truth.score.detach(), peers, FORWARD)


def attempt(case):
    """Problems of a case as one-line repros."""
    try:
        problems = run_case(case)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        problems = [f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"]
    repro = f'RELPOS_TARGET={case["target"]} python tests/conformance_worker.py --case "{case}"'
    return [f"{problem}\n      {repro}" for problem in problems]


def main():
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--case")
    parse.add_argument("--targets", help="all targets of the run, to build the same list of cases")
    parse.add_argument("--mine", help="the target of this process")
    parse.add_argument("--chunks")
    parse.add_argument("--chunk-size", type=int)
    given = parse.parse_args()
    torch.set_num_threads(1)
    if given.case:
        problems = attempt(ast.literal_eval(given.case))
        print("\n".join(problems) or "no problem")
        return 1 if problems else 0
    cases, _ = all_cases(tuple(given.targets.split(",")))
    mine = [case for case in cases if case["target"] == given.mine]
    for chunk in map(int, given.chunks.split(",")):
        todo = mine[chunk * given.chunk_size : (chunk + 1) * given.chunk_size]
        problems = [line for case in todo for line in attempt(case)]
        print(json.dumps({"chunk": chunk, "count": len(todo), "problems": problems}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
