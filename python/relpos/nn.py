"""torch.nn modules on relpos.attention."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from relpos._base.arguments import flag
from relpos._base.derivatives import Final
from relpos._base.errors import shape_of, wrong_type, wrong_value
from relpos._base.tensors import check_device
from relpos._call.attention import attention, check_fits
from relpos._call.cache import KVCache
from relpos._call.options import OPTIONS, PLACES, Options, check_names, takes
from relpos._mask.tile_mask import TileMask
from relpos._position.sum import Composed, Sum

__all__ = ["MultiheadAttention"]

_NO_EXTRA_KEYS = (
    "relpos has no keys outside the sequence, since their distance to a query is not defined: keep "
    "torch.nn.MultiheadAttention there, or join such keys with relpos.merge"
)


def _taking(function: Any) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The module says the others."""
    return takes(Options, without=("dropout_p", "enable_gqa"))(function)


class MultiheadAttention(torch.nn.Module):
    """torch.nn.MultiheadAttention with a relative position, computed by relpos.attention.

    Parameters: in_proj_weight [embed_dim + 2 num_kv_heads head_dim, embed_dim] and in_proj_bias,
    or q_proj_weight, k_proj_weight, v_proj_weight where kdim or vdim differs from embed_dim;
    out_proj.weight, out_proj.bias. It can be the self_attn of a torch.nn.TransformerEncoderLayer
    with the same batch_first; torch's fast path, which would leave out the position, is never used.

    A call that torch's module accepts gives the same result here or raises an error; docs/python.md
    lists what differs. A position that does not fit the heads raises ValueError when the module is
    made.
    """

    # If this were True, TransformerEncoderLayer and TransformerEncoder would give the weights to a
    # fused kernel that knows no positions.
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        position: Composed | Sequence[Composed] | None = None,
        num_kv_heads: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        bias = flag("bias", bias)
        if num_heads < 1 or embed_dim < 1 or embed_dim % num_heads:
            raise wrong_value("embed_dim", f"a multiple of num_heads {num_heads}", embed_dim)
        if num_kv_heads < 1 or num_heads % num_kv_heads:
            raise wrong_value("num_kv_heads", f"a divisor of num_heads {num_heads}", num_kv_heads)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = embed_dim // num_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.dropout = dropout
        self.batch_first = flag("batch_first", batch_first)
        self.position = Sum(*position) if isinstance(position, (list, tuple)) else position
        check_fits(self.position, num_heads, num_kv_heads, self.head_dim)

        factory = {"device": device, "dtype": dtype}
        kv_dim = num_kv_heads * self.head_dim
        self._widths = (embed_dim, kv_dim, kv_dim)
        packed = self.kdim == embed_dim and self.vdim == embed_dim

        def parameter(*shape: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.empty(shape, **factory))

        self.in_proj_weight = parameter(sum(self._widths), embed_dim) if packed else None
        self.q_proj_weight = None if packed else parameter(embed_dim, embed_dim)
        self.k_proj_weight = None if packed else parameter(kv_dim, self.kdim)
        self.v_proj_weight = None if packed else parameter(kv_dim, self.vdim)
        self.in_proj_bias = parameter(sum(self._widths)) if bias else None
        self.out_proj = torch.nn.Linear(embed_dim, embed_dim, bias=bias, **factory)
        self.reset_parameters()

    @classmethod
    def from_torch(
        cls,
        module: torch.nn.MultiheadAttention,
        *,
        position: Composed | Sequence[Composed] | None = None,
    ) -> "MultiheadAttention":
        """A module with the sizes, layout and mode of torch's module and a copy of its weights.

        torch's module can load the state_dict() if there is no position and no num_kv_heads.
        Raises ValueError for add_bias_kv and add_zero_attn, since a key without a position has no
        distance.
        """
        for name, given in (
            ("add_bias_kv", module.bias_k is not None),
            ("add_zero_attn", module.add_zero_attn),
        ):
            if given:
                raise ValueError(f"{name}: expected False; {_NO_EXTRA_KEYS}")
        weight = module.out_proj.weight
        ours = cls(
            module.embed_dim,
            module.num_heads,
            module.dropout,
            module.in_proj_bias is not None,
            position=position,
            kdim=module.kdim,
            vdim=module.vdim,
            batch_first=module.batch_first,
            device=weight.device,
            dtype=weight.dtype,
        )
        own = {n: x for n, x in ours.state_dict().items() if n.startswith("position.")}
        ours.load_state_dict(module.state_dict() | own)
        return ours.train(module.training)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, *lists: list[str]
    ) -> None:
        for name in ("bias_k", "bias_v"):
            if state_dict.get(prefix + name) is not None:
                lists[-1].append(f"{prefix}{name}: of add_bias_kv; {_NO_EXTRA_KEYS}")
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, *lists)

    def reset_parameters(self) -> None:
        """Initialises the input projections again and zeroes the biases, as torch's module does."""
        names = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
        for weight in (getattr(self, name) for name in names):
            if weight is not None:
                torch.nn.init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            torch.nn.init.zeros_(self.in_proj_bias)
            torch.nn.init.zeros_(self.out_proj.bias)

    def extra_repr(self) -> str:
        return (
            f"{self.embed_dim}, {self.num_heads}, dropout={self.dropout}, "
            f"bias={self.in_proj_bias is not None}, num_kv_heads={self.num_kv_heads}, "
            f"kdim={self.kdim}, vdim={self.vdim}, batch_first={self.batch_first}"
        )

    @_taking
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        position: Composed | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | TileMask | None = None,
        average_attn_weights: bool | None = None,
        is_causal: bool = False,
        cache: KVCache | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns (output in the layout of query, weights or None).

        Args:
          query: [B, Lq, embed_dim], key [B, Lk, kdim], value [B, Lk, vdim]; [L, B, ...] without
            batch_first; or without the batch axis.
          position: replaces the module's position in this call, for a position with inputs:
            layer.position(log_f).
          key_padding_mask: [B, Lk], True (or -inf) = padding.
          need_weights: returns the weights [B, H, Lq, Lk], or [B, Lq, Lk] with
            average_attn_weights, after dropout. They have no gradient: a backward pass through
            them raises an error.
          attn_mask: [Lq, Lk], [B * H, Lq, Lk] or [B, H, Lq, Lk]; True = blocked, floats are added;
            or a relpos.TileMask, which says what is seen.
          average_attn_weights: give it with need_weights. Without it the weights are not averaged,
            and a warning says that torch's module would average them.
          is_causal: always applied, with attn_mask or without. If both are given and there are no
            offsets, positions or cache, attn_mask must block every later key, as torch expects it.
          cache: the projected key and value are appended to it, and the query attends to all keys
            in it. Masks cover all these keys, and the offsets come from the cache.
          The others are those of relpos.attention; the module says dropout_p and enable_gqa.
        """
        need_weights, is_causal = flag("need_weights", need_weights), flag("is_causal", is_causal)
        if average_attn_weights is not None:
            average_attn_weights = flag("average_attn_weights", average_attn_weights)
        check_names("MultiheadAttention.forward", options)
        options = {n: x for n, x in options.items() if x is not OPTIONS[n].default}
        placed = {name: value for name, value in options.items() if name in PLACES}
        if query.is_nested:
            refused = {"position": position, "key_padding_mask": key_padding_mask, "cache": cache}
            refused |= {"need_weights": need_weights or None, "key_range": options.get("key_range")}
            _refuse_for_nested(**refused, **placed)
            return self._nested(query, key, value, attn_mask, is_causal, options), None
        self._check_inputs(query, key, value, key_padding_mask)
        if isinstance(attn_mask, Tensor):
            check_device("attn_mask", attn_mask, query)
        batched = query.dim() == 3
        q, k, v = (self._split(x, batched) for x in self._project(query, key, value))
        if key_padding_mask is not None and not batched:
            key_padding_mask = key_padding_mask.unsqueeze(0)
        if is_causal and attn_mask is not None and cache is None and not placed:
            _check_causal_hint(attn_mask, q.shape[2], k.shape[2])
        if need_weights and average_attn_weights is None:
            _warn_of_average()
        padding, mask = _padding(key_padding_mask, self._mask(attn_mask, q.shape[0]))
        call = {
            "position": self.position if position is None else position,
            "attn_mask": mask,
            "key_padding_mask": padding,
            "dropout_p": self.dropout if self.training else 0.0,
            "is_causal": is_causal,
            "enable_gqa": self.num_kv_heads != self.num_heads,
            "return_weights": need_weights,
        }
        attend = attention if cache is None else cache.attend
        out = attend(q, k, v, **call, **options)
        out, weights = out if need_weights else (out, None)
        if weights is not None:
            weights = _without_gradient(weights, out)
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if batched else weights.squeeze(0)
        return self.out_proj(self._joined(out, batched)), weights

    def _joined(self, out: Tensor, batched: bool) -> Tensor:
        """The heads of [B, H, Lq, Dv] side by side, axes in the order of the inputs."""
        if not batched:
            return out.squeeze(0).transpose(0, 1).flatten(1)
        order = (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)
        return out.permute(order).flatten(2)

    def _check_inputs(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None
    ) -> None:
        for name, tensor, width in (
            ("query", query, self.embed_dim),
            ("key", key, self.kdim),
            ("value", value, self.vdim),
        ):
            if tensor.dim() not in (2, 3) or tensor.dim() != query.dim():
                wanted = "rank 3, or 2 for all without a batch"
                raise wrong_value(name, wanted, shape_of(tensor))
            if tensor.shape[-1] != width:
                raise wrong_value(name, f"{width} features", tensor.shape[-1])
            check_device(name, tensor, self.out_proj.weight, "the module")
        if key_padding_mask is not None:
            check_device("key_padding_mask", key_padding_mask, query)
        if key_padding_mask is not None and key_padding_mask.dim() != query.dim() - 1:
            wanted = "[B, Lk]" if query.dim() == 3 else "[Lk]"
            raise wrong_value("key_padding_mask", wanted, shape_of(key_padding_mask))

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> Sequence[Tensor]:
        if self.in_proj_weight is not None and query is key and key is value:
            packed = functional.linear(query, self.in_proj_weight, self.in_proj_bias)
            return packed.split(self._widths, -1)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.split(self._widths)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.split(self._widths)
        inputs = (query, key, value)
        return [functional.linear(*each) for each in zip(inputs, weights, biases, strict=True)]

    def _split(self, x: Tensor, batched: bool) -> Tensor:
        """Reshapes a projection to [B, H, L, D]."""
        heads = x.unflatten(-1, (-1, self.head_dim))
        if not batched:
            return heads.transpose(0, 1).unsqueeze(0)
        return heads.transpose(1, 2) if self.batch_first else heads.permute(1, 2, 0, 3)

    def _mask(self, attn_mask: Any, batch: int) -> Any:
        """The mask as relpos.attention takes it: True = attend, an axis B * H split in two."""
        if attn_mask is None or isinstance(attn_mask, TileMask):
            return attn_mask
        if attn_mask.dim() == 3:
            if attn_mask.shape[0] != batch * self.num_heads:
                rows = f"[B * H, Lq, Lk] with B * H = {batch * self.num_heads}"
                wanted = f"[Lq, Lk], {rows}, or [B, H, Lq, Lk]"
                raise wrong_value("attn_mask", wanted, shape_of(attn_mask))
            attn_mask = attn_mask.unflatten(0, (batch, self.num_heads))
        elif attn_mask.dim() == 2:
            attn_mask = attn_mask[None, None]
        return attn_mask.logical_not() if attn_mask.dtype == torch.bool else attn_mask

    def _nested(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | TileMask | None,
        is_causal: bool,
        options: dict[str, Any],
    ) -> Tensor:
        """Self-attention of the nested batch that TransformerEncoder makes of padded input."""
        if not self.batch_first:
            raise ValueError("query: expected no nested tensor without batch_first, got one")
        if query is not key or key is not value:
            raise ValueError("query: expected a nested tensor for self-attention only")
        padded = query.to_padded_tensor(0.0)
        lengths = torch.tensor([len(row) for row in query.unbind()], device="cpu")
        visible = torch.arange(padded.shape[1], device="cpu") < lengths[:, None]
        out, _ = self(
            *[padded] * 3,
            key_padding_mask=~visible,
            attn_mask=attn_mask,
            is_causal=is_causal,
            **options,
        )
        return torch._nested_tensor_from_mask(out, visible, mask_check=False)


_NO_GRADIENT = (
    "relpos: the weights of MultiheadAttention have no gradient: detach() them, or compute the "
    "loss from relpos.scores(...).softmax(-1), which has one"
)


def _without_gradient(weights: Tensor, out: Tensor) -> Tensor:
    """The same weights; a backward pass through them raises an error."""
    # A compiled backward passes zeros for unused outputs, so it could not tell whether to raise.
    if torch.compiler.is_compiling() or not out.requires_grad:
        return weights
    return Final.apply(lambda weights, _: weights.view_as(weights), _NO_GRADIENT, weights, out)


def _warn_of_average() -> None:
    if not torch.compiler.is_compiling():
        warnings.warn(
            "average_attn_weights: not given, the weights are [B, H, Lq, Lk]; "
            "torch.nn.MultiheadAttention would average them over heads: give "
            "average_attn_weights=False to keep one matrix for each head, or True for the average",
            stacklevel=5,
        )


def _refuse_for_nested(**options: Any) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise wrong_value(given[0], "none with nested tensors", "one")


def _check_causal_hint(attn_mask: Tensor | TileMask, queries: int, keys: int) -> None:
    """torch's module treats is_causal as a hint about attn_mask, and may apply only one of them."""
    if (
        isinstance(attn_mask, TileMask)
        or attn_mask.is_meta
        or attn_mask.shape[-2:] != (queries, keys)
    ):
        return  # torch's module accepts no mask of another shape
    if attn_mask.dtype == torch.bool:
        visible = attn_mask.logical_not()
    elif attn_mask.is_floating_point():
        visible = attn_mask > torch.finfo(attn_mask.dtype).min
    else:
        return
    later = visible.triu(1).any()
    text = (
        "is_causal: expected an attn_mask that blocks every later key, since torch takes is_causal "
        "as a hint that attn_mask is causal; to apply both, use window=(-1, 0) instead of is_causal"
    )
    if torch.compiler.is_compiling():
        torch._assert_async(later.logical_not(), text)
    elif later:
        raise ValueError(text)


def _padding(key_padding_mask: Tensor | None, mask: Any) -> tuple[Tensor | None, Any]:
    """Splits a floating-point key padding mask, torch's canonical form, into padding (-inf) and the
    finite rest, which is added to the scores."""
    if key_padding_mask is None or key_padding_mask.dtype == torch.bool:
        return key_padding_mask, mask
    if not key_padding_mask.is_floating_point():
        raise wrong_type("key_padding_mask", "bool or a floating dtype", key_padding_mask.dtype)
    padding = torch.isneginf(key_padding_mask)
    rest = key_padding_mask.masked_fill(padding, 0.0)
    if not torch.compiler.is_compiling() and not rest.any():
        return padding, mask
    rest = rest[:, None, None, :]
    if mask is None:
        return padding, rest
    if isinstance(mask, TileMask):
        wanted = "bool, or 0 and -inf, beside a TileMask, to which no number is added"
        raise wrong_value("key_padding_mask", wanted, "other numbers")
    if mask.dtype == torch.bool:
        return padding, rest.masked_fill(mask.logical_not(), -torch.inf)
    return padding, mask + rest
