"""What ranks exchange: first what they were called with, then tensors."""

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from relpos._base.errors import kind_of, wrong_type, wrong_value


class Team(NamedTuple):
    """The ranks of a group, this one among them."""

    group: Any
    rank: int
    ranks: int


ALONE = Team(None, 0, 1)


def teams(group: Any) -> tuple[Team, Team]:
    """Those among whom keys travel, and those who share the heads of one shard, of a group or a
    DeviceMesh."""
    if not isinstance(group, DeviceMesh):
        if group is not None and not isinstance(group, dist.ProcessGroup):
            wanted = "a ProcessGroup, a DeviceMesh of one or two axes or None"
            raise wrong_type("group", wanted, kind_of(group))
        if not dist.is_initialized():
            raise RuntimeError(
                "group: torch.distributed has no group yet; call "
                "torch.distributed.init_process_group first"
            )
        return team(group), ALONE
    if group.ndim > 2:
        raise wrong_value("group", "a DeviceMesh of one or two axes (ring, heads)", group.ndim)
    found = [team(group.get_group(axis)) for axis in range(group.ndim)]
    return found[0], found[1] if len(found) == 2 else ALONE


def team(group: Any) -> Team:
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError("group: expected one that this rank belongs to")
    return Team(group, rank, dist.get_world_size(group))


def agree(
    group: Any,
    call: dict[str, Any],
    numbers: Sequence[int],
    failure: Exception | None,
    device: Any,
) -> list[list[int]]:
    """The numbers of every rank. Raises on every rank where one refuses its arguments
    (`failure`), or where the descriptions of their calls differ."""
    text = repr(sorted(call.items()))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    code = int.from_bytes(digest, "big", signed=True)
    own = torch.tensor([code, failure is not None, *numbers], dtype=torch.int64, device=device)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    with explained("telling the other ranks what this one was called with"):
        dist.all_gather(gathered, own, group=group)
    found = [row.tolist() for row in gathered]
    failed = [bool(row[1]) for row in found]
    if any(failed) or len({row[0] for row in found}) > 1:
        _refuse(group, call, failure, failed)
    return [row[2:] for row in found]


def agree_in_teams(
    ring: Team,
    heads: Team,
    call: dict[str, Any],
    numbers: list[int],
    failure: Exception | None,
    device: Any,
    join: Callable[[Sequence[Sequence[int]]], list[int]],
) -> list[Any]:
    """The numbers of every rank of one's heads team, then those of every rank of one's ring, each
    the numbers of its heads team joined, then these joined. Raises as agree, on the ranks of both.
    """
    found: list[Any] = []
    for members in (heads, ring):
        rows = [numbers]
        try:
            if members.ranks > 1:
                rows = agree(members.group, call, numbers, failure, device)
        except Exception as error:
            failure = failure or error
        numbers = join(rows)
        found.append(rows)
    if failure is not None:
        raise failure
    return [*found, numbers]


def _refuse(group: Any, call: dict[str, Any], failure: Any, failed: list[bool]) -> None:
    calls: list[Any] = [None] * len(failed)
    dist.all_gather_object(calls, (call, str(failure)), group=group)
    if failure is not None:
        raise failure
    if any(failed):
        rank = failed.index(True)
        raise ValueError(f"rank {rank} of the group refused its arguments: {calls[rank][1]}")
    for name in sorted(call):
        if any(name not in theirs for theirs, _ in calls):
            continue
        values = [theirs[name] for theirs, _ in calls]
        for rank, value in enumerate(values):
            if value != values[0]:
                raise ValueError(
                    f"{name}: expected the same on every rank, got {values[0]} on rank 0 and "
                    f"{value} on rank {rank} of the group"
                )
    raise ValueError(
        f"call: expected the same options on every rank, got {[theirs for theirs, _ in calls]}"
    )


@contextlib.contextmanager
def explained(doing: str) -> Iterator[None]:
    """Errors of torch.distributed say what was being done."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"relpos.distributed: {doing} failed: a rank has died, left the group, or not come "
            f"within the group's timeout. {error}"
        ) from error


@dataclass
class Traffic:
    """What relpos.distributed has done between ranks in this process."""

    sent_bytes: int = 0  # of tensors, to other ranks
    waited_seconds: float = 0.0  # for tensors that were not there when they were needed


TOTAL = Traffic()


def traffic() -> Traffic:
    """Bytes sent and seconds waited by this process so far."""
    return replace(TOTAL)


class Transfer:
    """Tensors on their way: sends to one rank, receipts from another."""

    def __init__(self, group: Any, first_tag: int = 0) -> None:
        self.group, self.first_tag = group, first_tag
        self.operations: list[dist.P2POp] = []
        self.works: list[Any] = []
        self.peers: set[int] = set()

    def send(self, tensors: Iterable[Tensor], rank: int) -> "Transfer":
        for tag, tensor in enumerate(tensors, self.first_tag):
            wire = _wire(tensor)
            TOTAL.sent_bytes += wire.numel() * wire.element_size()
            self._add(dist.isend, wire, rank, tag)
        return self

    def receive(self, tensors: Iterable[Tensor], rank: int) -> "Transfer":
        for tag, tensor in enumerate(tensors, self.first_tag):
            self._add(dist.irecv, _wire(tensor), rank, tag)
        return self

    def _add(self, kind: Any, tensor: Tensor, rank: int, tag: int) -> None:
        if tensor.numel():
            self.peers.add(rank)
            peer = {"group_peer": rank}
            self.operations.append(dist.P2POp(kind, tensor, group=self.group, tag=tag, **peer))

    def start(self) -> "Transfer":
        if self.operations:
            with explained(self._doing()):
                self.works = dist.batch_isend_irecv(self.operations)
        return self

    def wait(self) -> None:
        begin = time.perf_counter()
        with explained(self._doing()):
            for work in self.works:
                work.wait()
        TOTAL.waited_seconds += time.perf_counter() - begin
        self.operations, self.works = [], []

    def _doing(self) -> str:
        ranks = ", ".join(str(rank) for rank in sorted(self.peers))
        return f"exchanging keys and values with rank {ranks} of the group"


def _wire(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor
