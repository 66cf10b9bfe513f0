"""A case of relpos.distributed as every rank runs it, and as one process runs it."""

from itertools import chain

import relpos
import torch
import torch.distributed as dist
from relpos import distributed
from relpos.distributed._layout import held, placed

from tests.support.oracle import oracle_of
from tests.support.sample import trained

HEADS, HEAD_DIM, VALUE_DIM = 4, 8, 8
SEED = 11  # of dropout


def draw(seed, *shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def drawn_inputs(name, options, *sizes):
    """{name: tensor} of what a position takes by call."""
    draw_inputs = getattr(oracle_of(name), "inputs", lambda *_: {})
    return draw_inputs(options, *sizes, lambda *shape: draw(6, *shape))


def token_axis(shape):
    return next(axis for axis, size in enumerate(shape) if size in ("queries", "keys"))


class Case:
    """The whole tensors of a case; the same in every process."""

    def __init__(
        self,
        schemes=(),
        batch=1,
        queries=24,
        keys=None,
        heads=HEADS,
        key_heads=None,
        dtype=torch.float32,
        padding=False,
        function="ring_attention",
        lengths=None,
        **options,
    ):
        keys = queries if keys is None else keys
        key_heads = key_heads or heads
        self.function, self.lengths, self.options = function, lengths, options
        if key_heads != heads:
            options["enable_gqa"] = True
        self.q = draw(1, batch, heads, queries, HEAD_DIM, dtype=dtype)
        self.k = draw(2, batch, key_heads, keys, HEAD_DIM, dtype=dtype)
        self.v = draw(3, batch, key_heads, keys, VALUE_DIM, dtype=dtype)
        self.dout = draw(4, batch, heads, queries, VALUE_DIM, dtype=dtype)
        self.dlse = draw(5, batch, heads, queries)
        self.chosen, self.modules, self.inputs = [], [], []
        self.input_axes, self.input_sides = [], []  # of tokens: the axis, "queries" or "keys"
        for name, number in schemes:
            module, part = trained(name, number, heads, HEAD_DIM, VALUE_DIM, key_heads=key_heads)
            drawn = drawn_inputs(name, part.options, batch, heads, queries, keys)
            self.chosen.append((name, part.options))
            self.modules.append(module)
            self.inputs.append(drawn)
            shapes = [spec.shape for spec in module._inputs]
            self.input_axes.append([token_axis(shape) for shape in shapes])
            self.input_sides.append([shape[token_axis(shape)] for shape in shapes])
        self.padding = draw(7, batch, keys) > 0.7 if padding else None

    def cast(self, dtype):
        """Itself in another dtype, with gradients to come."""
        for name in ("q", "k", "v"):
            setattr(self, name, getattr(self, name).to(dtype).requires_grad_())
        self.dout = self.dout.to(dtype)
        self.dlse = self.dlse.to(torch.float64 if dtype == torch.float64 else torch.float32)
        for module in self.modules:
            module.to(torch.float64 if dtype == torch.float64 else torch.float32)
        self.inputs = self.each_input(lambda x: x.to(dtype))
        return self

    def each_input(self, change):
        """The inputs, floating ones changed."""
        return [
            {n: change(x) if x.is_floating_point() else x for n, x in given.items()}
            for given in self.inputs
        ]

    def result_axes(self):
        """{result: the axis of its tokens} where that is not 2."""
        given = chain(*(part.values() for part in self.inputs))
        held = zip(given, chain(*self.input_axes), strict=True)
        floating = [axis for x, axis in held if x.is_floating_point()]
        return {f"dinput{n}": axis for n, axis in enumerate(floating)}

    def position(self, inputs):
        parts = [
            module(*given.values()) if given else module
            for module, given in zip(self.modules, inputs, strict=True)
        ]
        return parts or None

    def whole(self, dtype, apart=False):
        """{name: result} of one process; apart: of packed sequences, each by relpos.attention."""
        self.cast(dtype)
        inputs = self.each_input(lambda x: x.clone().requires_grad_())
        options = {k: v for k, v in self.options.items() if k not in OWN}
        if "cu_seqlens" in self.options:
            run = self.each_alone if apart else self.packed
            return self.gradients(*run(options, inputs), inputs)
        torch.manual_seed(SEED)
        out, lse = relpos.attention(
            self.q,
            self.k,
            self.v,
            position=self.position(inputs),
            key_padding_mask=self.padding,
            return_lse=True,
            **options,
        )
        return self.gradients(out, lse, inputs)

    def packed(self, options, inputs):
        """(out, lse) of attention_varlen."""
        rows = [x[0].transpose(0, 1) for x in (self.q, self.k, self.v)]
        out, lse = relpos.attention_varlen(
            *rows,
            self.options["cu_seqlens"],
            self.options.get("cu_seqlens_k"),
            position=self.position(inputs),
            return_lse=True,
            **options,
        )
        return out.transpose(0, 1)[None], lse[None]

    def each_alone(self, options, inputs):
        """(out, lse) of relpos.attention of each sequence, one after another."""
        starts = {"queries": self.options["cu_seqlens"].tolist()}
        starts["keys"] = self.options.get("cu_seqlens_k", self.options["cu_seqlens"]).tolist()
        count = len(starts["queries"]) - 1
        offsets = options.pop("q_offset", torch.zeros(count, dtype=torch.int64)).tolist()
        results = []
        for n, offset in enumerate(offsets):

            def own(x, axis, side, n=n):
                first, end = starts[side][n : n + 2]
                return x.narrow(axis, first, end - first)

            cut = [
                {n: own(*each) for n, *each in zip(part, part.values(), *places, strict=True)}
                for part, *places in zip(inputs, self.input_axes, self.input_sides, strict=True)
            ]
            results.append(
                relpos.attention(
                    own(self.q, 2, "queries"),
                    own(self.k, 2, "keys"),
                    own(self.v, 2, "keys"),
                    position=self.position(cut),
                    q_offset=offset,
                    return_lse=True,
                    **options,
                )
            )
        return [torch.cat(rows, 2) for rows in zip(*results, strict=True)]

    def gradients(self, out, lse, inputs, leaves=None, dout=None, dlse=None):
        """{name: result}; of a shard where its leaves are given."""
        if leaves is None:
            leaves, dout, dlse = [self.q, self.k, self.v], self.dout, self.dlse
        given = [x for own in inputs for x in own.values() if x.is_floating_point()]
        parameters = [p for part in self.modules for p in part.parameters() if p.requires_grad]
        torch.autograd.backward(
            [out, lse], [dout, dlse.masked_fill(torch.isneginf(lse), 0.0)], inputs=None
        )
        found = {"out": out, "lse": lse}
        found |= {f"d{n}": x.grad for n, x in zip("qkv", leaves, strict=True)}
        found |= {f"dinput{n}": x.grad for n, x in enumerate(given)}
        found |= {f"dparameter{n}": p.grad for n, p in enumerate(parameters)}
        return {n: torch.zeros(0) if x is None else x.detach().clone() for n, x in found.items()}

    def shard(self, x, dim):
        """This rank's share, uneven where the case says its lengths."""
        layout = self.options.get("layout", "contiguous")
        if x is None:
            return None
        if self.lengths is not None:
            return x.split(self.lengths, dim)[dist.get_rank()].contiguous()
        return distributed.shard(x, layout=layout, dim=dim)

    def local(self, dtype):
        """{name: result} of this rank, gradients of parameters its share."""
        self.cast(dtype)
        leaves = [self.shard(x.detach(), 2).requires_grad_() for x in (self.q, self.k, self.v)]
        inputs = [
            {
                name: self.shard(x, axis).requires_grad_(x.is_floating_point())
                for (name, x), axis in zip(given.items(), axes, strict=True)
            }
            for given, axes in zip(self.inputs, self.input_axes, strict=True)
        ]
        options = dict(self.options)
        for name in {"q_positions", "k_positions"} & options.keys():
            options[name] = self.shard(options[name], -1)
        if "key_range" in options:
            options["key_range"] = tuple(self.shard(bound, -1) for bound in options["key_range"])
        torch.manual_seed(SEED + dist.get_rank())
        out, lse = getattr(distributed, self.function)(
            *leaves,
            position=self.position(inputs),
            key_padding_mask=self.shard(self.padding, -1),
            return_lse=True,
            **options,
        )
        dout, dlse = self.shard(self.dout, 2), self.shard(self.dlse, 2)
        return self.gradients(out, lse, inputs, leaves, dout, dlse)


OWN = ("layout", "mode", "reduce_position", "cu_seqlens", "cu_seqlens_k", "group", "mesh")


def run(dtype=torch.float32, **case):
    """On a rank."""
    return {
        name: x.numpy() if x.dtype != torch.bfloat16 else x.float().numpy()
        for name, x in Case(**case).local(dtype).items()
    }


def joined(found, layout="contiguous", **case):
    """The whole results from those of all ranks: tokens at their places, parameters summed."""
    axes, whole = Case(**case).result_axes(), {}
    for name in found[0]:
        shards = [torch.from_numpy(rank[name]) for rank in found]
        if name.startswith("dparameter"):
            given = [s for s in shards if s.numel()]
            whole[name] = sum(given[1:], given[0]) if given else shards[0]
            continue
        axis = axes.get(name, 2)
        runs = held("x", layout, [s.shape[axis] for s in shards])
        whole[name] = placed(shards, runs, axis)
    return whole
