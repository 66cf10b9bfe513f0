"""relpos attend on files: what relpos.attention gives, in the files that are named."""

import numpy as np
import pytest
import relpos
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch

from tests.support.cli_tool import attend, call, normal, npy_bytes, output, refusal, report, save
from tests.support.oracle import gradients

QKV = ("query", "key", "value")


def drawn(*shape, dtype=torch.float32):
    return torch.from_numpy(normal(*shape)).to(dtype)


def close(got, want, bar=2e-6):
    largest = max([1.0, *want[want.isfinite()].abs().tolist()])
    torch.testing.assert_close(got, want, rtol=0, atol=bar * largest)


def inputs(folder, **arrays):
    """Words of a call whose output is o.npy."""
    return [*attend(folder, **arrays), "--out", folder / "o.npy"]


def words_of(folder, keywords):
    """Arguments of relpos.attention as words of the tool; tensors become files."""
    words = []
    if "key_range" in keywords:
        low, high = keywords["key_range"]
        keywords = {"key_lo": low, "key_hi": high}
    for name, value in keywords.items():
        said = {"attn_mask": "mask", "is_causal": "causal"}.get(name, name)
        flag = "--" + said.replace("_", "-")
        if isinstance(value, torch.Tensor):
            (value,) = save(folder, **{name: value.detach().numpy()})
        if isinstance(value, tuple):
            value = ",".join(map(str, value))
        words.append(flag if value is True else f"{flag}={value}")
    return words


def loaded(path):
    return torch.from_numpy(np.load(path))


def compare(folder, shapes, words=(), position=None, bar=2e-6, **keywords):
    """All outputs of a call with these shapes of q, k and v, which are those of relpos.attention;
    the parameters of the position are in a file. Returns the summary. `words` go to the tool alone,
    a dtype to the tensors."""
    dtype = keywords.pop("dtype", torch.float32)
    leaves = [drawn(*shape, dtype=dtype).requires_grad_() for shape in shapes]
    added = keywords.get("attn_mask", torch.ones(1).bool())
    leaves += [added.requires_grad_()] if added.is_floating_point() else []
    state = {} if position is None else dict(position.named_parameters())
    for parameter in state.values():
        torch.nn.init.normal_(parameter)
    missing = 4 - len(shapes[0])
    wide = [x[(None,) * missing] for x in leaves[:3]]
    found = relpos.attention(*wide, position=position, return_lse=True, **keywords)
    out, lse = (x[(0,) * missing] for x in found)
    dout = drawn(*out.shape, dtype=dtype)
    wanted = gradients([out], [dout], [*leaves, *state.values()])

    given = zip((*QKV, "backward"), [*leaves[:3], dout], strict=True)
    given = inputs(folder, **{name: x.detach() for name, x in given})
    given += ["--lse", folder / "l.npy", "--grads", folder / "g", *words]
    if state:
        save_torch({name: x.detach() for name, x in state.items()}, folder / "p.safetensors")
        given += ["--params", folder / "p.safetensors"]
    summary = report(*given, *words_of(folder, keywords))
    close(loaded(folder / "o.npy"), out.detach(), bar)
    close(loaded(folder / "l.npy"), lse.detach(), bar)
    for name, want in zip(summary["gradients"], wanted, strict=True):
        close(loaded(folder / "g" / f"{name}.npy"), want, 10 * bar)
    trained = [p for p in summary["parameters"] if p["name"] in summary["gradients"]]
    assert [p["from"] for p in trained] == ["file"] * len(state)
    return summary


SQUARE = [(2, 2, 6, 8)] * 3
LONG = [(2, 2, 6, 8), (2, 2, 9, 8), (2, 2, 9, 8)]
ADDED = {"attn_mask": drawn(1, 2, 6, 9)}
PADDING = {"key_padding_mask": drawn(2, 9) < -0.5}
CALLS = {
    "plain": ([(2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 6)], {}),
    "bool mask": (LONG, {"attn_mask": drawn(6, 9) < 0.5, "scale": 0.5}),
    "float mask": (LONG, ADDED | {"softcap": 0.7}),
    "padding": (LONG, PADDING | {"window": (2, -1), "q_offset": torch.tensor([1, 4])}),
    "rows that see nothing": (LONG, ADDED | {"window": (-1, 0), "q_offset": -2}),
    "offsets": (LONG, {"is_causal": True, "q_offset": 5, "k_offset": torch.tensor([2, 0])}),
    "key range": (LONG, {"key_range": (torch.arange(6), torch.tensor([9, 5, 4, 9, 4, 8]))}),
    "grouped heads": ([(4, 6, 8), (2, 9, 8), (2, 9, 8)], {"enable_gqa": True}),
    "two axes": ([(5, 8)] * 3, {}),
    "three axes": ([(3, 5, 8)] * 3, {}),
    "no keys": ([(1, 2, 3, 4), (1, 2, 0, 4), (1, 2, 0, 4)], {}),
    "no queries": ([(1, 2, 0, 4), (1, 2, 3, 4), (1, 2, 3, 4)], {}),
    "float16": (SQUARE, {"dtype": torch.float16, "bar": 2.0**-10}),
    "float64": (SQUARE, {"dtype": torch.float64, "bar": 2.0**-49}),
}


@pytest.mark.parametrize(("shapes", "keywords"), CALLS.values(), ids=CALLS)
def test_calls(tmp_path, shapes, keywords):
    summary = compare(tmp_path, shapes, **keywords)
    more = ["dmask"] if keywords.get("attn_mask") is ADDED["attn_mask"] else []
    assert list(summary["gradients"]) == ["dq", "dk", "dv", *more]


PLACES = {"q_positions": torch.tensor([3, 1, 9, 2, 0, 5]), "k_positions": 2 * torch.arange(9)}
POSITIONS = {
    "alibi": (lambda: relpos.ALiBi(2), [], {"q_offset": 3}),
    "alibi(slopes=[1, 0.5])": (lambda: relpos.ALiBi(2, slopes=[1.0, 0.5]), [], PLACES),
    "bias_rpe(max_distance=3)+shaw(max_distance=2)": (
        lambda: relpos.BiasRPE(2, 3) + relpos.Shaw(2, 8),
        ["biases", "key_table", "value_table"],
        {"is_causal": True, "q_offset": 3},
    ),
    "bias_rpe(max_distance=2)+bias_rpe(max_distance=2)": (
        lambda: relpos.BiasRPE(2, 2) + relpos.BiasRPE(2, 2),
        ["0.biases", "1.biases"],
        {"q_offset": 3},
    ),
}


@pytest.mark.parametrize("text", POSITIONS)
def test_positions(tmp_path, text):
    position, parameters, keywords = POSITIONS[text]
    summary = compare(tmp_path, LONG, ["--position", text], position(), **keywords)
    assert list(summary["gradients"]) == ["dq", "dk", "dv", *parameters]


def test_an_input_of_a_position(tmp_path):
    q, log_f = drawn(1, 2, 5, 4), -drawn(1, 2, 5).abs()
    words = [*inputs(tmp_path, query=q, key=q, value=q), "--position", "forgetting", "--causal"]
    assert "log_f is missing" in refusal(*words)
    (path,) = save(tmp_path, log_f=log_f.numpy())
    output(*words, "--input", f"log_f={path}")
    position = relpos.ForgettingGate()(log_f)
    close(loaded(tmp_path / "o.npy"), relpos.attention(q, q, q, position=position, is_causal=True))
    assert "has no input 'x'; it has log_f" in refusal(*words, "--input", f"x={path}")


