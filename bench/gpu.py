"""The kernels of the GPU against PyTorch's own: a table of milliseconds and TFLOP/s. It needs
relpos and a CUDA build of torch, which brings Triton.

python bench/gpu.py [--lengths 2048 8192] [--dtype bfloat16] [--small]

--small runs everything once on few tokens, also without a GPU under RELPOS_GPU=interpret: times
mean nothing there."""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import relpos
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

HEADS, HEAD_DIM = 16, 128
FORWARD, BACKWARD = 2, 5  # products of pairs and dims that are counted, as by others


class Shape(NamedTuple):
    batch: int
    heads: int
    length: int
    head_dim: int

    def operations(self, products: int, causal: bool) -> float:
        pairs = self.batch * self.heads * self.length**2
        return products * 2.0 * pairs * self.head_dim / (2 if causal else 1)


class Side(NamedTuple):
    """A way to compute a row: its call, and what it trains besides query, key and value."""

    call: Callable[..., Tensor]
    trained: tuple[Tensor, ...] = ()


def positions(shape: Shape, causal: bool, device: str) -> dict[str, tuple[Any, tuple[Tensor, ...]]]:
    """What is measured, by its name in the table, and what it trains."""
    heads, dim = shape.heads, shape.head_dim
    factor = torch.randn(*shape[:3], 16, device=device)
    made = {
        "T5 table that is not trained": relpos.T5Bias(heads, bidirectional=not causal),
        "T5 table": relpos.T5Bias(heads, bidirectional=not causal),
        "BiasRPE of 1023 distances": relpos.BiasRPE(heads, max_distance=512),
        "ALiBi": relpos.ALiBi(heads),
        "KERPLE": relpos.KerpleLog(heads),
        "RoPE": relpos.RoPE(dim, layout="half"),
        "Shaw, m 64": relpos.Shaw(64, dim, value_dim=dim),
        "DeBERTa": relpos.DeBERTa(heads, dim),
        "Transformer-XL": relpos.TransformerXL(heads, dim),
        "Inkling": relpos.Inkling(rank=16, extent=1024),
        "Music Transformer": relpos.MusicTransformer(shape.length, dim) if causal else None,
    }
    made["T5 table that is not trained"].requires_grad_(False)
    found: dict[str, Any] = {"no position": (None, ())}
    for name, module in made.items():
        if module is not None:
            position = module.to(device)
            trained = tuple(p for p in position.parameters() if p.requires_grad)
            found[name] = position(factor) if name == "Inkling" else position, trained
    xlnet = relpos.XLNet(heads, dim).to(device)
    segments = (torch.arange(shape.length, device=device) * 4 // shape.length).expand(
        shape.batch, -1
    )
    found["XLNet, segments too"] = xlnet(segments, segments), tuple(xlnet.parameters())
    numbers = torch.randn(heads, 64, device=device, requires_grad=True)
    classes = torch.randint(64, (shape.length,) * 2, dtype=torch.uint8, device=device)
    pairs = relpos.terms.PairBias(numbers, relpos.PairClasses(classes))
    found["Graphormer, 64 classes of pairs"] = pairs, (numbers,)
    return found


def sides(shape: Shape, causal: bool, device: str, peers: bool) -> Iterator[tuple[str, Any]]:
    """(name, Side, or why there is none)."""

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=causal)

    yield "SDPA", Side(plain)
    for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION") if peers else ():

        def by(q: Tensor, k: Tensor, v: Tensor, name: str = name) -> Tensor:
            with sdpa_kernel(getattr(SDPBackend, name)):
                return plain(q, k, v)

        yield f"SDPA by {name}", Side(by)
    all_ = positions(shape, causal, device)
    for name, (position, trained) in all_.items():

        def call(q: Tensor, k: Tensor, v: Tensor, of: Any = position) -> Tensor:
            return relpos.attention(q, k, v, position=of, is_causal=causal)

        yield f"relpos, {name}", Side(call, trained)
    t5, _ = all_["T5 table"]
    yield "FlexAttention, T5 table", flex(t5, causal, shape) if peers else "not run here"


