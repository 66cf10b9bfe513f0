"""LongT5's encoders: a window with T5's bias, alone or with sums of blocks (transient global)."""

import functools
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import relpos
from relpos._position.part import Given, with_values
from relpos.hf._adapter import Adapter, Plan, Unfused
from relpos.hf._interface import NAME, attend
from relpos.hf._lazy import Bias, Mask
from relpos.hf._mask import window_mask
from relpos.hf._trial import Compared, draw, padded, prove
from relpos.hf.adapters.t5 import buckets


class _Local:
    """LongT5LocalAttention.forward on relpos: keys within block_len - 1 of the query."""

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        position_bias: Bias | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Bias]:
        _no_weights(output_attentions)
        if (
            mask is not None
        ):  # [B, 1, blocks, block_len, 3 block_len]; what is no padding sees itself
            own = mask[:, 0, :, :, self.block_len : 2 * self.block_len]
            mask = own.diagonal(dim1=-2, dim2=-1).flatten(1)
        bias = _bias(self, "relative_attention_bias") if position_bias is None else position_bias
        query, key, value = _project(self, hidden_states)
        window = _window(self, hidden_states, mask)
        out = attend(
            query, key, value, window, position=bias.make(), dropout=_dropout(self), scale=1.0
        )
        return self.o(out.transpose(1, 2).flatten(2)), bias


class _TransientGlobal:
    """LongT5TransientGlobalAttention.forward on relpos: one softmax over the window and the sums
    of the blocks, from two calls."""

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        position_bias: tuple[Bias, Bias] | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, tuple[Bias, Bias]]:
        _no_weights(output_attentions)
        if position_bias is None:
            position_bias = (
                _bias(self, "relative_attention_bias"),
                _bias(self, "global_relative_attention_bias"),
            )
        near, far = position_bias
        query, key, value = _project(self, hidden_states)
        options = {"dropout": _dropout(self), "scale": 1.0, "lse": True}
        window = _window(self, hidden_states, mask)
        parts = [attend(query, key, value, window, position=near.make(), **options)]
        blocks, used = _blocks(self, hidden_states, mask)
        if used.shape[1] > 0:
            sums = self.global_input_layer_norm(self._relpos_sums(hidden_states, blocks, used))
            _, key, value = _project(self, sums)
            every = torch.arange(used.shape[1]).expand_as(used)
            parts.append(
                attend(
                    query,
                    key,
                    value,
                    Mask(query.shape[2], key.shape[2], 0, None, used == 0),
                    position=far.make(),
                    positions=(blocks.to(torch.int64), every),
                    **options,
                )
            )
        out, _ = relpos.merge(*zip(*parts, strict=True))
        return self.o(out.transpose(1, 2).flatten(2)), position_bias

    def _relpos_sums(self, states: Tensor, blocks: Tensor, used: Tensor) -> Tensor:
        """[B, G, d]: the sum of each block's tokens, without tokens that are in no block (-1)."""
        count = used.shape[1]
        into = torch.where(blocks < 0, count, blocks).to(torch.int64)
        sums = states.new_zeros(states.shape[0], count + 1, states.shape[2])
        return sums.scatter_add(1, into[..., None].expand_as(states), states)[:, :count]


def _project(module: nn.Module, states: Tensor) -> list[Tensor]:
    heads = (module.n_heads, module.key_value_proj_dim)
    return [
        project(states).unflatten(-1, heads).transpose(1, 2)
        for project in (module.q, module.k, module.v)
    ]


def _window(module: nn.Module, states: Tensor, mask: Tensor | None) -> Mask:
    length, reach = states.shape[1], module.block_len - 1
    seen = None if mask is None else mask[:, :length]
    return window_mask(length, reach, seen, states.device)


def _blocks(module: nn.Module, states: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The block of each token [B, L], -1 for padding, and which blocks are in use [B, G]."""
    number = getattr(sys.modules[type(module).__bases__[1].__module__], _NUMBER_BLOCKS)
    mask = torch.ones(states.shape[:2]) if mask is None else mask
    return number(mask, module.global_block_size)


def _dropout(module: nn.Module) -> float:
    return module.dropout if module.training else 0.0


def _no_weights(wanted: bool) -> None:
    if wanted:
        raise NotImplementedError(
            "relpos.hf: LongT5's encoder has no dense weights to return here: "
            "leave output_attentions off, or use the model before relpos.hf.fuse"
        )


def _bias(module: nn.Module, table: str) -> Bias:
    """The first layer's table; without a table nothing is added to the scores."""
    return Bias(functools.partial(_bound, module, table))


def _bound(module: nn.Module, table: str) -> Given | None:
    if not module.has_relative_attention_bias:
        return None
    return with_values(module._relpos_position, [getattr(module, table).weight])


_NUMBER_BLOCKS = "_make_global_fixed_block_ids"


_LOCAL_MASK = "_get_local_attention_mask"


def _plan(mixin: type, what: str, module: nn.Module, owner: nn.Module) -> Plan:
    position = buckets(module, not module.is_decoder)
    plan = Plan(what, mixin, {"_relpos_position": position})
    # Without a table the model's own forward needs what the first layer returns; that layer's
    # trial is about the same class.
    if module.has_relative_attention_bias:
        prove(module, plan, _calls(module, mixin is _Local), implementation=NAME)
    return plan


def _calls(module: nn.Module, local: bool) -> Iterator[Compared]:
    make = getattr(sys.modules[type(module).__module__], _LOCAL_MASK)
    block = module.block_len
    for length in (1, 2, block, block + 1, 2 * block + 3):
        states, seen = draw(2, length, module.d_model), padded(2, length)
        tokens = seen.to(torch.int64)
        mask = make(tokens, block, states.device) if local else tokens
        given = {"hidden_states": states, "mask": mask}
        yield Compared(given, given, seen)


def _plan_global(module: nn.Module, owner: nn.Module) -> Plan:
    if not hasattr(sys.modules[type(module).__module__], _NUMBER_BLOCKS):
        raise Unfused(f"no {_NUMBER_BLOCKS} beside its class", attention=False)
    what = "window and block sums with their T5 biases in the kernel, joined by their log-sums"
    return _plan(_TransientGlobal, what, module, owner)


ADAPTERS = [
    Adapter(
        ("LongT5LocalAttention",),
        functools.partial(_plan, _Local, "window with T5 bias in the kernel"),
    ),
    Adapter(("LongT5TransientGlobalAttention",), _plan_global),
]
