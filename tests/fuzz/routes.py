"""The ways to make a call: each returns (out [B, H, Lq, Dv], lse or None, weights or None) from a
FuzzCall, differentiable in its leaves."""

import itertools

import relpos
import torch
from relpos import compose
from torch.utils.checkpoint import checkpoint


def attended(call):
    """What the case's route computes."""
    torch.manual_seed(call.case["seed"])
    returns = {}
    if call.fuzz["lse"] != "none":
        returns["return_lse"] = True
    if call.fuzz["also"] == "weights":
        returns["return_weights"] = True
    found = ROUTES[call.fuzz["route"]](call, returns)
    found = list(found) if isinstance(found, tuple) else [found]
    out = found.pop(0)
    lse = found.pop(0) if "return_lse" in returns else None
    return out, lse, found.pop(0) if found else None


def by_call(call, returns):
    return relpos.attention(*call.run, **call.keywords(), **returns)


def by_autocast(call, returns):
    with torch.autocast("cpu", dtype=call.dtype):
        return by_call(call, returns)


def by_checkpoint(call, returns):
    """Computed again in the backward pass."""
    options = call.keywords()

    def run(*tensors):
        return relpos.attention(*tensors, **options, **returns)

    return checkpoint(run, *call.run, use_reentrant=False)


def by_rows(call, returns):
    """With a bias of relpos.compose.bias_by_rows, in blocks of a few queries."""
    table = call.given[-1]["table"]

    def bias(query, key, q_at, k_at, table):
        q_at, k_at = (x if x.dim() == 2 else x[None] for x in (q_at, k_at))
        classes = (k_at[:, None] - q_at[:, :, None]) % 7
        # Its gradient has the same bits at any number of torch's threads; that of indexing has not.
        chosen = table.index_select(1, classes.flatten())
        return chosen.unflatten(1, classes.shape).transpose(0, 1)

    # One block where each draws what it drops, or where torch would sum their gradients in 16 bits.
    rows = None if call.case["dropout"] or call.fuzz["dtype"] in ("bfloat16", "float16") else 4
    options = call.keywords() | returns
    return compose.bias_by_rows(*call.run, bias=bias, parameters=[table], rows=rows, **options)


def shapes_of(call, index):
    """{input: its axes by name} of a part."""
    return {spec.name: spec.shape for spec in call.modules[index]._inputs}


def by_varlen(call, returns):
    """Rows of the batch as packed sequences of their own lengths."""
    ends = call.sequences
    lengths = {"queries": [q for q, _ in ends], "keys": [k for _, k in ends]}

    def packed(x, axis, side):
        """[B, ...] with tokens along an axis as one row with all of them."""
        rows = [x[b : b + 1].narrow(axis, 0, n) for b, n in enumerate(lengths[side])]
        return torch.cat(rows, axis)

    def packed_input(x, shape):
        sides = [side for side in lengths if side in shape]
        if len(sides) == 2:  # of pairs: those of two sequences do not matter
            rows = x if shape[0] == "batch" else x[None].expand(len(ends), *x.shape)
            blocks = [row[:q, :k] for row, (q, k) in zip(rows, ends, strict=True)]
            whole = x.new_zeros(*(sum(each) for each in lengths.values()))
            at_q = at_k = 0
            for block, (q, k) in zip(blocks, ends, strict=True):
                whole[at_q : at_q + q, at_k : at_k + k] = block
                at_q, at_k = at_q + q, at_k + k
            return whole[None] if shape[0] == "batch" else whole
        return packed(x, shape.index(sides[0]), sides[0]) if sides else x

    sides = ("queries", "keys", "keys")
    tensors = [
        packed(x, 2, side)[0].transpose(0, 1) for x, side in zip(call.run, sides, strict=True)
    ]
    given = []
    for index, own in enumerate(call.given):
        shapes = shapes_of(call, index)
        given.append({})
        for name, x in own.items():
            given[-1][name] = packed_input(x, shapes[name])
    options = call.keywords() | {"position": call.position_of(given)}
    sinks = call.sinks_of(given)
    options["sinks"] = sinks if sinks is None or sinks.dim() == 1 else sinks[0]
    starts = [
        torch.tensor([0, *itertools.accumulate(lengths[side])]) for side in ("queries", "keys")
    ]
    found = relpos.attention_varlen(*tensors, *starts, **options, **returns)
    found = list(found) if isinstance(found, tuple) else [found]

    def unpacked(x, fill):
        """[H, Tq, ...] as [B, H, Lq, ...]."""
        longest, rows = call.case["queries"], []
        for row in x.split(lengths["queries"], 1):
            rest = row.new_full((row.shape[0], longest - row.shape[1], *row.shape[2:]), fill)
            rows.append(torch.cat([row, rest], 1))
        return torch.stack(rows)

    found[0] = unpacked(found[0].transpose(0, 1), 0.0)
    if len(found) > 1:
        found[1] = unpacked(found[1], 0.0)
    return tuple(found)


def without_places(call, options):
    """What a cache gets: a place that it is to refuse stays."""
    if call.fuzz["place"] in ("none", "aligned"):
        options.pop("q_offset")
    return {"is_causal": False} | options


def by_cache(call, returns):
    """All keys but the last few are in the cache."""
    cache = relpos.KVCache()
    q, k, v = call.run
    early = k.shape[2] // 2
    cache.append(k[:, :, :early], v[:, :, :early])
    options = without_places(call, call.keywords())
    return cache.attend(q, k[:, :, early:], v[:, :, early:], **options, **returns)