def test_the_inputs_of_a_term(tmp_path):
    """A table for any distances and the class map are files; the gradient has the table's name."""
    q, dout, table = drawn(1, 2, 5, 4), drawn(1, 2, 5, 4), drawn(2, 9)
    files = {"table": table.numpy(), "first": np.array([-4])}
    table_file, first_file = save(tmp_path, **files)
    words = [*inputs(tmp_path, query=q, key=q, value=q, backward=dout), "--position"]
    words += ["distance_bias(map=clamp)", "--grads", tmp_path / "g"]
    given = ["--input", f"table={table_file}", "--input", f"first={first_file}"]
    summary = report(*words, *given)
    assert summary["parameters"][0] == {
        "name": "table", "shape": [2, 9], "dtype": "float32", "trainable": True, "from": "file"
    }  # fmt: skip
    assert list(summary["gradients"]) == ["dq", "dk", "dv", "table"]

    table.requires_grad_()
    rows = torch.arange(5)[None] - torch.arange(5)[:, None] + 4
    scores = (q @ q.mT) / 2 + table[:, rows]
    out = scores.softmax(-1) @ q
    (want,) = gradients([out], [dout], [table])
    close(loaded(tmp_path / "o.npy"), out.detach())
    close(loaded(tmp_path / "g" / "table.npy"), want, 1e-5)

    missing = "first is missing: the smallest distance of a row; give --input first=FILE.npy"
    assert missing in refusal(*words, *given[:2])
    assert "it has table, first" in refusal(*words, "--input", f"tabel={table_file}")
    wrong, rank = save(tmp_path, wrong=np.array([-4.0]), rank=np.zeros((2, 9, 1)))
    assert "tensor 'first': expected int64, got float64" in refusal(
        *words, "--input", f"first={wrong}"
    )
    said = refusal(*words, "--input", f"table={rank}")
    assert "tensor 'table': expected shape [any, any], got [2, 9, 1]" in said


@pytest.mark.parametrize("path", ["fused", "reference"])
def test_grouped_heads_and_a_cache(tmp_path, path):
    position = relpos.RoPE(16, layout="half") + relpos.T5Bias(4, bidirectional=False)
    words = ["--position", "rope(layout=half) + t5(buckets=32, bidirectional=false)"]
    shapes = [(2, 4, 6, 16), (2, 2, 20, 16), (2, 2, 20, 16)]
    keywords = {"is_causal": True, "enable_gqa": True, "q_offset": 14}
    summary = compare(tmp_path, shapes, [*words, "--path", path], position, **keywords)
    assert summary["query"] == [2, 4, 6, 16]
    assert summary["path"] == path
    unsaid = [f"--{n}={tmp_path / n}.npy" for n in QKV]
    unsaid += ["--out", tmp_path / "o.npy", "--causal", "--enable-gqa"]
    assert "q_offset" in refusal("attend", *unsaid, *words)


def test_it_writes_what_is_asked_for_and_says_one_line(tmp_path):
    result = call(*inputs(tmp_path), "--lse", tmp_path / "l.npy")
    assert (result.returncode, result.stdout) == (0, "")
    assert len(result.stderr.splitlines()) == 1
    assert {path.stem for path in tmp_path.iterdir()} == {*QKV, "o", "l"}


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


def in_bfloat16(folder, *shape):
    """Words of a call of files in bfloat16 with its gradients; query, key, value and dout."""
    tensors = {name: drawn(*shape, dtype=torch.bfloat16) for name in (*QKV, "backward")}
    words = ["attend", "--grads", folder]
    for name, tensor in tensors.items():
        save_torch({name: tensor}, folder / f"{name}.safetensors")
        words += [f"--{name}", folder / f"{name}.safetensors"]
    return words, tensors.values()


def test_bfloat16_travels_in_safetensors(tmp_path):
    words, (*inputs, _) = in_bfloat16(tmp_path, 1, 2, 6, 8)
    assert ".safetensors" in refusal(*words, "--out", tmp_path / "o.npy")
    output(*words, "--out", tmp_path / "o.safetensors")
    got = load_torch(tmp_path / "o.safetensors")["o"]
    assert got.dtype == torch.bfloat16
    close(got, relpos.attention(*inputs), 2**-8)
    assert load_torch(tmp_path / "dq.safetensors")["dq"].dtype == torch.bfloat16


