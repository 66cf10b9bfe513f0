"""A case made real: a call of tests/support with the features of factors.py."""

from functools import cache

import relpos
import torch

from tests.support.call import Call, laid_out
from tests.support.cases import options_of
from tests.support.oracle import batched_inputs, configs_of, gradients, registry
from tests.support.promise import work_type

MIXED = {0: "blhd", 1: "sliced", 2: "expanded", 3: "stepped"}  # strides of q, k, v and dout
SPREAD = 1.0  # of the numbers of q, k and v


def numbers_of(text, mark="x"):
    return [int(n) for n in text.split(mark)]


def sizes_of(case):
    """heads, head_dim, value_dim, key_heads: what configurations are made for."""
    heads, key_heads = numbers_of(case["heads"], "/")
    head_dim, value_dim = numbers_of(case["dims"])
    return heads, head_dim, value_dim, key_heads


def names_of(case):
    """The schemes of a case."""
    return [case[factor] for factor in ("position", "beside") if case[factor] != "none"]


def parts_of(case):
    """[(scheme, options)] of the position; None where a scheme has none of these sizes."""
    return _parts(tuple(names_of(case)), int(case["options"]), sizes_of(case))


@cache
def _parts(names, number, sizes):
    texts = []
    for name in names:
        found = configs_of(name, *sizes)
        able = [index for index, options in enumerate(found) if options is not None]
        if not able:
            return None
        texts.append(f"{name}#{able[number % len(able)]}")
    return options_of("+".join(texts), *sizes)