def flex(t5: Any, causal: bool, shape: Shape) -> Any:
    """FlexAttention with a captured table that is trained, compiled."""
    try:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    except ImportError as error:
        return str(error)
    classes = t5.cpu().indices(1, 2 * shape.length - 1, q_offset=shape.length - 1)[0].cuda()
    table = t5.cuda().relative_attention_bias.weight
    compiled = torch.compile(flex_attention)

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return s + table[classes[j - i + shape.length - 1], h]

    def sees(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return j <= i

    length = shape.length
    mask = create_block_mask(sees, None, None, length, length) if causal else None
    return Side(
        lambda q, k, v: compiled(q, k, v, score, mask, kernel_options={"bwd_num_stages": 1}),
        (table,),
    )


def milliseconds(run: Callable[[], Any], device: str, rounds: int) -> float:
    """The median of some rounds, of fewer where they take a second, after two: one that compiles,
    and one that says how long they take. Calls follow each other, as in training, so that what
    Python does before a launch counts where it takes longer than the kernels before."""
    run()
    started = time.perf_counter()
    run()
    if device == "cpu":
        return 1000.0 * (time.perf_counter() - started)
    torch.cuda.synchronize()
    rounds = max(2, min(rounds, int(1.0 / (time.perf_counter() - started))))
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(marks))


def measured(
    side: Side, shape: Shape, dtype: torch.dtype, device: str, rounds: int
) -> tuple[list[float], int]:
    """Milliseconds of forward, and of forward and backward, and the MiB that both take at once
    beyond inputs and outputs."""
    *qkv, dout = (torch.randn(shape, device=device, dtype=dtype) for _ in range(4))
    leaves = [x.requires_grad_() for x in qkv]

    def forward() -> Tensor:
        with torch.no_grad():
            return side.call(*qkv)

    def both() -> Any:
        return torch.autograd.grad(side.call(*leaves), (*leaves, *side.trained), dout)

    times = [milliseconds(run, device, rounds) for run in (forward, both)]
    if device == "cpu":
        return times, 0
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = both()
    returned = sum(x.nbytes for x in found) + dout.nbytes  # gradients, and out
    return times, (torch.cuda.max_memory_allocated() - before - returned) >> 20


def long(dtype: str) -> None:
    """A training step of two heads over many tokens, of two lengths."""
    for length in (65536, 131072):
        shape = Shape(1, 2, length, HEAD_DIM)
        t5 = relpos.T5Bias(2, bidirectional=False).cuda()

        def call(q: Tensor, k: Tensor, v: Tensor, t5: Any = t5) -> Tensor:
            return relpos.attention(q, k, v, position=t5, is_causal=True)

        side = Side(call, tuple(t5.parameters()))
        (forward, both), memory = measured(side, shape, getattr(torch, dtype), "cuda", 2)
        text = ", ".join(map(str, shape))
        print(f"| {text} | relpos, T5 table, causal | {forward:.3f} | | {both:.3f} | | {memory} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--small", action="store_true", help="few tokens, one round")
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not chosen.small:
        parser.error(
            "no CUDA device: run it where there is one, or with --small in the interpreter"
        )
    what = torch.cuda.get_device_name() if device == "cuda" else "Triton's interpreter"
    print(f"{what}, torch {torch.__version__}, {chosen.dtype}")
    print("| B, H, L, D | row | forward ms | TFLOP/s | forward + backward ms | TFLOP/s | MiB |")
    print("|---|---|---|---|---|---|---|")
    for length in [64] if chosen.small else chosen.lengths:
        sizes = (1, 2, length, 16) if chosen.small else (2, HEADS, length, HEAD_DIM)
        shape = Shape(*sizes)
        for causal in (False, True):
            for name, side in sides(shape, causal, device, peers=device == "cuda"):
                label = f"| {', '.join(map(str, shape))} | {name}{', causal' if causal else ''} |"
                if isinstance(side, str):
                    print(f"{label} not timed: {side} | | | | |")
                    continue
                times, memory = measured(
                    side, shape, getattr(torch, chosen.dtype), device, chosen.rounds
                )
                counted = (FORWARD, FORWARD + BACKWARD)
                cells = [
                    f"{ms:.3f} | {shape.operations(products, causal) / ms / 1e9:.1f}"
                    for ms, products in zip(times, counted, strict=True)
                ]
                print(f"{label} {' | '.join(cells)} | {memory} |", flush=True)
    if device == "cuda":
        long(chosen.dtype)
    counts = relpos.gpu.launches()
    print("launches:", ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))


if __name__ == "__main__":
    main()
