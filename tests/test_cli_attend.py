"""relpos attend on files, against the formulas of the papers in plain float64 NumPy."""

import json
import math
import os
import signal
import subprocess
import time

import numpy as np
import pytest
from cli_tool import TOOL, call, npy_bytes, output, refusal, report, safetensors_bytes, save
from patience import heed_interrupts, timeout
from safetensors.numpy import load_file, save_file

RNG = np.random.default_rng(7)


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def softmax_attention(q, k, v, bias=0.0, allowed=True, scale=None, cap=None):
    """out, lse, weights in float64; heads of k and v are repeated to those of q."""
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    k, v = (np.repeat(a, q.shape[-3] // a.shape[-3], axis=-3) for a in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    scores = scores if cap is None else cap * np.tanh(scores / cap)
    scores = np.where(allowed, scores + bias, -np.inf)
    top = np.maximum(scores.max(-1, keepdims=True, initial=-1e300), -1e300)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + top)[..., 0]
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return weights @ v, np.where(total[..., 0] > 0, lse, -np.inf), weights


def rotated_half(x, positions, base=10000.0):
    """RoPE of Su et al., pairs (p, p + d / 2)."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * base ** (-np.arange(half) / half)
    a, b = x[..., :half].astype(np.float64), x[..., half:].astype(np.float64)
    return np.concatenate(
        [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1
    )


def t5_bucket(n, buckets, max_distance):
    """One-sided buckets of Raffel et al. for n = query - key."""
    n, exact = max(n, 0), buckets // 2
    if n < exact:
        return n
    large = exact + math.log(n / exact) / math.log(max_distance / exact) * (buckets - exact)
    return min(int(large + 1e-9), buckets - 1)


def close(got, want, bar=2e-6):
    assert got.shape == want.shape
    np.testing.assert_allclose(
        got, want, rtol=0, atol=bar * np.abs(want[np.isfinite(want)]).max(initial=1)
    )


def inputs(folder, **arrays):
    """--query ... --out o.npy for these arrays, and the folder's path of out."""
    paths = save(folder, **arrays)
    words = [w for name, path in zip(arrays, paths, strict=True) for w in (f"--{name}", path)]
    return ["attend", *words, "--out", folder / "o.npy"]


def test_plain_attention(tmp_path):
    q, k, v = normal(2, 3, 5, 8), normal(2, 3, 7, 8), normal(2, 3, 7, 6)
    words = inputs(tmp_path, query=q, key=k, value=v)
    result = call(*words, "--lse", tmp_path / "l.npy")
    assert (result.returncode, result.stdout) == (0, "")
    assert len(result.stderr.splitlines()) == 1
    out, lse, _ = softmax_attention(q, k, v)
    close(np.load(tmp_path / "o.npy"), out)
    close(np.load(tmp_path / "l.npy"), lse)
    assert np.load(tmp_path / "o.npy").dtype == np.float32
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["query.npy", "key.npy", "value.npy", "o.npy", "l.npy"]
    )


@pytest.mark.parametrize("path", ["fused", "reference"])
def test_rope_and_t5_with_grouped_heads_and_a_cache(tmp_path, path):
    q, k, v = normal(2, 4, 6, 16), normal(2, 2, 20, 16), normal(2, 2, 20, 16)
    table = normal(32, 4)
    save_file({"relative_attention_bias.weight": table}, tmp_path / "p.safetensors")
    words = inputs(tmp_path, query=q, key=k, value=v)
    words += ["--position", "rope(layout=half) + t5(buckets=32, bidirectional=false)"]
    words += ["--params", tmp_path / "p.safetensors", "--causal", "--enable-gqa", "--path", path]
    assert "q_offset" in refusal(*words)
    summary = report(*words, "--q-offset", 14)
    at, keys = np.arange(14, 20), np.arange(20)
    buckets = [[t5_bucket(i - j, 32, 128) for j in keys] for i in at]
    bias = np.moveaxis(table.astype(np.float64)[buckets], -1, 0)
    want, _, _ = softmax_attention(
        rotated_half(q, at), rotated_half(k, keys), v, bias, keys <= at[:, None]
    )
    close(np.load(tmp_path / "o.npy"), want)
    assert summary["query"] == [2, 4, 6, 16]
    assert summary["path"] == path
    assert [p["from"] for p in summary["parameters"]] == ["file"]


