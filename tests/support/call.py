"""An attention call with everything drawn at random: arguments of relpos and of the formulas."""

import random

import relpos
import torch

from tests.support.cases import configuration
from tests.support.oracle import (
    allowed_pairs,
    attend,
    gradients,
    oracle_of,
    part_of,
    place_of,
    positions,
    registry,
    seen_pairs,
)
from tests.support.promise import work_type


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
        return laid_out(self.normal(*shape).to(dtype), kind)


def laid_out(values, kind):
    """The same numbers with other strides; "expanded": the first head's everywhere."""
    batch, heads, length, size = values.shape
    if kind == "blhd":
        return values.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == "sliced":
        wide = values.new_zeros(batch, heads, length + 1, size + 3)
        return wide[..., 1:, 1:-2].copy_(values)
    if kind == "stepped":
        wide = values.new_zeros(batch, heads, 2 * length, 2 * size)
        return wide[..., ::2, 1::2].copy_(values)
    if kind == "expanded":
        return values[:1, :1].expand(values.shape)
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


def modules_of(case, chosen, draw, dtype):
    """(names and options, modules) with trained-looking numbers in every table."""
    schemes, size = registry(), case.get("table size", 0.7)
    modules = []
    for name, options in chosen:
        module = schemes[name](**options)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(size * draw.normal(*parameter.shape))
        modules.append(module.to(table_dtype(case, dtype)))
        for parameter in module.parameters():
            parameter.requires_grad_(case["wants"] in ("all", "tables"))
    return chosen, modules


def table_dtype(case, dtype):
    """Of tables and of a position's inputs: that of query, or float32 beside it."""
    return torch.float32 if case["tables"] == "float32" and dtype != torch.float64 else dtype


def inputs_of(case, chosen, draw, dtype):
    """{name: tensor} of what each part of the position takes by call."""
    sizes = case["batch"], case["heads"][0], case["queries"], case["keys"]
    given = []
    for name, options in chosen:
        own = (case["head_dim"],) if hasattr(oracle_of(name), "HEAD_DIM") else ()
        draws = getattr(oracle_of(name), "inputs", lambda *_: {})
        drawn = draws(options, *sizes, draw.normal, *own)
        wanted = case["wants"] in ("all", "tables")
        given.append(
            {
                n: x.to(table_dtype(case, dtype)).requires_grad_(wanted)
                if x.is_floating_point()
                else x
                for n, x in drawn.items()
            }
        )
    return given


