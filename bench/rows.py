"""Every row of the bench: what each compares, and what this project wants it to reach.

The rows of schemes come from the registry; CHOSEN has at most a line for each.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import contests
import own
import relpos
import ring
import scaling
import steps
import torch
from case import (
    NO_TARGET,
    PEAK,
    UNITS,
    Call,
    Case,
    Row,
    Sides,
    Target,
    against_plain,
    compare,
    growth,
    ratio,
    speedup,
    with_unit,
)
from clock import Budget, timer
from formulas import FULL, LONG, Shape
from relpos._position.classes import class_of
from torch import Tensor, nn
from torch.nn import functional

TINY = (1, 1, 12, 12, 64)
CACHE = (1, 32, 1, 32768, 128)


@dataclass
class Chosen:
    options: dict[str, Any] = field(default_factory=dict)  # beside the required ones
    causal: bool = False
    shape: Shape = FULL
    forward: Target = NO_TARGET  # times plain
    backward: Target = NO_TARGET
    page: int = 0  # coordinates that are given are drawn below it; 0: those of a text


# A scheme that the registry lacks is a row that says so.
CHOSEN = {
    "t5": Chosen(forward=(1.04, 1.01), backward=(1.06, 1.02)),
    "rope": Chosen({"layout": "half"}, forward=(1.06, 1.03), backward=(1.06, 1.03)),
    "shaw": Chosen({"max_distance": 64}, forward=(1.12, 1.08), backward=(1.4, 1.25)),
    "music_transformer": Chosen(causal=True, forward=(1.55, 1.5), backward=(1.7, 1.62)),
    "attention_sink": Chosen(forward=(1.01, None), backward=(1.01, None)),
    "xpos": Chosen(forward=(1.25, 1.12), backward=(1.3, 1.15)),
    "dynamic_bias": Chosen(forward=(1.2, 1.1), backward=(1.4, 1.2)),
    "swin_v2": Chosen(forward=(1.35, None), backward=(1.6, None)),
    **dict.fromkeys(
        ("conformer", "transformer_xl", "gemma_audio"),
        Chosen(forward=(1.9, 1.75), backward=(2.1, 1.95)),
    ),
    "relative_key": Chosen(forward=(2.4, 2.2), backward=(2.8, 2.5)),
    "axial_deeplab": Chosen(forward=(3.1, 2.8), backward=(3.5, 3.1)),
    "funnel": Chosen(forward=(2.9, 2.8), backward=(3.5, 3.1)),
    "fire": Chosen({"init_L": 4096}),  # by distance alone below it
    "deberta": Chosen(forward=(2.1, 1.55), backward=(2.3, 1.8)),
    "decomposed": Chosen(shape=(1, 12, 4096, 4096, 64), forward=(1.12, None)),  # SAM
    "layout": Chosen(shape=(1, 12, 709, 709, 64), forward=(1.8, None), page=1000),
}


def construct(name: str, shape: Shape, chosen: dict[str, Any], page: int = 0) -> Any:
    """A position of the scheme; sizes that must be given are those of the call, else its length,
    or the side of a square of its tokens. Inputs are drawn as the scheme's example says."""
    scheme = next((s for s in relpos.schemes() if s.name == name), None)
    if scheme is None:
        raise ValueError(f"no scheme {name} in this build's registry")
    sizes = {"heads": shape[1], "head_dim": shape[4]}

    def required(option: Any) -> Any:
        if option.choices:
            return option.choices[0]
        return math.isqrt(shape[3]) if option.type == "values" else sizes.get(option.name, shape[3])

    options = {o.name: required(o) for o in scheme.options if o.required} | chosen
    position = class_of(scheme)(**options)
    inputs = [spec for spec in scheme.describe(**options).parameters if spec.input]
    if not inputs:
        return position
    named = ("batch", "heads", "queries", "keys", "head_dim")
    of_call = dict(zip(named, shape[:5], strict=True))
    drawn = []
    for spec in inputs:
        tensor = torch.empty([of_call.get(n, n) for n in spec.example])
        if spec.trainable:
            drawn.append(tensor.uniform_(spec.low, spec.high))
        elif page:
            drawn.append(torch.randint(0, page, tensor.shape))
        else:
            of_tokens = torch.arange(tensor.shape[-1]) % int(spec.high + 1)
            drawn.append(of_tokens.expand(tensor.shape).contiguous())
    return position(*drawn)