@pytest.mark.parametrize(
    ("position", "ours", "theirs", "transposed"),
    [
        ("t5(buckets=8)", "relative_attention_bias.weight", "rel_embedding", True),
        ("t5(buckets=8)", "relative_attention_bias.weight", "rel_pos_embeddings.weight", False),
        (
            "shaw(max_distance=2,values=false,distance=query-key)",
            "key_table",
            "distance_embedding.weight",
            False,
        ),
    ],
)
def test_parameters_under_their_origins_names(tmp_path, position, ours, theirs, transposed):
    q, k, v = normal(2, 4, 6, 8), normal(2, 4, 6, 8), normal(2, 4, 6, 8)
    table = normal(8, 4) if position.startswith("t5") else normal(5, 8)
    outs = []
    for name, tensor in (
        (ours, table),
        (theirs, np.ascontiguousarray(table.T) if transposed else table),
    ):
        save_file({name: tensor}, tmp_path / "p.safetensors")
        words = inputs(tmp_path, query=q, key=k, value=v)
        words += ["--position", position, "--params", tmp_path / "p.safetensors"]
        assert [p["from"] for p in report(*words)["parameters"]] == ["file"]
        outs.append(np.load(tmp_path / "o.npy"))
    assert np.array_equal(*outs)
    if transposed:
        save_file({theirs: table}, tmp_path / "p.safetensors")
        assert f"tensor '{theirs}': expected shape [4, 8], got [8, 4]" in refusal(*words)


def test_backward_of_a_bias_and_of_shaw(tmp_path):
    """Gradients equal central differences of the float64 formula."""
    heads, length, dim, reach = 2, 6, 4, 2
    q, k, v, dout = (normal(1, heads, length, dim, dtype=np.float64) for _ in range(4))
    tables = {
        "biases": normal(heads, 2 * reach + 1, dtype=np.float64),
        "key_table": normal(2 * reach + 1, dim, dtype=np.float64),
        "value_table": normal(2 * reach + 1, dim, dtype=np.float64),
    }
    save_file(tables, tmp_path / "p.safetensors")
    words = inputs(tmp_path, query=q, key=k, value=v, backward=dout)
    words += ["--grads", tmp_path / "g", "--params", tmp_path / "p.safetensors", "--causal"]
    words += ["--position", f"bias_rpe(max_distance={reach + 1})+shaw(max_distance={reach})"]
    summary = report(*words)

    delta = np.subtract.outer(np.arange(length), np.arange(length))  # query - key
    late = delta.clip(-reach, reach) + reach
    early = (-delta).clip(-reach, reach) + reach

    def loss(dq, dk, dv, biases, key_table, value_table):
        rows = np.einsum("bhid,ijd->bhij", dq, key_table[early]) / math.sqrt(dim)
        out, _, weights = softmax_attention(dq, dk, dv, biases[:, late] + rows, delta >= 0)
        return ((out + np.einsum("bhij,ijd->bhid", weights, value_table[early])) * dout).sum()

    arguments = {"dq": q, "dk": k, "dv": v, **tables}
    assert set(summary["gradients"]) == set(arguments)
    for name, array in arguments.items():
        want = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            sides = []
            for step in (1e-5, -1e-5):
                moved = array.copy()
                moved[index] += step
                sides.append(loss(**{**arguments, name: moved}))
            want[index] = (sides[0] - sides[1]) / 2e-5
        got = np.load(tmp_path / "g" / f"{name}.npy")
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, want, atol=1e-8, rtol=1e-6, err_msg=name)
    unused = np.load(tmp_path / "g" / "key_table.npy")[reach + 1 :]
    assert (unused == 0).all()


def test_equal_names_carry_their_part(tmp_path):
    q = normal(1, 2, 5, 4)
    tables = {f"{n}.biases": normal(2, 3) for n in (0, 1)}
    save_file(tables, tmp_path / "p.safetensors")
    words = inputs(tmp_path, query=q, key=q, value=q, backward=q)
    words += ["--grads", tmp_path, "--params", tmp_path / "p.safetensors"]
    words += ["--position", "bias_rpe(max_distance=2)+bias_rpe(max_distance=2)"]
    summary = report(*words)
    assert list(summary["gradients"]) == ["dq", "dk", "dv", "0.biases", "1.biases"]
    index = np.subtract.outer(np.arange(5), np.arange(5)).clip(-1, 1) + 1
    bias = (tables["0.biases"] + tables["1.biases"])[:, index]
    close(np.load(tmp_path / "o.npy"), softmax_attention(q, q, q, bias)[0])
    np.testing.assert_array_equal(
        np.load(tmp_path / "0.biases.npy"), np.load(tmp_path / "1.biases.npy")
    )


