"""Other libraries' attention on the CPU. Each peer makes a call without gradients:

make(q, k, v, causal, bias) -> a function that computes [B, H, Lq, D] in the library's own layout,
and show(result) -> that as a torch tensor. Inputs are laid out beforehand, not in the time.
bias is None or a ready float mask [1, H, Lq, Lk]. Refused says why a peer has no such call.
"""

import importlib.metadata
from collections.abc import Callable
from typing import Any

import torch
from case import first_line
from torch import Tensor
from torch.nn import functional


class Refused(RuntimeError):
    """Not installed, not for this machine, or no such operation."""


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def same(result: Tensor) -> Tensor:
    return result


Made = tuple[Callable[[], Any], Callable[[Any], Tensor]]


def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, bias: Tensor | None) -> Made:
    def call():
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal)

    return call, same


def flex(q: Tensor, k: Tensor, v: Tensor, causal: bool, bias: Tensor | None) -> Made:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    options: dict[str, Any] = {}
    if causal:
        options["block_mask"] = create_block_mask(
            lambda b, h, i, j: i >= j, None, None, q.shape[2], k.shape[2], device="cpu"
        )
    if bias is not None:
        options["score_mod"] = lambda score, b, h, i, j: score + bias[0, h, i, j]
    return lambda: compiled(q, k, v, **options), same


def zentorch(q: Tensor, k: Tensor, v: Tensor, causal: bool, bias: Tensor | None) -> Made:
    try:
        import zentorch  # noqa: F401  registers the backend
    except Exception as error:  # it may also refuse the CPU or the torch it finds
        raise Refused(f"zentorch: {first_line(error)}") from error

    def attend(q, k, v, bias):
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal)

    compiled = torch.compile(attend, backend="zentorch", dynamic=False)
    return lambda: compiled(q, k, v, bias), same


def onnx_runtime(q: Tensor, k: Tensor, v: Tensor, causal: bool, bias: Tensor | None) -> Made:
    """com.microsoft.MultiHeadAttention on [B, L, H D]."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise Refused(f"ONNX Runtime: {first_line(error)}") from error
    if q.dtype != torch.float32:
        raise Refused(f"ONNX Runtime: its CPU kernel takes float32, not {q.dtype}")
    batch, heads, _, dim = q.shape

    def flat(x):
        return x.transpose(1, 2).reshape(batch, -1, heads * dim).contiguous().numpy()

    feed = {"query": flat(q), "key": flat(k), "value": flat(v)}
    if bias is not None:
        feed["attention_bias"] = bias.numpy()
    names = ["query", "key", "value", "", "", "attention_bias"]
    node = onnx.helper.make_node(
        "MultiHeadAttention",
        names if bias is not None else names[:3],
        ["out"],
        domain="com.microsoft",
        num_heads=heads,
        unidirectional=int(causal),
    )

    def info(name, shape):
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

    graph = onnx.helper.make_graph(
        [node],
        "attention",
        [info(name, array.shape) for name, array in feed.items()],
        [info("out", feed["query"].shape)],
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Its idle threads would spin into the turns of the others; calls here take milliseconds.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )

    def show(result):
        return torch.from_numpy(result[0]).view(batch, -1, heads, dim).transpose(1, 2)

    return lambda: session.run(None, feed), show


TORCH = "torch SDPA"
PEERS: dict[str, Callable[..., Made]] = {
    TORCH: sdpa,
    "torch FlexAttention compiled": flex,
    "zentorch": zentorch,
    "ONNX Runtime": onnx_runtime,
}


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "zentorch", "onnxruntime")}