class FuzzCall(Call):
    """Of a case of factors.py."""

    def __init__(self, fuzz):
        self.fuzz = fuzz
        heads, head_dim, value_dim, key_heads = sizes_of(fuzz)
        queries, keys = numbers_of(fuzz["lengths"])
        self.sequences = None  # (queries, keys) of each sequence, where they are packed
        super().__init__(
            {
                "seed": int(fuzz["seed"]),
                "dtype": fuzz["dtype"],
                "scale": None if fuzz["scale"] == "none" else float(fuzz["scale"]),
                "heads": (heads, key_heads),
                "head_dim": head_dim,
                "value_dim": value_dim,
                "batch": int(fuzz["batch"]),
                "queries": queries,
                "keys": keys,
                "tables": fuzz["tables"],
                "wants": "all",
                "lse": fuzz["lse"] in ("gradient", "alone"),
                "softcap": None if fuzz["softcap"] == "none" else float(fuzz["softcap"]),
                "dropout": float(fuzz["dropout"]),
                "numbers": "normal",
            }
        )
        if fuzz["route"] == "rows":
            self.add_rows()
        if fuzz["lse"] == "alone":
            self.dout = torch.zeros_like(self.dout)
        if self.sequences:
            self.cut_sequences()
        self.want(fuzz["wants"])
        self.run = self.fed()

    def parts(self):
        """With sinks as the last, which is given by another name."""
        found, sinks = parts_of(self.fuzz), self.fuzz["sinks"]
        if sinks != "none":
            options = {"heads": self.case["heads"][0]}
            found = [*found, ("attention_sink", options | {"per_query": sinks == "rows"})]
        self.count = len(parts_of(self.fuzz))  # of those that are the position
        return found

    def drawn(self, draw, which, shape):
        kind = self.fuzz["strides"]
        kind = MIXED[which] if kind == "mixed" else kind
        return laid_out((SPREAD * draw.normal(*shape)).to(self.dtype), kind)

    def bound(self, draw):
        self.draw = draw
        self.places, self.masks = self.placed(draw), self.seen(draw)
        if self.fuzz["route"] == "varlen":
            case = self.case
            ends = [
                (draw.plain.randint(0, case["queries"]), draw.plain.randint(0, case["keys"]))
                for _ in range(case["batch"])
            ]
            if self.fuzz["place"] == "none":
                ends = [(min(pair), min(pair)) for pair in ends]
            else:
                ends[-1] = (case["queries"], case["keys"])
            self.sequences = ends
            if self.fuzz["place"] == "aligned":
                self.places["q_offset"] = torch.tensor([k - q for q, k in ends])

    def trains_mask(self, draw):
        return True

    def placed(self, draw):
        """Where queries and keys stand."""
        kind, case = self.fuzz["place"], self.case
        batch, queries, keys = case["batch"], case["queries"], case["keys"]
        if kind == "none" and self.fuzz["route"] not in ("cache", "chunks"):
            return {}
        if kind in ("none", "aligned"):
            return {"q_offset": keys - queries}
        if kind == "zero":
            return {"q_offset": 0}
        if kind == "both":
            return {"q_offset": 23, "k_offset": 11}
        if kind == "far":
            return {"q_offset": 40_000 + keys, "k_offset": 40_000}
        if kind == "rows":
            found = {"q_offset": draw.integers(-3, 12, batch)}
            packed = self.fuzz["route"] == "varlen"
            return found if packed else found | {"k_offset": draw.integers(-4, 5, batch)}
        rows = (batch,) if kind == "row-positions" else ()
        return {
            "q_positions": draw.integers(-9, 2 * keys + 9, *rows, queries),
            "k_positions": draw.integers(0, 2 * keys + 1, *rows, keys).sort(-1).values,
        }

    def seen(self, draw):
        """The masks, as keyword arguments; a TileMask is kept as its dense form."""
        fuzz, case, chosen = self.fuzz, self.case, {}
        batch, queries, keys = case["batch"], case["queries"], case["keys"]
        if fuzz["causal"] == "yes":
            chosen["is_causal"] = True
        if fuzz["window"] != "none":
            chosen["window"] = tuple(numbers_of(fuzz["window"], ","))
        if fuzz["padding"] != "none":
            chosen["key_padding_mask"] = padding = draw.chance(0.3, batch, keys)
            if fuzz["padding"] == "tail":
                ends = draw.integers(1, keys + 1, batch) if keys else torch.ones(batch)
                padding[:] = torch.arange(keys) >= ends[:, None]
            elif fuzz["padding"] == "row":
                padding[-1] = True
        if fuzz["range"] != "none":
            rows = (batch,) if fuzz["range"] == "rows" else ()
            low = draw.integers(0, max(1, keys // 2), *rows, queries)
            width = draw.integers(0, keys + 2, *rows, queries)
            chosen["key_range"] = (low, (low + width).clamp(max=keys))
        if fuzz["mask"] != "none":
            kind, shape = fuzz["mask"].split(":")
            chosen["attn_mask"] = self.mask_of(draw, kind, shape)
        return chosen

    def mask_of(self, draw, kind, shape):
        case = self.case
        sizes = {"b": case["batch"], "h": case["heads"][0], "1": 1}
        sizes |= {"q": case["queries"], "k": case["keys"]}
        shape = [sizes[axis] for axis in shape]
        seen, numbers = draw.chance(0.75, *shape), draw.normal(*shape)
        if kind in ("bool", "tile"):
            return seen
        mask = torch.where(seen, numbers, -torch.inf).to(self.dtype)
        if kind == "least":
            mask = mask.clamp(min=torch.finfo(self.dtype).min)
            mask[..., ::5] = -torch.inf
        return mask

    def add_rows(self):
        """A bias that is a function of pairs of positions, by relpos.compose.bias_by_rows."""
        table = self.draw.normal(self.case["heads"][0], 7).to(work_type(self.dtype))
        classes = ((self.pos_k[:, None] - self.pos_q[:, :, None]) % 7).to(torch.uint8)
        options = {"by_row": True}
        self.chosen = [*self.chosen, ("pair_bias", options)]
        self.modules = [*self.modules, registry()["pair_bias"](**options)]
        self.given = [*self.given, {"table": table.requires_grad_(), "classes": classes}]

    def cut_sequences(self):
        """Sequences of different lengths see what is theirs alone."""
        ends = torch.tensor(self.sequences)[:, :, None]
        of_queries = torch.arange(self.case["queries"]) < ends[:, 0]
        of_keys = torch.arange(self.case["keys"]) < ends[:, 1]
        self.inside = of_queries[:, None]  # [B, 1, Lq]
        self.allowed = self.allowed & (self.inside[..., None] & of_keys[:, None, None])
        self.dout = self.dout * self.inside[..., None]
        self.dlse = None if self.dlse is None else self.dlse * self.inside

    def want(self, wants):
        for name, leaf in self.leaves():
            own = "mask" if name == "attn_mask" else name if name in "qkv" else "tables"
            leaf.requires_grad_(wants in ("all", own))

    def fed(self):
        """What the call gets as q, k and v, if other than self.inputs: float32 under autocast, NaN
        where padding hides keys."""
        run = list(self.inputs)
        if self.fuzz["route"] == "autocast":
            run = [x.detach().float().requires_grad_(x.requires_grad) for x in run]
        if self.fuzz["hidden"] == "nan" and "key_padding_mask" in self.masks:
            padded = self.masks["key_padding_mask"][:, None, :, None]
            for n in (1, 2):
                poisoned = run[n].detach().masked_fill(padded, torch.nan)
                run[n] = poisoned.requires_grad_(run[n].requires_grad)
        return run

    def position_of(self, given):
        """The position of a call, from the inputs of its parts."""
        parts = [
            module(*own.values()) if own else module
            for module, own in zip(self.modules[: self.count], given, strict=False)
        ]
        if self.count < 2 or any(given[: self.count]):
            return parts or None
        return sum(parts)

    def sinks_of(self, given):
        if self.fuzz["sinks"] == "none":
            return None
        return given[self.count]["sinks"] if given[self.count] else self.modules[self.count].sinks

    def tile_mask(self):
        """TileMask of the dense mask."""
        dense = self.masks["attn_mask"]
        while dense.dim() < 4:
            dense = dense[None]
        batch, heads, queries, keys = dense.shape
        return relpos.from_mask_mod(
            lambda b, h, q, k: dense[b, h, q, k], queries, keys, batch=batch, heads=heads
        )

    def keywords(self):
        """Of the public call, but for what returns more."""
        options = dict(self.masks)
        if self.fuzz["mask"].startswith("tile"):
            options["attn_mask"] = self.tile_mask()
        heads, key_heads = self.case["heads"]
        options |= self.places | {
            "position": self.position_of(self.given),
            "sinks": self.sinks_of(self.given),
            "scale": self.case["scale"],
            "softcap": self.case["softcap"],
            "enable_gqa": heads != key_heads,
            "dropout_p": self.case["dropout"],
        }
        if self.fuzz["products"] == "float32":
            options["float32_products"] = True
        return options

    def run_leaves(self):
        """As leaves(), but for the ones that the call gets."""
        return [*self.run, *(leaf for _, leaf in self.leaves()[3:])]

    def results(self, out, lse, leaves=None):
        """As of a Call, where out alone or the log-sum-exp alone may have a gradient, and where the
        call got other leaves."""
        named = self.leaves()
        leaves = self.run_leaves() if leaves is None else leaves
        dout = None if self.fuzz["lse"] == "alone" else self.dout
        dlse = None if self.dlse is None or lse is None else self.dlse.to(lse.dtype)
        grads = gradients(
            [out, *([] if lse is None else [lse])], [dout, dlse][: 1 + (lse is not None)], leaves
        )
        found = {"out": out.detach()} | ({} if lse is None else {"lse": lse.detach()})
        for (name, leaf), grad in zip(named, grads, strict=True):
            if leaf.requires_grad:
                found[f"gradient of {name}"] = grad.to(leaf.dtype)
        return found

    def batched(self, index):
        """The names of the inputs of a part that have a batch axis."""
        name, options = self.chosen[index]
        return set(batched_inputs(name, options, self.given[index]))