def test_float32_products_of_bfloat16_files(tmp_path):
    """--float32-products writes the bits of RELPOS_BF16=float32, which are not the unit's."""
    words, _ = in_bfloat16(tmp_path, 1, 2, 40, 32)

    def bits(*more, products=""):
        environment = {"RELPOS_TARGET": "amx_emulated", "RELPOS_BF16": products}
        output(*words, *more, "--out", tmp_path / "o.safetensors", env=environment)
        return [(tmp_path / f"{n}.safetensors").read_bytes() for n in ("o", "dq", "dk", "dv")]

    asked = bits("--float32-products")
    assert asked == bits(products="float32")
    assert all(own != unit for own, unit in zip(asked, bits(), strict=True))


def test_files_of_any_order_and_version(tmp_path):
    """The same bits as from plain files."""
    q, k, v = normal(1, 2, 5, 4), normal(1, 2, 5, 4), normal(1, 2, 5, 4)
    words = inputs(tmp_path, query=q, key=k, value=v)
    output(*words)
    plain = np.load(tmp_path / "o.npy")
    np.save(tmp_path / "query.npy", np.asfortranarray(q))
    with open(tmp_path / "value.npy", "wb") as file:
        np.lib.format.write_array(file, v, version=(2, 0))
    output(*words)
    assert np.array_equal(np.load(tmp_path / "o.npy"), plain)
    save_file({"any": q}, tmp_path / "q.safetensors")
    words[1] = f"--query={tmp_path}/q.safetensors"
    output(*words[:-1], tmp_path / "o.safetensors")
    assert np.array_equal(load_file(tmp_path / "o.safetensors")["o"], plain)


def test_dropout_follows_the_seed_and_threads_change_nothing(tmp_path):
    q = normal(1, 2, 64, 16)
    words = inputs(tmp_path, query=q, key=q, value=q)
    outs = []
    for seed, threads in ((1, 1), (1, 2), (2, 1)):
        output(*words, "--dropout", 0.4, "--seed", seed, "--threads", threads)
        outs.append((tmp_path / "o.npy").read_bytes())
    assert outs[0] == outs[1] != outs[2]


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (npy_bytes((1, 2, 5, 4), data=bytes(159)), "the file has 159"),
        (npy_bytes((1, 2, 5, 4), "<i4", bytes(160)), "int32"),
        (npy_bytes((40,), data=bytes(160)), "rank 4"),
        (npy_bytes((1, 1, 2, 5, 4), data=bytes(160)), "rank 4"),
        (npy_bytes((1, 2, 4, 5), data=bytes(160)), "[1, 2, 4, 5]"),
        (npy_bytes((1, 2, 5, 2), "<f8", bytes(160)), "float"),
        (b"PK", "not a .npy file"),
    ],
)
def test_bad_files_are_refused_before_anything_is_written(tmp_path, data, part):
    """What cannot be read at all: src/io/npy_test.cc."""
    words = inputs(tmp_path)
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
        (["--softcap", "0"], "softcap"),
        (["--path", "fast"], "--path"),
        (["--mask", "absent.npy"], "absent.npy"),
        (["--mask", "query.npy"], "attn_mask"),
        (["--backward", "query.npy"], "--grads"),
        (["--backward", "short.npy", "--grads", "g"], "dout"),
        (["--lse", "l.txt"], ".npy"),
        (["--q-offset", "1.5"], "--q-offset"),
        (["--caussal"], "did you mean --causal?"),
    ],
)
def test_bad_arguments_are_one_line(tmp_path, words, part):
    call_words = inputs(tmp_path)
    save(tmp_path, short=normal(1, 2, 4, 4))
    assert part in refusal(*call_words, *words, cwd=tmp_path)
    assert not (tmp_path / "o.npy").exists()