def test_masks_windows_scale_and_positions(tmp_path):
    q, k, v = normal(2, 2, 6, 8), normal(2, 2, 9, 8), normal(2, 2, 9, 8)
    mask, padding = RNG.random((6, 9)) < 0.7, RNG.random((2, 9)) < 0.3
    offsets = np.array([1, 4])
    save(tmp_path, mask=mask, padding=padding, offsets=offsets, added=normal(1, 2, 6, 9))
    words = inputs(tmp_path, query=q, key=k, value=v)
    output(*words, "--mask", tmp_path / "mask.npy", "--scale", 0.5)
    close(np.load(tmp_path / "o.npy"), softmax_attention(q, k, v, 0, mask, 0.5)[0])
    output(*words, "--mask", tmp_path / "added.npy", "--softcap", 0.7)
    added = np.load(tmp_path / "added.npy")
    close(np.load(tmp_path / "o.npy"), softmax_attention(q, k, v, added, cap=0.7)[0])

    output(*words, "--key-padding-mask", tmp_path / "padding.npy", "--window", "2,-1", "--q-offset",
           tmp_path / "offsets.npy")  # fmt: skip
    at = offsets[:, None] + np.arange(6)
    allowed = (np.arange(9) >= at[..., None] - 2) & ~padding[:, None]
    close(np.load(tmp_path / "o.npy"), softmax_attention(q, k, v, 0, allowed[:, None])[0])

    words_with_mask = [
        *words,
        "--mask",
        tmp_path / "added.npy",
        "--window=-1,0",
        "--q-offset",
        "-2",
    ]
    output(*words_with_mask, "--lse", tmp_path / "l.npy")
    allowed = np.arange(9) <= np.arange(-2, 4)[:, None]
    out, lse, _ = softmax_attention(q, k, v, added, allowed)
    got = np.load(tmp_path / "o.npy")
    close(got, out)
    assert (got[:, :, :2] == 0).all()
    np.testing.assert_array_equal(np.isneginf(np.load(tmp_path / "l.npy")), np.isneginf(lse))

    save(tmp_path, qp=np.array([3, 1, 9, 2, 0, 5]), kp=np.arange(9) * 2)
    output(*words, "--q-positions", tmp_path / "qp.npy", "--k-positions", tmp_path / "kp.npy",
           "--position", "alibi(slopes=[1, 0.5])")  # fmt: skip
    distance = np.abs(np.subtract.outer([3, 1, 9, 2, 0, 5], np.arange(9) * 2))
    bias = -np.array([1, 0.5])[:, None, None] * distance
    close(np.load(tmp_path / "o.npy"), softmax_attention(q, k, v, bias)[0])


@pytest.mark.parametrize("rank", [2, 3])
def test_missing_leading_axes(tmp_path, rank):
    q, k, v = (normal(5, 8) if rank == 2 else normal(3, 5, 8) for _ in range(3))
    words = inputs(tmp_path, query=q, key=k, value=v, backward=q)
    output(*words, "--lse", tmp_path / "l.npy", "--grads", tmp_path)
    wide = [a.reshape((-1, *a.shape[-2:])) for a in (q, k, v)]
    out, lse, _ = softmax_attention(*wide)
    close(np.load(tmp_path / "o.npy"), out.reshape(q.shape))
    close(np.load(tmp_path / "l.npy"), lse.reshape(q.shape[:-1]))
    assert np.load(tmp_path / "dq.npy").shape == q.shape


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_dtypes(tmp_path, dtype):
    q, k, v = (normal(1, 2, 9, 8, dtype=dtype) for _ in range(3))
    output(*inputs(tmp_path, query=q, key=k, value=v), "--position", "alibi")
    got = np.load(tmp_path / "o.npy")
    assert got.dtype == dtype
    distance = np.abs(np.subtract.outer(np.arange(9), np.arange(9)))
    slopes = np.array([2.0**-4, 2.0**-8])[:, None, None]
    roundings = 1 if dtype == np.float16 else 8  # float16 rounds a float32 result once
    want = softmax_attention(q, k, v, -slopes * distance)[0]
    close(got, want, roundings * np.finfo(dtype).eps)


