"""On what a function of a pair depends: proved by the flow of data through its graph."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from relpos._flex.score import INSTEAD, READS, Unfit

Function = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, ...]]
# The names of sources: batch row, head, query, key, and key - query.
B, H, Q, K, D = "b", "h", "q_idx", "kv_idx", "kv_idx - q_idx"
INDICES = (B, H, Q, K)


class Value(NamedTuple):
    """What is known of one value: q q_idx + k kv_idx + a function of rest."""

    q: float = 0.0
    k: float = 0.0
    rest: frozenset[str] = frozenset()
    captured: bool = False  # a tensor from outside the function is in it
    by_q: bool = False  # rows of a captured tensor, read by the query itself
    by_k: bool = False
    of_pairs: bool = False  # holds a number of a captured tensor that has one for each pair
    marks: frozenset[str] = frozenset()  # what may be the reason why it fits no term
    codes: frozenset[int] = frozenset()  # the integers of pairs, by place, through which it depends
    free: frozenset[str] = frozenset()  # the indices on which it depends in another way, too

    @property
    def sources(self) -> frozenset[str]:
        if not self.q and not self.k:
            return self.rest
        if self.q == -self.k:
            return self.rest | {D}
        return self.rest | ({Q} if self.q else set()) | ({K} if self.k else set())


class Indexing(torch.overrides.TorchFunctionMode):
    """table[h, q_idx] reads by tensors of no axes, which Python's indexing makes numbers of."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(each, torch.SymInt) for each in index):
                raise Unfit(READS, INSTEAD)
            if any(isinstance(each, Tensor) for each in index) and all(map(_plain, index)):
                return torch.ops.aten.index(args[0], [_as_index(each) for each in index])
        return func(*args, **(kwargs or {}))


def _plain(index: Any) -> bool:
    if isinstance(index, Tensor):
        return not index.is_floating_point() and index.dtype != torch.bool
    return index == slice(None) or (isinstance(index, int) and not isinstance(index, bool))


def _as_index(index: Any) -> Tensor | None:
    if isinstance(index, slice):
        return None
    return index.long() if isinstance(index, Tensor) else torch.tensor(index)


class _StandIns(torch.overrides.TorchFunctionMode):
    """Plain tensors in place of those of torch.func's transforms, which make_fx takes for numbers
    that nothing has made: of their shapes, with numbers that differ."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(Tensor, self._plain, (tuple(args), kwargs or {}))
        return func(*args, **kwargs)

    def _plain(self, tensor: Tensor) -> Tensor:
        if not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return tensor
        if id(tensor) not in self._made:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                shape, dtype = tuple(tensor.shape), tensor.dtype
                made = torch.zeros(shape, dtype=dtype)
                if dtype.is_floating_point:
                    made = torch.arange(made.numel(), dtype=dtype).sin().view(shape)
            self._made[id(tensor)] = tensor, made
        return self._made[id(tensor)][1]


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Outside of the transforms of torch.func."""
    if not torch._C._are_functorch_transforms_active():
        yield
        return
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    with temporarily_clear_interpreter_stack(), _StandIns():
        yield


def trace(function: Function) -> list[Value]:
    """What is known of each of the tensors that it returns. A code is one of them: an integer or a
    bool that is a function of b, q_idx and kv_idx, by numbers of a captured tensor of pairs.

    Raises ValueError where a number of Python depends on an index or a captured tensor, and where
    the function draws numbers or changes a captured tensor.
    """
    given = [torch.zeros((), dtype=torch.int64) for _ in INDICES]
    traced = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False), Indexing():
            graph = traced(*given).graph
    except Exception as error:
        if not _reads_data(error):
            raise
        raise Unfit(READS, INSTEAD) from error
    return _flow(graph)


def _reads_data(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"DataDependentOutputException", "GuardOnDataDependentSymNode"})


def _flow(graph: torch.fx.Graph) -> list[Value]:
    known: dict[Node, Value] = {}
    names = iter(INDICES)
    returned = next(node for node in graph.nodes if node.op == "output").args[0]
    places = {node: place for place, node in reversed(list(enumerate(returned)))}
    for node in graph.nodes:
        if node.op == "placeholder":
            name = next(names)
            known[node] = Value(
                q=float(name == Q),
                k=float(name == K),
                rest=frozenset({name} - {Q, K}),
                free=frozenset({name}),
            )
        elif node.op == "get_attr":
            known[node] = Value(captured=True)
        elif node.op == "call_function":
            value = _called(node, known)
            if node in places and _is_code(node, value):
                value = value._replace(codes=frozenset({places[node]}), free=frozenset())
            known[node] = value
    return [known[each] for each in returned]


def _is_code(node: Node, value: Value) -> bool:
    dtype = node.meta["val"].dtype
    whole = not dtype.is_floating_point and not dtype.is_complex
    return whole and value.of_pairs and H not in value.sources


def _called(node: Node, known: dict[Node, Value]) -> Value:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return _joined(known[each] for each in node.all_input_nodes)
    if torch.Tag.nondeterministic_seeded in target.tags:
        raise Unfit(f"random numbers, by {target}", "draw them before the call")
    name = target._schema.name.removeprefix("aten::")
    if name == "_local_scalar_dense":
        raise Unfit(READS, INSTEAD)
    if target._schema.is_mutable and name not in _RESHAPES:
        raise Unfit(f"{name}, which changes a tensor in place", "make a new one")
    return _value(name, node, known)


