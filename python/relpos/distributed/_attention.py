"""relpos.distributed.ring_attention and ulysses_attention."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from relpos._base.arguments import flag
from relpos._call.call import Call
from relpos._call.options import Options, check_names
from relpos._call.typed import attending_on_ranks
from relpos._position.sum import lowers
from relpos.distributed._dtensor import of_shards
from relpos.distributed._exchange import ALONE, Team, agree, agree_in_teams, teams
from relpos.distributed._geometry import Geometry
from relpos.distributed._heads import check_heads, exchange, with_own_heads
from relpos.distributed._layout import held
from relpos.distributed._local import LocalCall, geometry_of
from relpos.distributed._own import agree_on_spans, terms_for_all
from relpos.distributed._pieces import Inputs, Pieces
from relpos.distributed._ring import Ring, RingAttention
from relpos.distributed._scan import Cumulative


@attending_on_ranks
@torch.compiler.disable
def ring_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    group: Any = None,
    layout: str = "contiguous",
    mode: str = "ring",
    reduce_position: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    return_lse: bool = False,
    return_weights: bool = False,
    **options: Unpack[Options],
) -> Tensor | tuple[Tensor, Tensor]:
    """relpos.attention of a sequence that lies on the ranks of a group, each a shard of it.

    Every rank calls it with its shard and the same options. Keys and values travel; each rank
    gets its own rows of the result, and in the backward pass its own rows of the gradients.
    DTensors with a sharded sequence axis give one of the same placements.

    Args:
      query: [B, H, Lq, D], key [B, Hk, Lk, D], value [B, Hk, Lk, Dv]: this rank's tokens.
      group: of torch.distributed; None is all ranks. A DeviceMesh of one axis is its group; of
        two, (ring, heads), keys travel along the first and heads are dealt along the second, which
        must divide them.
      layout: "contiguous", "zigzag" or "striped", as relpos.distributed.shard cuts. Contiguous
        shards may have any lengths.
      mode: "ring" holds two blocks of other ranks at a time, "all_gather" all of them.
      reduce_position: sums the gradients of the position's parameters, and of sinks [H], over the
        ranks. Else they
        are this rank's share, for DistributedDataParallel or FSDP2 to sum.
      cu_seqlens, cu_seqlens_k: the whole sequence is S packed ones, which start at these tokens,
        int64 [S + 1], the same on every rank; for keys: None is as for queries.
      key_padding_mask: bool [B, Lk], of this rank's keys.
      q_offset, k_offset: position of the first token of the whole sequence.
      q_positions, k_positions: of this rank's tokens.
      key_range: (lo, hi), of this rank's queries, in tokens of the whole sequence.
      Inputs of the position, and sinks [B, H, Lq], are those of this rank's tokens. The others are
      those of relpos.attention; attn_mask and return_weights are refused: they are quadratic.

    Returns:
      out [B, H, Lq, Dv], or (out, lse).
    """
    how = {"layout": layout, "mode": mode, "reduce_position": reduce_position}
    return _on_ranks(
        "ring_attention",
        teams,
        (query, key, value),
        group,
        how,
        (cu_seqlens, cu_seqlens_k),
        (return_lse, return_weights),
        options,
    )


@attending_on_ranks
@torch.compiler.disable
def ulysses_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    group: Any = None,
    layout: str = "contiguous",
    reduce_position: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    return_lse: bool = False,
    return_weights: bool = False,
    **options: Unpack[Options],
) -> Tensor | tuple[Tensor, Tensor]:
    """ring_attention by another way: tokens are exchanged for heads, each rank attends with its
    heads over the whole sequence, and heads are exchanged for tokens.

    The ranks must divide the heads of query, and the key heads or be a multiple of them. The
    position has the parameters of all heads; each rank uses and trains those of its own. Arguments
    and results are those of ring_attention, without mode.
    """
    how = {"layout": layout, "mode": "ring", "reduce_position": reduce_position}
    return _on_ranks(
        "ulysses_attention",
        _sharing_heads,
        (query, key, value),
        group,
        how,
        (cu_seqlens, cu_seqlens_k),
        (return_lse, return_weights),
        options,
    )


def _sharing_heads(group: Any) -> tuple[Team, Team]:
    """No keys travel: all ranks of the group share the heads."""
    ring, heads = teams(group)
    if heads.ranks > 1:
        raise ValueError("group: expected one axis; ring_attention takes a mesh (ring, heads)")
    return ALONE, ring


def _on_ranks(
    name: str,
    teams_of: Callable[[Any], tuple[Team, Team]],
    tensors: Sequence[Tensor],
    group: Any,
    how: dict[str, Any],
    packed: Any,
    returns: tuple[bool, bool],
    options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """The function of this name, in which the ranks form two teams."""
    check_names(name, options)
    how["reduce_position"] = flag("reduce_position", how["reduce_position"])
    return_lse, return_weights = flag("return_lse", returns[0]), returns[1]

    def attend(tensors: Sequence[Tensor], group: Any) -> tuple[Tensor, Tensor]:
        return _attend(tensors, options, return_weights, packed, how, teams_of(group))

    out, lse = of_shards(tensors, group, attend)
    return (out, lse) if return_lse else out


def _attend(
    tensors: Sequence[Tensor],
    options: Any,
    return_weights: bool,
    packed: Any,
    how: Any,
    where: tuple[Team, Team],
) -> tuple[Tensor, Tensor]:
    ring, heads = where
    local, failure, spans, options = None, None, None, dict(options)
    if _has_own_parts(options):
        spans = agree_on_spans(tensors, options, ring, heads)
    try:
        own = set()
        if spans is not None:
            summed_by = [t for t in where if t.ranks > 1] if how["reduce_position"] else []
            position, own = terms_for_all(tensors, options, packed, spans, summed_by)
            options["position"] = position
        local = LocalCall.of(tensors, options, return_weights, packed, how)
        local.own = own
        check_heads(local.tensors, heads.ranks)
    except Exception as error:  # agree raises it, when the other ranks know
        failure = error
    device = tensors[0].device if isinstance(tensors[0], Tensor) else "cpu"
    agreed = _agree(local, failure, ring, heads, device)
    assert local is not None
    seed = None if local.call.seed is None else torch.tensor(agreed["seed"])
    if heads.ranks == 1:
        return _attend_ring(local, agreed["ring"], seed, where)
    layout = how["layout"] if ring.ranks == 1 else "contiguous"
    q_runs, k_runs = (held(n, layout, agreed["heads"][n]) for n in ("query", "key"))
    if ring.ranks == 1:
        local.how = how | {"layout": "contiguous"}
    local = with_own_heads(local, q_runs, k_runs, heads)
    out, lse = _attend_ring(local, agreed["ring"], seed, where)
    out, lse = (exchange(x, q_runs, heads.group, to_heads=False) for x in (out, lse.unsqueeze(-1)))
    return out, lse.squeeze(-1)


def _agree(
    local: LocalCall | None, failure: Exception | None, ring: Team, heads: Team, device: Any
) -> dict[str, Any]:
    """Lengths of queries and keys of the ranks of both teams, and the seed of dropout. Raises on
    every rank of both where one refuses its arguments or its call differs."""
    call = {} if local is None else local.description()
    numbers = [0] * 6  # as many as agree_on_spans: a rank may be there by mistake
    if local is not None:
        query, key, _ = local.tensors
        numbers[:3] = [query.shape[2], key.shape[2], int(local.call.seed or 0)]

    def join(rows: Sequence[Sequence[int]]) -> list[int]:
        q_lengths, k_lengths, seeds, *rest = zip(*rows, strict=True)
        return [sum(q_lengths), sum(k_lengths), seeds[0], *(0 for _ in rest)]

    *both, joined = agree_in_teams(ring, heads, call, numbers, failure, device, join)
    found: dict[str, Any] = {"seed": joined[2]}
    for name, rows in zip(("heads", "ring"), both, strict=True):
        found[name] = {"query": [row[0] for row in rows], "key": [row[1] for row in rows]}
    return found


def _has_own_parts(options: Mapping[str, Any]) -> bool:
    """Whether some parts of the position are lowered; what is no position is refused later."""
    try:
        return lowers(options.get("position"))
    except (TypeError, ValueError):
        return False


def _attend_ring(
    local: LocalCall, lengths: Any, seed: Any, where: tuple[Team, Team]
) -> tuple[Tensor, Tensor]:
    ring = where[0]
    geometry = _place(local, lengths, ring)
    inputs = Inputs.of(local.call.position, list(local.call.parameters))
    tensors = list(inputs.tensors)
    for n in inputs.cumulative:
        tensors[n] = Cumulative.apply(tensors[n], geometry, ring.group)
    trained = inputs.trained()
    # In double, so that a piece's gradients are not rounded before they are added up.
    inputs.tensors = [
        t.detach().double() if n in trained and t.requires_grad else t.detach()
        for n, t in enumerate(tensors)
    ]
    padding = local.call.key_padding_mask
    shared = _shared(local, seed)
    if local.reads_length:
        shared = shared._replace(length=geometry.length())
    if ring.ranks > 2:  # of two, a rank holds no more than two blocks' gradients anyway
        geometry = geometry.with_halved_keys()
    pieces = Pieces(geometry, shared, inputs, padding is not None)
    ahead = 1 if local.how["mode"] == "ring" else max(1, ring.ranks - 1)
    summed_by = [t.group for t in where if t.ranks > 1] if local.how["reduce_position"] else []
    round_trip = Ring(pieces, ring.group, ahead, summed_by, local.own)
    return RingAttention.apply(*local.tensors, round_trip, padding, *tensors)


def _place(local: LocalCall, lengths: Any, ring: Team) -> Geometry:
    """Where all ranks stand; raises on every rank where one's positions are refused."""
    geometry, failure = None, None
    try:
        geometry = geometry_of(local, lengths, ring.rank)
    except Exception as error:
        failure = error
    ranged = local.call.key_lo is not None or local.packed[0] is not None
    if ring.ranks > 1 and (ranged or local.call.q_positions is not None):
        spans = [0] * 12 if geometry is None else geometry.own_spans()
        agreed = agree(ring.group, {}, spans, failure, local.tensors[0].device)
        if geometry is not None:
            geometry.learn(agreed)
    elif failure is not None:  # of what is the same on every rank
        raise failure
    assert geometry is not None
    return geometry


def _shared(local: LocalCall, seed: Any) -> Call:
    """What holds for every piece."""
    nothing = dict.fromkeys(
        ("key_padding_mask", "q_offset", "q_offsets", "k_offsets", "q_positions", "k_positions")
    )
    shared = local.call._replace(**nothing, k_offset=0, key_lo=None, key_hi=None, seed=seed)
    shared = shared._replace(adds_sinks=False)
    if local.packed[0] is not None:  # key ranges hold them
        shared = shared._replace(is_causal=False, window=None)
    return shared