def by_chunks(call, returns):
    """Queries come a few at a time, with the keys of their positions."""
    cache = relpos.KVCache()
    q, k, v = call.run
    queries, keys = q.shape[2], k.shape[2]
    held = keys - queries
    cache.append(k[:, :, :held], v[:, :, :held])
    cuts = [*range(0, queries, 3), queries]
    parts = []
    for first, end in itertools.pairwise(cuts):
        options = without_places(call, call.keywords()) | cut_of(call, first, end, held)
        new = slice(held + first, held + end)
        found = cache.attend(q[:, :, first:end], k[:, :, new], v[:, :, new], **options, **returns)
        parts.append(found if isinstance(found, tuple) else (found,))
    return tuple(torch.cat(each, 2) for each in zip(*parts, strict=True))


def cut_of(call, first, end, held):
    """Options of the queries first to end, which see the keys before held + end."""
    found, keys = {}, held + end

    def cut(x, axis, side):
        return x.narrow(axis, first, end - first) if side == "queries" else x.narrow(axis, 0, keys)

    masks = call.masks
    if "key_padding_mask" in masks:
        found["key_padding_mask"] = masks["key_padding_mask"][:, :keys]
    if "key_range" in masks:
        found["key_range"] = tuple(x[..., first:end].clamp(max=keys) for x in masks["key_range"])
    if "attn_mask" in masks:
        mask = masks["attn_mask"]
        mask = mask[..., first:end, :] if mask.shape[-2] > 1 else mask
        found["attn_mask"] = mask[..., :keys] if mask.shape[-1] > 1 else mask
    given = []
    for index, own in enumerate(call.given):
        given.append({})
        for name, x in own.items():
            shape = shapes_of(call, index)[name]
            for side in ("queries", "keys"):
                x = cut(x, shape.index(side), side) if side in shape else x
            given[-1][name] = x
    sinks = call.sinks_of(given)
    return found | {"position": call.position_of(given), "sinks": sinks}


def by_vmap(call, returns):
    """Over the rows of the batch, each a call of its own. One row alone is mapped twice, while the
    inputs of the position are not."""
    options = call.keywords()
    batch, named, dims = call.case["batch"], {}, {}

    def rows(x):
        return x if batch > 1 else x.expand(2, *x.shape[1:])

    def put(name, x, mapped):
        named[name] = rows(x).unsqueeze(1) if mapped else x
        dims[name] = 0 if mapped else None

    for n, x in enumerate(call.run):
        put(f"run {n}", x, True)
    for index, own in enumerate(call.given):
        for name, x in own.items():
            put(f"given {index} {name}", x, name in call.batched(index) and batch > 1)
    for name in ("q_offset", "k_offset", "q_positions", "k_positions"):
        x = call.places.get(name)
        if isinstance(x, torch.Tensor) and "offset" in name:
            named[name], dims[name] = rows(x), 0
        elif isinstance(x, torch.Tensor):
            put(name, x, x.dim() == 2)
    if "key_padding_mask" in options:
        put("key_padding_mask", options["key_padding_mask"], True)
    for n, x in enumerate(options.get("key_range", ())):
        put(f"range {n}", x, x.dim() == 2)
    mask = call.masks.get("attn_mask")
    if mask is not None and not call.fuzz["mask"].startswith("tile"):
        put("attn_mask", mask, mask.dim() == 4 and mask.shape[0] == batch and batch > 1)
    names = list(named)

    def run(*tensors):
        at = dict(zip(names, tensors, strict=True))
        given = [
            {name: at[f"given {index} {name}"] for name in own}
            for index, own in enumerate(call.given)
        ]
        own = options | {n: at[n] for n in at if n in options}
        if "key_range" in options:
            own["key_range"] = (at["range 0"], at["range 1"])
        own |= {"position": call.position_of(given), "sinks": call.sinks_of(given)}
        return relpos.attention(*(at[f"run {n}"] for n in range(3)), **own, **returns)

    found = torch.func.vmap(run, in_dims=tuple(dims.values()), randomness="same")(*named.values())
    found = found if isinstance(found, tuple) else (found,)
    if batch > 1:
        return tuple(x.flatten(0, 1) for x in found)
    for one, other in found:
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    if call.dtype.itemsize == 2:  # halves of small numbers would be rounded: one of the two
        return tuple(pair[call.case["seed"] % 2] for pair in found)
    return tuple(0.5 * one + 0.5 * other for one, other in found)


ROUTES = {
    "call": by_call,
    "varlen": by_varlen,
    "cache": by_cache,
    "chunks": by_chunks,
    "vmap": by_vmap,
    "autocast": by_autocast,
    "checkpoint": by_checkpoint,
    "rows": by_rows,
}


def kept(call):
    """bool [B, H, Lq, Lk]: what dropout keeps, seen in a call of equal weights; None without it."""
    probability = call.case["dropout"]
    if probability == 0.0:
        return None
    batch, heads, queries, keys = call.allowed.shape
    route = call.fuzz["route"]
    rows = call.sequences or [(queries, keys)]
    totals = [sum(each) for each in zip(*rows, strict=True)]
    count = 1 if route in ("vmap", "varlen") else batch
    zeros = [torch.zeros(count, heads, n, 1) for n in (totals[0], totals[1], totals[1])]
    torch.manual_seed(call.case["seed"])
    whole = relpos.attention(*zeros, dropout_p=probability, return_weights=True)[1] != 0
    if route != "varlen":
        return whole.expand(batch, heads, queries, keys)
    found = torch.zeros(batch, heads, queries, keys, dtype=torch.bool)
    first_q = first_k = 0
    for b, (q, k) in enumerate(rows):
        found[b, :, :q, :k] = whole[0, :, first_q : first_q + q, first_k : first_k + k]
        first_q, first_k = first_q + q, first_k + k
    return found