def scheme_cases() -> list[Case]:
    cases = []
    for name in dict.fromkeys([*(s.name for s in relpos.schemes()), *CHOSEN]):
        chosen = CHOSEN.get(name, Chosen())
        said = [f"{option}={value}" for option, value in chosen.options.items()]
        label = ", ".join([name, *said, *(["causal"] if chosen.causal else [])])
        make = functools.partial(construct, name, chosen.shape, chosen.options, chosen.page)
        for end, target in (("forward", chosen.forward), ("backward", chosen.backward)):
            both = {"backward": end == "backward", "is_causal": chosen.causal}
            cases.append(against_plain(f"{label}, {end}", make, chosen.shape, target, **both))
    return cases


def position_cases() -> list[Case]:
    """Positions that are no run: documents that each start at 0; windows of 12 x 12 patches."""
    patches = torch.arange(144)
    rows = (
        ("t5, packed positions, forward", lambda: relpos.T5Bias(8), FULL,
         torch.arange(2048) % 701),
        ("bias_rpe, windows of 12 x 12, forward", lambda: relpos.BiasRPE(8, 265),
         (16, 8, 144, 144, 64), patches // 12 * 23 + patches % 12),
    )  # fmt: skip
    return [
        against_plain(name, make, shape, (1.25, 1.05), q_positions=ids, k_positions=ids)
        for name, make, shape, ids in rows
    ]


def softcap_cases() -> list[Case]:
    def case(end: str, target: Target, **more: Any) -> Case:
        return against_plain(f"softcap, {end}", lambda: None, FULL, target, softcap=50.0, **more)

    return [case("forward", (1.2, None)), case("backward", (1.25, None), backward=True)]


def mask_cases() -> list[Case]:
    """A mask of the call's own shape, half of it hidden or all of it added, against none."""

    def case(dtype: torch.dtype, target: Target) -> Case:
        def sides() -> Sides:
            mask = (
                torch.randn(FULL[1:4]).to(dtype)
                if dtype.is_floating_point
                else (torch.rand(FULL[1:4]) < 0.5)
            )
            masked, plain = Call(FULL, attn_mask=mask), Call(FULL)
            return {"relpos": masked.forward, "without a mask": plain.forward}

        name = f"mask, {str(dtype).removeprefix('torch.')}, forward"
        return Case(name, "x of none", target, compare(sides, ratio), better="lower")

    return [
        case(torch.bool, (1.15, 1.05)),
        case(torch.float32, (1.15, 1.05)),
        case(torch.bfloat16, (1.2, 1.05)),
        case(torch.float16, NO_TARGET),
    ]


def neighborhood_cases() -> list[Case]:
    """Neighbourhoods of 13 x 13 in an image of 64 x 64 with a trained bias, against all pairs
    without a bias."""
    heads, side = 4, 64

    def case(dim: int, backward: bool, target: Target) -> Case:
        shape = (1, heads, side * side, side * side, dim)

        def sides() -> Sides:
            mask = relpos.TileMask.neighborhood((side, side), 13)
            bias = relpos.SwinBias(heads, window=[side, side])
            few, every = Call(shape, bias, attn_mask=mask), Call(shape)
            return {"relpos": few.side(backward), "plain": every.side(backward)}

        end = "backward" if backward else "forward"
        name = f"neighbourhoods of 13 x 13 in 64 x 64, Swin's bias, D {dim}, {end}"
        return Case(name, "x faster", target, compare(sides, speedup))

    return [
        case(dim, backward, (5, 8) if backward else (6.5, 8))
        for dim in (32, 64)
        for backward in (False, True)
    ]


def flops_of(shape: Shape, causal: bool, backward: bool) -> float:
    """Of plain attention: 4 B H Lq Lk D forward, 10 backward, half when causal."""
    batch, heads, queries, keys, dim = shape
    return (10 if backward else 4) * batch * heads * queries * keys * dim / (2 if causal else 1)


def peak_case(
    name: str, shape: Shape, target: Target, causal=False, backward=False, **more
) -> Case:
    """Values are GFLOP/s; the peak of the run makes them percentages."""
    run = compare(
        lambda: {"relpos": Call(shape, is_causal=causal).side(backward)},
        lambda seconds: 1e-9 * flops_of(shape, causal, backward) / seconds,
    )
    return Case(name, PEAK, target, run, **more)


def peak_cases() -> list[Case]:
    cases = []
    full = {1024: (70, 80), 2048: (77, 85), 4096: (79, 87), 8192: (79, 87)}
    causal = {1024: (60, 72), 2048: (70, 80), 4096: (75, 84), 8192: (77, 85)}
    backward = dict.fromkeys((2048, 4096), (74, 84))
    causal_backward = dict.fromkeys((2048, 4096), (68, 80))
    for name, targets, options in (
        ("forward", full, {}),
        ("forward, causal", causal, {"causal": True}),
        ("backward", backward, {"backward": True}),
        ("backward, causal", causal_backward, {"causal": True, "backward": True}),
    ):
        for n, target in targets.items():
            cases.append(peak_case(f"{name}, L {n}", (1, 8, n, n, 64), target, **options))
    for dim, target in {32: (66, 78), 80: (70, 80), 128: (79, 87), 256: (76, 84)}.items():
        cases.append(peak_case(f"forward, D {dim}", (1, 8, 2048, 2048, dim), target))
    for dim, target in {32: (60, 75), 128: (74, 84)}.items():
        shape = (1, 8, 2048, 2048, dim)
        cases.append(peak_case(f"backward, D {dim}", shape, target, backward=True))
    cases.append(peak_case("short: B 8, H 8, L 128, D 64", (8, 8, 128, 128, 64), (55, 68)))
    apart = {"environment": {"RELPOS_TARGET": "avx2"}}
    cases.append(peak_case("AVX2 target, L 4096, forward", LONG, (76, 82), **apart))
    name = "AVX2 target, L 4096, backward"
    cases.append(peak_case(name, LONG, (70, 80), backward=True, **apart))
    return cases


def cache_call(dtype: torch.dtype = torch.float32) -> Call:
    return Call(CACHE, relpos.ALiBi(CACHE[1]), dtype, q_offset=CACHE[3] - 1)


def decode() -> Sides:
    """Both read the same memory: another block may lie farther away and read half as fast."""
    call, threads = cache_call(), torch.get_num_threads()

    def read() -> None:
        for x in call.qkv[1:]:
            timer().relpos_bench_read(threads, x.data_ptr(), x.numel())

    return {"relpos": call.forward, "plain reading": read}


def narrow(dtype: torch.dtype, make: Callable[[torch.dtype], Call], backward: bool = False):
    """The same call in 16 bits and in float32."""

    def sides() -> Sides:
        name = str(dtype).removeprefix("torch.")
        both = ((name, dtype), ("float32", torch.float32))
        return {name: make(dtype).side(backward) for name, dtype in both}

    return compare(sides, speedup)


def unit_cases() -> list[Case]:
    """bfloat16 in the units that multiply it, against our float32."""

    def case(unit: str, end: str, target: Target) -> Case:
        run = narrow(torch.bfloat16, lambda dtype: Call(LONG, dtype=dtype), end == "backward")
        name = f"{UNITS[unit]}, bfloat16 {end}, L 4096, against our float32"
        return Case(name, "x", target, with_unit(unit, run))

    return [
        case("avx512_bf16", "forward", (1.6, 1.9)),
        case("avx512_bf16", "backward", (1.5, 1.8)),
        case("amx", "forward", (3.5, 6)),
        case("amx", "backward", (2.5, 5)),
    ]


def two_threads() -> Sides:
    before, call = torch.get_num_threads(), Call(FULL)
    if before < 2:
        raise ValueError("needs two threads, has one")

    def on(count: int) -> None:
        torch.set_num_threads(count)
        try:
            call.forward()
        finally:
            torch.set_num_threads(before)

    return {"two threads": lambda: on(2), "one thread": lambda: on(1)}


def falling_bias() -> Sides:
    shape = (1, 8, 16384, 16384, 64)
    plain, alibi = Call(shape, is_causal=True), Call(shape, relpos.ALiBi(8), is_causal=True)
    return {"ALiBi": alibi.forward, "plain": plain.forward}


def tiny_call(position: Any = None) -> Sides:
    """The cost of a call that computes next to nothing."""
    q, k, v = (torch.randn(TINY[:2] + TINY[3:]) for _ in range(3))

    def ours() -> Tensor:
        return relpos.attention(q, k, v, position=position)

    def sdpa() -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v)

    if position is None:
        contests.difference([ours()], [sdpa()])
    return {"relpos": ours, "torch SDPA": sdpa}