_VIEWS = {"view", "unsqueeze", "squeeze", "expand", "alias", "detach", "select", "slice", "permute"}
_VIEWS |= {"transpose", "t", "_unsafe_view", "reshape"}
_SAME = {"lift_fresh_copy", "lift_fresh", "clone", "alias", "detach", "_to_copy"}
_RESHAPES = {"squeeze_", "unsqueeze_", "transpose_", "t_", "detach_"}  # numbers stay
_FILLED = {"new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like"}
_COMPARED = {"eq", "ne", "lt", "le", "gt", "ge"}
_QUOTIENTS = {"floor_divide", "remainder", "fmod", "bitwise_and", "__rshift__"}
_QUOTIENTS |= {"bitwise_right_shift"}
_PRODUCTS = {"dot", "vdot", "mv", "mm", "bmm", "sum", "addmm", "linalg_vecdot", "mean"}
_EXACT = {None, torch.int64, torch.int32, torch.float64, torch.float32}


def _joined(values: Iterable[Value]) -> Value:
    """A function of some values, about which nothing else is known."""
    values = list(values)
    return Value(
        rest=frozenset().union(*(value.sources for value in values)),
        captured=any(value.captured for value in values),
        of_pairs=any(value.of_pairs for value in values),
        marks=frozenset().union(*(value.marks for value in values)),
        codes=frozenset().union(*(value.codes for value in values)),
        free=frozenset().union(*(value.free for value in values)),
    )


def _value(name: str, node: Node, known: dict[Node, Value]) -> Value:
    values = [known[each] for each in node.all_input_nodes]
    joined = _joined(values)
    if name in _FILLED:  # which look at shape and dtype alone
        return Value()
    first, *others = node.args or (None,)
    of = known.get(first) if isinstance(first, Node) else None
    if of is not None:
        linear = _linear(name, node, known)
        if linear is not None:
            q, k, rest = linear
            return _marked(joined._replace(q=q, k=k, rest=rest), name, values)
    if name in _SAME | _VIEWS and of is not None:
        return joined._replace(by_q=of.by_q, by_k=of.by_k)
    if name == "index" and of is not None and of.captured:
        read = [known[each] for each in others[0] if isinstance(each, Node)]
        by_q = of.by_q or any(_is_index(each, each.q, each.k) for each in read)
        by_k = of.by_k or any(_is_index(each, each.k, each.q) for each in read)
        return joined._replace(by_q=by_q, by_k=by_k, of_pairs=joined.of_pairs or (by_q and by_k))
    return _marked(joined, name, values)


def _is_index(value: Value, own: float, other: float) -> bool:
    """Whether it is the query, or the key, itself, but for a shift."""
    return abs(own) == 1 and other == 0 and not value.rest & {Q, K, D}


def _linear(
    name: str, node: Node, known: dict[Node, Value]
) -> tuple[float, float, frozenset[str]] | None:
    """The coefficients of q_idx and kv_idx, and what else it depends on; None: not linear."""
    a = known[node.args[0]]
    if name == "neg":
        return -a.q, -a.k, a.rest
    if name in _SAME | _VIEWS:
        return (a.q, a.k, a.rest) if _exact(node) else None
    if len(node.args) < 2 or name not in {"add", "sub", "rsub", "mul", "div", *_COMPARED}:
        return None
    other = node.args[1]
    is_number = isinstance(other, (int, float))
    b = Value() if is_number else known[other]
    if name in ("mul", "div"):
        if not is_number or other == 0 or node.kwargs.get("rounding_mode") is not None:
            return None
        by = other if name == "mul" else 1 / other
        return a.q * by, a.k * by, a.rest
    alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
    if name == "add":
        return a.q + alpha * b.q, a.k + alpha * b.k, a.rest | b.rest
    if name == "rsub":
        return b.q - alpha * a.q, b.k - alpha * a.k, a.rest | b.rest
    q, k, rest = a.q - alpha * b.q, a.k - alpha * b.k, a.rest | b.rest
    if name in _COMPARED:  # which looks at the difference alone
        return 0.0, 0.0, Value(q, k, rest).sources
    return q, k, rest


def _exact(node: Node) -> bool:
    """Whether a conversion keeps numbers as they are."""
    to, given = node.kwargs.get("dtype"), node.args[0].meta["val"].dtype
    return to in _EXACT and (to is None or to.is_floating_point or not given.is_floating_point)


def _marked(value: Value, name: str, values: list[Value]) -> Value:
    marks = set(value.marks)
    if value.q and value.k and value.q != -value.k:
        marks.add("sum")
    sides = [value.sources & {Q, K, D} for value in values]
    if (name in _QUOTIENTS or name == "div") and any(side in ({Q}, {K}) for side in sides):
        marks.add("quotient")
    if {Q} in sides and {K} in sides and all(value.captured for value in values):
        marks.add("rows" if name in _PRODUCTS | {"mul"} else "coordinates")
    return value._replace(marks=frozenset(marks))