def test_bfloat16_travels_in_safetensors(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch
    from safetensors.torch import save_file as save_torch

    tensors = {n: torch.randn(1, 2, 6, 8).bfloat16() for n in ("query", "key", "value", "backward")}
    words = ["attend"]
    for name, tensor in tensors.items():
        save_torch({name: tensor}, tmp_path / f"{name}.safetensors")
        words += [f"--{name}", tmp_path / f"{name}.safetensors"]
    words += ["--grads", tmp_path]
    assert ".safetensors" in refusal(*words, "--out", tmp_path / "o.npy")
    output(*words, "--out", tmp_path / "o.safetensors")
    got = load_torch(tmp_path / "o.safetensors")["o"]
    assert got.dtype == torch.bfloat16
    q, k, v = (tensors[n].double().numpy() for n in ("query", "key", "value"))
    close(got.double().numpy(), softmax_attention(q, k, v)[0], 2**-8)
    assert load_torch(tmp_path / "dq.safetensors")["dq"].dtype == torch.bfloat16


def test_float32_products_of_bfloat16_files(tmp_path):
    """--float32-products writes the bits of RELPOS_BF16=float32, which are not the unit's."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    names = ("query", "key", "value", "backward")
    for name in names:
        tensor = {name: torch.randn(1, 2, 40, 32).bfloat16()}
        save_torch(tensor, tmp_path / f"{name}.safetensors")
    words = ["attend", "--grads", ".", "--out", "o.safetensors"]
    words += [word for name in names for word in (f"--{name}", f"{name}.safetensors")]

    def bits(*more, products=""):
        environment = {"RELPOS_TARGET": "amx_emulated", "RELPOS_BF16": products}
        output(*words, *more, cwd=tmp_path, env=environment)
        return [(tmp_path / f"{n}.safetensors").read_bytes() for n in ("o", "dq", "dk", "dv")]

    asked = bits("--float32-products")
    assert asked == bits(products="float32")
    assert all(own != unit for own, unit in zip(asked, bits(), strict=True))


def test_files_of_any_order_and_version(tmp_path):
    q, k, v = normal(1, 2, 5, 4), normal(1, 2, 5, 4), normal(1, 2, 5, 4)
    words = inputs(tmp_path, query=np.asfortranarray(q), key=k[:, :, ::-1][:, :, ::-1], value=v)
    with open(tmp_path / "value.npy", "wb") as file:
        np.lib.format.write_array(file, v, version=(2, 0))
    output(*words)
    close(np.load(tmp_path / "o.npy"), softmax_attention(q, k, v)[0])
    save_file({"any": q}, tmp_path / "q.safetensors")
    words[2] = tmp_path / "q.safetensors"
    output(*words[:-1], tmp_path / "o.safetensors")
    close(load_file(tmp_path / "o.safetensors")["o"], softmax_attention(q, k, v)[0])


def test_dropout_follows_the_seed_and_threads_change_nothing(tmp_path):
    q = normal(1, 2, 64, 16)
    words = inputs(tmp_path, query=q, key=q, value=q)
    outs = []
    for seed, threads in ((1, 1), (1, 2), (2, 1)):
        output(*words, "--dropout", 0.4, "--seed", seed, "--threads", threads)
        outs.append((tmp_path / "o.npy").read_bytes())
    assert outs[0] == outs[1] != outs[2]


def test_drawn_parameters_and_a_partial_file(tmp_path):
    q = normal(1, 2, 5, 4)
    save_file({"value_table": normal(3, 4)}, tmp_path / "p.safetensors")
    words = inputs(tmp_path, query=q, key=q, value=q)
    words += ["--position", "shaw(max_distance=1)", "--params", tmp_path / "p.safetensors"]
    result = call(*words, "--json")
    assert result.returncode == 0
    assert "key_table" in result.stderr
    parameters = json.loads(result.stdout)["parameters"]
    assert [(p["name"], p["from"]) for p in parameters] == [
        ("key_table", "init"),
        ("value_table", "file"),
    ]
    assert call(*words, "--quiet").stderr == ""


def test_empty_lengths(tmp_path):
    q, k = normal(1, 2, 3, 4), normal(1, 2, 0, 4)
    output(*inputs(tmp_path, query=q, key=k, value=k))
    np.testing.assert_array_equal(np.load(tmp_path / "o.npy"), np.zeros_like(q))
    output(*inputs(tmp_path, query=k, key=q, value=q))
    assert np.load(tmp_path / "o.npy").shape == (1, 2, 0, 4)


GOOD = npy_bytes((1, 2, 5, 4), data=bytes(160))


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "only 0 bytes"),
        (GOOD[:40], "truncated"),
        (GOOD[:-1], "the file has 159"),
        (GOOD + b"x", "the file has 161"),
        (npy_bytes((2**62, 2, 5, 4), data=bytes(160)), "overflows"),
        (npy_bytes((2**62,), "|b1", data=bytes(160)), "the file has 160"),
        (npy_bytes((1, 2, 5, 4), ">f4", bytes(160)), "big-endian"),
        (npy_bytes((1, 2, 5, 4), "|O", bytes(160)), "pickled"),
        (npy_bytes((1, 2, 5, 4), "<i4", bytes(160)), "int32"),
        (npy_bytes((40,), data=bytes(160)), "rank 4"),
        (npy_bytes((1, 1, 2, 5, 4), data=bytes(160)), "rank 4"),
        (npy_bytes((1, 2, 4, 5), data=bytes(160)), "[1, 2, 4, 5]"),
        (npy_bytes((1, 2, 5, 2), "<f8", bytes(160)), "float"),
        (safetensors_bytes({}), "not a .npy file"),
    ],
)
def test_bad_files_are_refused_before_anything_is_written(tmp_path, data, part):
    words = inputs(
        tmp_path, query=normal(1, 2, 5, 4), key=normal(1, 2, 5, 4), value=normal(1, 2, 5, 4)
    )
    (tmp_path / "key.npy").write_bytes(data)
    assert part in refusal(*words)
    assert not (tmp_path / "o.npy").exists()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--position", "t6"], "did you mean"),
        (["--position", "t5(bukets=3)"], "buckets"),
        (["--position", "t5("], "position"),
        (["--position", "alibi(slopes=[nan, 1])"], "finite"),
        (["--position", "rope"], "layout"),
        (["--position", "t5(heads=3)"], "heads"),
        (["--params", "p.npy"], "p.npy"),
        (["--window", "3"], "--window"),
        (["--window", "3,x"], "--window"),
        (["--window=-2,0"], "window"),
        (["--dropout", "1.5"], "dropout"),
        (["--dropout", "nan"], "dropout"),
        (["--scale", "x"], "--scale"),
        (["--scale", "nan"], "scale"),
        (["--softcap", "0"], "softcap"),
        (["--path", "fast"], "--path"),
        (["--mask", "absent.npy"], "absent.npy"),
        (["--mask", "query.npy"], "attn_mask"),
        (["--backward", "query.npy"], "--grads"),
        (["--backward", "short.npy", "--grads", "g"], "dout"),
        (["--lse", "l.txt"], ".npy"),
        (["--lse", "absent/l.npy"], "absent"),
        (["--q-offset", "1.5"], "--q-offset"),
        (["--caussal"], "did you mean --causal?"),
    ],
)
def test_bad_arguments_are_one_line(tmp_path, words, part):
    arrays = {name: normal(1, 2, 5, 4) for name in ("query", "key", "value")}
    call_words = inputs(tmp_path, **arrays)
    save(tmp_path, short=normal(1, 2, 4, 4))
    assert part in refusal(*call_words, *words, cwd=tmp_path)
    assert not (tmp_path / "o.npy").exists()


def test_required_files_are_named():
    assert "--query" in refusal("attend")


def test_an_interrupt_ends_with_130_and_writes_nothing(tmp_path):
    long = np.zeros((1, 8, 16384, 64), np.float32)
    words = inputs(tmp_path, query=long, key=long, value=long)
    process = subprocess.Popen(
        [TOOL, *map(str, words), "--path", "reference"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    time.sleep(timeout(0.5))
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=timeout(20))
    assert process.returncode == 130, text
    assert text == "relpos attend: interrupted\n"
    assert not os.path.exists(tmp_path / "o.npy")