class Call:
    """One case made real: the arguments of the public call and of the oracle."""

    def __init__(self, case):
        draw = Draw(case["seed"])
        self.case, self.dtype = case, getattr(torch, case["dtype"])
        self.scale = case["scale"] or case["head_dim"] ** -0.5
        *shapes, out_shape = self.shapes()
        self.inputs = [self.drawn(draw, which, shape) for which, shape in enumerate(shapes)]
        for name, x in zip("qkv", self.inputs, strict=True):
            wanted = {"all": "qkv", "inputs": "qkv", "key": "k", "tables": ""}[case["wants"]]
            x.requires_grad_(name in wanted)
        self.chosen, self.modules = modules_of(case, self.parts(), draw, self.dtype)
        self.given = inputs_of(case, self.chosen, draw, self.dtype)
        self.bound(draw)
        self.added = self.masks.get("attn_mask")
        if self.added is None or self.added.dtype == torch.bool:
            self.added = None
        elif self.trains_mask(draw):
            self.added.requires_grad_()
        self.dout = self.drawn(draw, 3, out_shape)
        self.dlse = draw.normal(*out_shape[:3]).to(work_type(self.dtype)) if case["lse"] else None
        self.see()

    def shapes(self):
        """Of query, key, value and out."""
        case, (heads, key_heads) = self.case, self.case["heads"]
        of_keys = case["batch"], key_heads, case["keys"]
        of_queries = case["batch"], heads, case["queries"]
        return [
            (*of_queries, case["head_dim"]),
            (*of_keys, case["head_dim"]),
            (*of_keys, case["value_dim"]),
            (*of_queries, case["value_dim"]),
        ]

    def drawn(self, draw, which, shape):
        return draw.strided(shape, self.case["strides"], self.dtype)

    def parts(self):
        return configuration(self.case)

    def bound(self, draw):
        self.masks = boundaries(self.case, draw, self.dtype)
        self.places = places(self.case, draw)

    def trains_mask(self, draw):
        return self.case["wants"] in ("all", "tables")

    def see(self):
        """Finds positions, and which pairs are allowed."""
        q, k = self.inputs[:2]
        place = place_of(self.chosen)
        sizes = q.shape[0], q.shape[2], k.shape[2]
        self.pos_q, self.pos_k = positions(*sizes, **self.places, place=place)
        heads = self.case["heads"][0]
        self.allowed = allowed_pairs(self.pos_q, self.pos_k, heads=heads, **self.masks)
        self.allowed = self.allowed & seen_pairs(self.chosen, self.given)

    def position(self):
        """A sum of the modules; a list where one of them takes inputs."""
        if not self.modules:
            return None
        if any(self.given):
            pairs = zip(self.modules, self.given, strict=True)
            return [module(*given.values()) if given else module for module, given in pairs]
        return sum(self.modules)

    def keywords(self):
        heads, key_heads = self.case["heads"]
        return {
            **self.masks,
            **self.places,
            "position": self.position(),
            "scale": self.case["scale"],
            "softcap": self.case.get("softcap"),
            "enable_gqa": heads != key_heads,
        }

    def leaves(self):
        """[(name, tensor)] of everything that may want a gradient."""
        named = list(zip("qkv", self.inputs, strict=True))
        for index, (module, given) in enumerate(zip(self.modules, self.given, strict=True)):
            own = [(n, x) for n, x in given.items() if x.is_floating_point()]
            held = [*module.named_parameters(), *own]
            named += [(f"part {index} {name}", x) for name, x in held]
        return named + ([("attn_mask", self.added)] if self.added is not None else [])

    def computed(self):
        """({name: tensor} of relpos, the weights after dropout, where dropout keeps a pair); the
        last two are None without dropout."""
        dropout = self.case["dropout"]
        torch.manual_seed(self.case["seed"])
        out, lse, *weights = relpos.attention(
            *self.inputs,
            **self.keywords(),
            dropout_p=dropout,
            return_lse=True,
            return_weights=dropout > 0,
        )
        found = self.results(out, lse)
        return found, *(weights or [None]), self.kept()

    def kept(self):
        """bool [B, H, Lq, Lk]: what dropout keeps, seen in a call of equal weights."""
        if self.case["dropout"] == 0:
            return None
        batch, heads, queries, keys = self.allowed.shape
        zeros = [torch.zeros(batch, heads, length, 1) for length in (queries, keys, keys)]
        torch.manual_seed(self.case["seed"])
        given = relpos.attention(*zeros, dropout_p=self.case["dropout"], return_weights=True)
        return given[1] != 0

    def results(self, out, lse, leaves=None):
        """{name: tensor} of out, lse and the gradients of `leaves`, which are the call's own."""
        named = self.leaves()
        leaves = [leaf for _, leaf in named] if leaves is None else leaves
        dlse = None if self.dlse is None else self.dlse.to(lse.dtype)
        grads = gradients([out, lse], [self.dout, dlse], leaves)
        found = {"out": out.detach(), "lse": lse.detach()}
        for (name, leaf), grad in zip(named, grads, strict=True):
            if leaf.requires_grad:
                found[f"gradient of {name}"] = grad
        return found

    def plain(self, keep=None):
        """The same of the formula in plain torch, computed in the type of the inputs."""
        q, k, v = (x.detach().clone().requires_grad_(x.requires_grad) for x in self.inputs)
        leaves, parts = [q, k, v], []
        for (name, options), module, given in zip(
            self.chosen, self.modules, self.given, strict=True
        ):
            own = {n: x for n, x in given.items() if x.is_floating_point()}
            held = dict(module.named_parameters()) | own
            wants = {n for n, x in held.items() if x.requires_grad}
            part = part_of(name, options, module, given).cast(self.dtype, wants)
            leaves += [(part.parameters | part.inputs)[n] for n in held]
            parts.append(part)
        added = self.added
        if added is not None:
            added = added.detach().to(self.dtype).requires_grad_(added.requires_grad)
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
            softcap=self.case.get("softcap"),
            added=added,
            keep=keep,
            dropout_p=self.case["dropout"],
        )
        return self.results(done.out, done.lse, leaves)


class Held:
    """The numbers of a part under the names of a module."""

    def __init__(self, part):
        self.part = part

    def named_parameters(self):
        return self.part.parameters.items()

    def named_buffers(self):
        return ()


class Given(Call):
    """A call of tensors and parts at hand: what `promise.promised` reads of a call."""

    def __init__(self, inputs, parts, dout=None, dlse=None, **call):
        q, k, v = inputs
        self.inputs, self.dtype, self.scale = list(inputs), q.dtype, q.shape[-1] ** -0.5
        self.case = {"heads": (q.shape[1], k.shape[1]), "dropout": 0.0}
        self.chosen = [(part.name, part.options) for part in parts]
        self.modules, self.given = [Held(part) for part in parts], [part.inputs for part in parts]
        self.places = {n: call.pop(n) for n in list(call) if "offset" in n or "positions" in n}
        self.masks, self.added = call, None
        self.see()
        self.dout = q.new_zeros(*q.shape[:3], v.shape[3]) if dout is None else dout
        self.dlse = dlse
