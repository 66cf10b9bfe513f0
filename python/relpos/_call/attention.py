"""relpos.attention and relpos.scores: arguments checked and laid out for the operators."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from relpos import _core
from relpos._base.arguments import flag
from relpos._base.derivatives import NOBODY, OTHERS
from relpos._base.errors import wrong_type
from relpos._base.tensors import FLOATING, check_heads, check_memory
from relpos._call import autograd
from relpos._call.call import Call
from relpos._call.options import OfPairs, Options, takes
from relpos._call.tensors import check_call
from relpos._call.typed import Results, attending
from relpos._position.part import text_of
from relpos._position.sum import flatten
from relpos._position.terms import DistanceBias, QueryAdded, Rotation, Slopes, ValueTable

# What attends instead, the last first, with the arguments of `attention`: that of
# relpos.distributed, within its context_parallel.
ELSEWHERE: list[Callable[..., Any]] = []


@attending()
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_lse: bool = False,
    return_weights: bool = False,
    **options: Unpack[Options],
) -> Results:
    """Attention with relative positions: exact, trainable, linear in memory.

    Args:
      query: [B, H, Lq, D], key [B, Hk, Lk, D], value [B, Hk, Lk, Dv], of one dtype: float32,
        float64, bfloat16 or float16; any strides.
      position: None, a relpos position, or a list of them.
      attn_mask: bool, True = attend, or floating-point, added after scale and bias;
        broadcastable to [B, H, Lq, Lk]. If it requires grad, it gets its dense gradient. Or a
        relpos.TileMask, whose tiles alone are computed.
      key_padding_mask: bool [B, Lk], True = padding.
      dropout_p: applies whenever it is above 0; the seed comes from torch's default generator.
      is_causal: a query sees only keys with pos_k <= pos_q.
      scale: multiplies the scores; None means 1 / sqrt(D).
      enable_gqa: allows fewer key heads than query heads; Hk must divide H.
      window: (left, right): a query sees keys with -left <= pos_k - pos_q <= right; -1 means no
        bound.
      q_offset, k_offset: position of the first query and key, an int or int64 [B]. q_offset must
        be given where Lq != Lk and positions matter: Lk - Lq for a cache or memory.
      q_positions, k_positions: int64 [L] or [B, L], both or neither, instead of offsets.
      key_range: (lo, hi), int64 [Lq] or [B, Lq]: a query sees keys lo <= j < hi. A key must pass
        all masks to be seen.
      softcap: a number c from 1e-30 to 1e30: a score s with its position terms becomes
        c tanh(s / c), before attn_mask is added.
      sinks: [H] or [B, H, Lq]: a score without a value that joins the softmax of each row, as in
        gpt-oss; differentiable. relpos.AttentionSink is the same as a module; both add up.
      float32_products: of a call in bfloat16, whatever the CPU can: its products are those of
        the inputs in float32, forward and backward, slower and more exact. RELPOS_BF16=float32
        in the environment asks for it in every call. Other dtypes do so anyhow.
      return_lse: also returns the log-sum-exp (natural log) of each query's scores [B, H, Lq],
        differentiable.
      return_weights: also returns the weights after dropout [B, H, Lq, Lk], detached and dense.

    Returns:
      out [B, H, Lq, Dv], or (out, lse), (out, weights), (out, lse, weights). For a query that
      sees no key, out is 0, lse is -inf, and the gradients are 0; with sinks, lse is their
      log-sum-exp, and has a gradient to them.
    """
    if ELSEWHERE:
        returns = {"return_lse": return_lse, "return_weights": return_weights}
        return ELSEWHERE[-1](query, key, value, **returns, **options)
    if return_lse is not False:
        return_lse = flag("return_lse", return_lse)
    if return_weights is not False:
        return_weights = flag("return_weights", return_weights)
    call = Call.of("attention", query, key, options)
    compiles = torch.compiler.is_compiling()
    witness = OTHERS if compiles else _core.seen_by(query, key, value, call)
    if witness == NOBODY and not return_weights:  # without the dispatcher, which costs 25 us
        out, lse, _ = _core.attend(query, key, value, call, return_lse, False)
        return (out, lse) if return_lse else out
    if witness == OTHERS:
        query, key, value = same_kind(query=query, key=key, value=value)
        check_call(call, query)
    want_lse = return_lse or witness == OTHERS  # a transform takes no None as a result
    results = autograd.attention(query, key, value, want_lse, return_weights, call)
    if return_lse:
        return results
    return (results[0], results[2]) if return_weights else results[0]


@takes(OfPairs)
def scores(query: Tensor, key: Tensor, **options: Unpack[OfPairs]) -> Tensor:
    """The dense scores [B, H, Lq, Lk] before the softmax, -inf where hidden; differentiable.

    The arguments are those of relpos.attention. Sinks do not appear, since they are not keys.
    """
    query, key = same_kind(query=query, key=key)
    call = Call.of("scores", query, key, options)
    check_call(call, query)
    return autograd.scores(query, key, call)


def refuse_elsewhere(name: str, instead: str) -> None:
    """Raises within context_parallel: what `name` says of tokens is not of a shard's."""
    if ELSEWHERE:
        raise RuntimeError(f"{name}: not under relpos.distributed.context_parallel; {instead}")


def workspace_bytes(
    query: Tensor, key: Tensor, value: Tensor, *, backward: bool = False, **options: Unpack[Options]
) -> int:
    """Peak bytes of one call beyond inputs and outputs, by the formula of docs/memory.md. The
    options are those of relpos.attention."""
    backward = flag("backward", backward)
    call = Call.of("attention", query, key, options)
    return _core.workspace_bytes(query, key, value, call, backward)


def check_fits(position: Any, heads: int, kv_heads: int, head_dim: int) -> None:
    """Raises ValueError if no call with these heads could use the position. Of a position of one's
    own this is said by its terms for a few distances; its gates are asked in a call."""
    parts = flatten(position)
    _core.check_fits(
        text_of([part for part in parts if not part._lowers]), heads, kv_heads, head_dim
    )
    for part in (part for part in parts if part._lowers):
        held = chain(part._module.parameters(), part._module.buffers())
        device = next(held, torch.empty(0, device="cpu")).device
        query, key = (torch.zeros(1, n, 1, head_dim, device=device) for n in (heads, kv_heads))
        with torch.no_grad():
            terms = part._near(query, key)
        terms = [term for term in terms if isinstance(term, _OF_ANY_CALL)]
        if device.type == "cpu":
            options = {"position": terms, "enable_gqa": True, "q_offset": 0}
            workspace_bytes(query, key, key, **options)


# What a call of one query and one key can have.
_OF_ANY_CALL = (DistanceBias, Slopes, ValueTable, QueryAdded, Rotation)


def same_kind(**tensors: Tensor) -> list[Tensor]:
    """Checks type, rank, memory and dtype; casts as autocast asks."""
    dtype, first = None, None
    check_heads(**tensors)
    for name, tensor in tensors.items():
        check_memory(name, tensor, first)
        first = tensor if first is None else first
        if tensor.dtype not in FLOATING:
            raise wrong_type(name, "float32, float64, bfloat16 or float16", tensor.dtype)
        dtype = dtype or tensor.dtype
    given = list(tensors.values())
    if torch.is_autocast_enabled("cpu"):
        low = torch.get_autocast_dtype("cpu")
        given = [t if t.dtype == torch.float64 else t.to(low) for t in given]
        dtype = given[0].dtype
    for name, tensor in zip(tensors, given, strict=True):
        if tensor.dtype != dtype:
            raise wrong_type(name, f"{dtype}, as query has", tensor.dtype)
    return given