def tiny_call_of_cpp() -> Sides:
    q, k, v = (torch.randn(TINY[:2] + TINY[3:]) for _ in range(3))
    out = torch.empty_like(q)

    def calls(count: int) -> None:
        pointers = [x.data_ptr() for x in (q, k, v, out)]
        timer().relpos_bench_call(*pointers, TINY[2], TINY[4], count)

    calls(1)
    contests.difference([out], [functional.scaled_dot_product_attention(q, k, v)])
    return {"1000 calls": lambda: calls(1000)}


def memory(case: Case, _: Budget) -> list[Row]:
    """The peak of a forward and a backward pass beyond their inputs and results."""
    results: list[Tensor] = []
    for length in (256, 131072):  # the first: stacks of threads, and code
        call = Call((1, 1, length, length, 64), relpos.T5Bias(1), is_causal=True)
        grown = growth(lambda call=call: results.extend([call.graph[0], *call.backward()]))
    beyond = grown - sum(x.nbytes for x in (*results[-5:], call.graph[1]))
    value = beyond / sum(x.nbytes for x in call.qkv)
    return [case.row(values=[value], seconds={}, rates=[], note=f"{1e-6 * beyond:.1f} MB")]


def training_loop() -> Sides:
    """Four blocks of linear layers and attention, forward and backward, beside the linear layers
    alone and attention alone, on the same shapes and with ready gradients."""
    batch, length, heads, width, blocks = 8, 256, 8, 512, 4
    layers = [nn.ModuleList(nn.Linear(width, width) for _ in range(4)) for _ in range(blocks)]
    positions = [relpos.T5Bias(heads) for _ in range(blocks)]
    x = torch.randn(batch, length, width, requires_grad=True)
    dout = torch.randn(batch, length, width)

    def split(y):
        return y.view(batch, length, heads, -1).transpose(1, 2)

    def projected(linears, y):
        return [split(linear(y)) for linear in linears[:3]]

    def join(y):
        return y.transpose(1, 2).reshape(batch, length, width)

    def loop():
        y = x
        for linears, position in zip(layers, positions, strict=True):
            y = linears[3](join(relpos.attention(*projected(linears, y), position=position)))
        y.backward(dout)

    qkv = [t.detach().requires_grad_() for t in projected(layers[0], x)]
    out = relpos.attention(*qkv, position=positions[0])
    dheads = split(torch.randn(batch, length, width))
    joined = out.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()

    def linear_alone():
        for linears in layers:
            torch.autograd.backward(projected(linears, x), [dheads] * 3)
            linears[3](join(joined)).backward(dout)

    def attention_alone():
        for position in positions:
            relpos.attention(*qkv, position=position).backward(dheads)

    return {"loop": loop, "linear alone": linear_alone, "attention alone": attention_alone}


