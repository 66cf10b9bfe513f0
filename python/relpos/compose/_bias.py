"""A bias that is no function of a distance, as the caller's own function computes it."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from relpos._base.errors import dtype_of, kind_of, shape_of, wrong_type, wrong_value
from relpos._base.modules import Reading
from relpos._base.tensors import FLOATING, check_device, integers
from relpos._call.attention import same_kind, workspace_bytes
from relpos._call.options import check_names
from relpos._position.part import refuse_length
from relpos._position.sum import flatten
from relpos.compose._blocks import Bias, Places, by_rows
from relpos.compose._calls import check_call, count, offsets, refuse, refuse_placing

_NAME = "bias_by_rows"
_REFUSED = {
    "attn_mask": "the bias is given as a mask: add it to the bias, where -inf hides a pair",
    "softcap": "it would have to follow the bias, which is given as a mask, after the softcap",
    "return_weights": "they are dense: compute small cases by attn_mask in relpos.attention",
}


def bias_by_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    bias: Bias,
    parameters: Sequence[Tensor] = (),
    rows: int | None = None,
    **options: Any,
) -> Any:
    """Attention with a bias that is no function of a distance, exact and trainable.

    bias(query, key, q_position, k_position, *parameters) returns the bias of a block of n queries,
    [B or 1, H or 1, n, Lk] of a floating dtype, added after the scale; -inf hides a pair. It is
    called with the block's query [B, H, n, D], the whole key [B, Hk, Lk, D], int64 positions
    q_position [n] or [B, n] and k_position [Lk] or [B, Lk], and the parameters.

    Slow: blocks take O(n Lk) memory in a few tensors, and are computed again in the backward pass,
    with the same random numbers. What depends on the distance alone belongs in a position.

    Args:
      query: [B, H, Lq, D], key [B, Hk, Lk, D], value [B, Hk, Lk, Dv], as for relpos.attention.
      bias: a function, a torch.nn.Module or a bound method of one. Its result for a query may not
        depend on which others are in the block.
      parameters: tensors that bias takes as further arguments; those that require grad get their
        gradients, as query, key and value do. The parameters of a Module are found. Any other
        tensor that requires grad and is read by bias, such as one of a closure, raises ValueError.
      rows: n, the queries of a block; None chooses it so that the bias has at most 2^20 numbers.
      options: those of relpos.attention. Raises ValueError for attn_mask, softcap and
        return_weights, and for a position that places tokens or depends on the length of the call.

    Returns:
      out [B, H, Lq, Dv], or (out, lse [B, H, Lq]) with return_lse.
    """
    check_call(_NAME, query, key, value)
    refuse(_NAME, options, _REFUSED)
    check_names(_NAME, {name: x for name, x in options.items() if name != "return_lse"})
    refuse_placing(_NAME, flatten(options.get("position")))
    refuse_length(options.get("position"), "which differs from block to block")
    listed = _listed(parameters, query)
    call, found, fixed = _function_of(bias)
    if rows is not None:
        rows = count("rows", rows)
    _check_options(query, key, value, options)
    at = _places(query, key, options)
    shape = (*query.shape[:2], key.shape[2])
    watched = torch.is_grad_enabled()  # until the first block has been computed

    def checked(q: Tensor, k: Tensor, pos_q: Tensor, pos_k: Tensor, *tensors: Tensor) -> Tensor:
        nonlocal watched
        alone = watched and not torch.is_grad_enabled()
        watched = False
        own = [q, k, *tensors]
        if alone:  # the forward pass: only to see what the block's graph reads
            own = [x.detach().requires_grad_(x.requires_grad) for x in own]
        q, k, *tensors = own
        given, trained = tensors[: len(listed)], tensors[len(listed) :]
        with torch.set_grad_enabled(alone or torch.is_grad_enabled()):
            named = dict(zip(found, trained, strict=True)) | fixed
            made = call(named, (q, k, pos_q, pos_k, *given))
            _check_bias(made, (*shape[:2], q.shape[2], shape[2]), query)
            if torch.is_grad_enabled():
                _refuse_others(made, own)
        return made.detach() if alone else made

    tensors = [*listed, *found.values()]
    width = shape[0] * shape[1] * shape[2]
    own = {"width": width, "rows": rows, "optional": len(found)}
    return by_rows(query, key, value, checked, tensors, at, options, random=True, **own)


# The caller's function, with the tensors of a Module by name: from those and its arguments.
_Call = Callable[[Mapping[str, Tensor], tuple[Any, ...]], Any]


def _function_of(bias: Any) -> tuple[_Call, dict[str, Tensor], dict[str, Tensor]]:
    """How bias is called, what its Module trains, by name, and what else it holds."""
    if not callable(bias):
        wanted = "a function of (query, key, q_position, k_position, *parameters)"
        raise wrong_type("bias", wanted, kind_of(bias))
    first: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    function = bias
    if isinstance(function, functools.partial):
        first, keywords, function = function.args, function.keywords, function.func
    if inspect.ismethod(function) and isinstance(function.__self__, torch.nn.Module):
        function = Reading(function.__self__, function)
    if not isinstance(function, torch.nn.Module):
        return lambda _, arguments: bias(*arguments), {}, {}
    module = function
    held = dict(module.named_parameters())
    trained = {name: x for name, x in held.items() if x.requires_grad}
    fixed = {name: x for name, x in held.items() if not x.requires_grad}

    def call(named: Mapping[str, Tensor], arguments: tuple[Any, ...]) -> Any:
        return torch.func.functional_call(module, dict(named), (*first, *arguments), keywords)

    return call, trained, fixed | dict(module.named_buffers())


def _listed(parameters: Any, query: Tensor) -> list[Tensor]:
    if isinstance(parameters, Tensor) or not isinstance(parameters, Sequence):
        raise wrong_type("parameters", "a sequence of tensors", kind_of(parameters))
    for n, tensor in enumerate(parameters):
        if not isinstance(tensor, Tensor):
            raise wrong_type(f"parameters[{n}]", "a torch.Tensor", kind_of(tensor))
        check_device(f"parameters[{n}]", tensor, query)
    return list(parameters)


def _check_options(query: Tensor, key: Tensor, value: Tensor, options: Mapping[str, Any]) -> None:
    """Raises what relpos.attention would, and draws no random number."""
    given = {name: x for name, x in options.items() if name != "return_lse"}
    q, k, v = same_kind(query=query, key=key, value=value)
    with torch.random.fork_rng(devices=[], enabled=bool(given.get("dropout_p"))):
        workspace_bytes(q, k, v, **given)  # type: ignore[arg-type]


def _places(query: Tensor, key: Tensor, options: dict[str, Any]) -> Places:
    """Takes what says them out of the options."""
    q_offset, k_offset = options.pop("q_offset", None), options.pop("k_offset", 0)
    given = [options.pop(name, None) for name in ("q_positions", "k_positions")]
    if given[0] is None or given[1] is None:
        return Places.after(offsets(query, key, q_offset, k_offset), query, key)
    q, k = (integers(n, x) for n, x in zip(("q_positions", "k_positions"), given, strict=True))
    return Places(q, k)


def _check_bias(made: Any, shape: tuple[int, int, int, int], query: Tensor) -> None:
    if not isinstance(made, Tensor):
        raise wrong_type("bias", "a function that returns a torch.Tensor", kind_of(made))
    if made.dtype not in FLOATING:
        wanted = "float32, float64, bfloat16 or float16, in which -inf hides a pair"
        raise wrong_type("bias", wanted, dtype_of(made))
    batch, heads, queries, keys = shape
    shapes = [(b, h, queries, keys) for b in (batch, 1) for h in (heads, 1)]
    if tuple(made.shape) not in shapes:
        first, second = (f"{n} or 1" if n != 1 else "1" for n in (batch, heads))
        wanted = f"[{first}, {second}, {queries}, {keys}] (batch, heads, queries of a block, keys)"
        raise wrong_value("bias", wanted, shape_of(made))
    check_device("bias", made, query)


def _refuse_others(made: Tensor, own: Sequence[Tensor]) -> None:
    """Raises ValueError where `made` depends on another leaf, whose gradient would be lost."""
    leaves = [made] if made.grad_fn is None and made.requires_grad else []
    stack, seen = [made.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "torch::autograd::AccumulateGrad":
            leaves.append(node.variable)
        stack += [following for following, _ in node.next_functions]
    for leaf in leaves:
        if not any(leaf is x for x in own):
            raise ValueError(
                f"bias: reads a tensor {shape_of(leaf)} that requires grad and is not one of its "
                "arguments, so that its gradient would be lost: give it in parameters=, which bias "
                "takes after k_position, or make bias a torch.nn.Module that holds it; .detach() "
                "where it is not trained"
            )