def call_cases() -> list[Case]:
    def long_call(dtype: torch.dtype) -> Call:
        return Call(LONG, dtype=dtype)

    def python_call(make: Callable[[], Any]):
        return torch.no_grad()(compare(lambda: tiny_call(make()), ratio))

    low: dict[str, Any] = {"better": "lower"}
    return [
        Case("decode, cache 32768, ALiBi", "% of read bandwidth", (75, 90),
             compare(decode, lambda ours, reading: 100 * reading / ours)),
        Case("decode, bfloat16 cache against float32", "x", (1.5, 1.9),
             narrow(torch.bfloat16, cache_call)),
        Case("float16 forward, L 4096, against our float32", "x", (0.95, 1),
             narrow(torch.float16, long_call)),
        Case("two threads against one", "x", (1.88, 1.95), compare(two_threads, speedup)),
        Case("ALiBi, causal, L 16384, against plain causal", "x faster", (1.7, 2.5),
             compare(falling_bias, speedup)),
        Case("training loop of linear layers and attention", "% over its parts", (8, 3),
             compare(training_loop, lambda whole, a, b: 100 * (whole / (a + b) - 1)), **low),
        Case("L 131072, H 1, causal, trained bias, forward + backward: memory", "x of q, k and v",
             (2, 1), memory, environment={}, once=True, **low),
        Case("call, B 1, H 1, L 12, C++", "us", (2.5, None),
             compare(tiny_call_of_cpp, lambda seconds: 1e3 * seconds), **low),
        Case("call, B 1, H 1, L 12, Python", "x of SDPA", (1.25, 1.1),
             python_call(lambda: None), **low),
        Case("call, B 1, H 1, L 12, t5, Python", "x of SDPA without a bias", (1.5, 1.3),
             python_call(lambda: relpos.T5Bias(1)), **low),
    ]  # fmt: skip


def all_cases() -> list[Case]:
    return [
        *peak_cases(), *scheme_cases(), *position_cases(), *softcap_cases(), *mask_cases(),
        *neighborhood_cases(), *own.cases(),
        *call_cases(), *unit_cases(),
        *scaling.cases(), *ring.cases(), *contests.cases(), *steps.cases(),
    ]  # fmt: skip
