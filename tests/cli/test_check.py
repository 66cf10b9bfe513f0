"""relpos check and relpos.check: which convention a tensor follows, in others' truth."""

import json
import math

import numpy as np
import pytest
import relpos
import torch
from safetensors.torch import save_file
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention, T5Config

from tests import ROOT
from tests.support.cli_tool import call, output, refusal, report, save

pytestmark = pytest.mark.peers

torch.manual_seed(0)


def all_told(report, verdict):
    assert report.verdict == verdict, report
    return [(r.convention, r.options) for r in report.readings]


def reads(scheme, tensor, part="", note="", start="", options=None, verdict="fits", **given):
    """The first reading of a tensor, which is the only one where it fits, has these words; all of
    its options, or those that are said in `has`."""
    has = given.pop("has", {})
    found = relpos.check(scheme, tensor, **given)
    assert found.verdict == verdict, found
    assert verdict != "fits" or len(found.readings) == 1, found
    first = found.readings[0]
    assert first.convention.startswith(start), first
    assert part in first.convention, first
    assert note in first.note, first
    assert options is None or first.options == options, first
    assert first.options | has == first.options, first
    return first


def fits_nothing(scheme, tensor):
    assert relpos.check(scheme, tensor).verdict == "none"


def bloom_slopes(heads):
    bias = build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), heads, torch.float32)
    return bias[:, 0, 1]


# ALiBi


@pytest.mark.parametrize("heads", [3, 6, 12, 20, 71, 112])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slopes(heads, dtype):
    paper = bloom_slopes(heads).to(dtype)
    rule = {"heads": heads, "slopes": "paper"}
    reads("alibi", paper, start="slopes, the paper's rule", options=rule)
    simple = torch.tensor([2 ** (-8 * h / heads) for h in range(1, heads + 1)])
    reads("alibi", simple, options={"heads": heads, "slopes": "geometric"})
    reads("alibi", -paper, "negated", "negate it first")
    falling = paper.sort(descending=True).values
    ordered = reads("alibi", falling, "heads sorted")
    slopes = torch.tensor(ordered.options["slopes"])
    torch.testing.assert_close(slopes, falling.float(), rtol=1e-2, atol=0)
    if heads > 3:  # reversed, those of three heads are neither's
        reads("alibi", paper.flip(0), "reverse")


def test_slopes_of_a_power_of_two_follow_both_rules():
    slopes = bloom_slopes(8)[:, None, None]
    reads("alibi", slopes, "both rules agree", has={"slopes": "paper"})


def test_no_rule_of_slopes():
    slopes = bloom_slopes(8)
    slopes[3] *= 1.001
    found = relpos.check("alibi", slopes)
    assert found.verdict == "none"
    assert not found.readings
    closest = found.comparisons[0]
    assert (closest.outcome, closest.index, closest.compared) == ("differs", (3,), 4)
    assert closest.expected == 2**-4
    assert closest.found == float(slopes[3])
    options = {"heads": 8, "learned": True}
    reads("alibi", slopes, options=options, verdict="undecided", learned=True)


def test_biases_of_slopes():
    slopes = bloom_slopes(6)
    query, key = torch.arange(5, 12)[:, None], torch.arange(12)
    delta = (key - query).float()
    bias = -slopes[:, None, None] * delta.abs()
    options = {"heads": 6, "slopes": "paper", "symmetric": True}
    start = "bias [heads, ...], [query, key], q_offset 5, -slope |distance|,"
    reads("alibi", bias[None], start=start, options=options)
    assert relpos.ALiBi(**options).dense(7, 12, 5).allclose(bias)
    reads("alibi", bias.mT, "(transposed)", "transpose")
    reads("alibi", -slopes[:, None, None] * (key - query + 5).abs(), ", q_offset 0,")
    future = slopes[:, None, None] * delta.clamp(max=0)
    reads("alibi", future, has={"symmetric": False})
    reads("alibi", -bias, "favours far keys")
    masked = bias.masked_fill(delta > 0, -math.inf)
    names = [name for name, _ in all_told(relpos.check("alibi", masked), "ambiguous")]
    assert len(names) == 3  # what stands above the diagonal is hidden


def test_key_biases():
    bloom = build_alibi_tensor(torch.ones(2, 9, dtype=torch.long), 6, torch.bfloat16)
    # [batch * heads, 1, keys]
    reads("alibi", bloom, "slope * k", "causal mask only", heads=6)
    reads("alibi", build_mpt_alibi_tensor(6, 9), "slope * (k - last k)")


# T5


def t5_bias(both):
    """Of a decoder, or of an encoder, which sees both sides: [1, heads, query, key]."""
    config = T5Config(
        d_model=8, d_kv=4, num_heads=6, is_decoder=not both, relative_attention_num_buckets=32
    )
    layer = T5Attention(config, has_relative_attention_bias=True)
    torch.nn.init.normal_(layer.relative_attention_bias.weight)
    return layer.compute_bias(40, 40).detach()


@pytest.mark.parametrize("both", [True, False])
def test_bucket_numbers(both):
    delta = torch.arange(200)[None, :] - torch.arange(200)[:, None]
    numbers = T5Attention._relative_position_bucket(delta, both, 32, 128)
    sides = "two directions" if both else "one direction"
    options = {"buckets": 32, "max_distance": 128, "bidirectional": both}
    found = reads("t5", numbers, options=options)
    assert found.convention == f"bucket numbers [query, key], {sides}"
    reads("t5", numbers.T, "(transposed)")
    reads("t5", numbers[150:], "[query, key], q_offset 150,")
    reads("t5", numbers[:50], "[query, key], q_offset 0,")
    for buckets, farthest in ((64, 256), (320, 800), (48, 100)):
        numbers = T5Attention._relative_position_bucket(delta, both, buckets, farthest)
        sizes = {"buckets": buckets, "max_distance": farthest}
        reads("t5", numbers, has=sizes, **(sizes if buckets == 48 else {}))
    fits_nothing("t5", delta)


def test_bias_of_a_learned_table():
    bias = t5_bias(False)
    found = reads("t5", bias, has={"bidirectional": False, "heads": 6})
    assert found.convention == "bias, heads first, [query, key], one direction"
    reads("t5", bias.mT, "(transposed)")
    reads("t5", bias.permute(0, 2, 3, 1), "heads last")
    found = all_told(relpos.check("t5", t5_bias(True)), "ambiguous")
    assert all(options["bidirectional"] for _, options in found)
    assert ["(transposed)" in name for name, _ in found] == [False, True]
    fits_nothing("t5", torch.randn(6, 40, 40))


def test_tables_of_a_checkpoint(tmp_path):
    path = tmp_path / "model.safetensors"
    weight = torch.randn(32, 6)
    names = {
        kind: f"{kind}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        for kind in ("encoder", "decoder")
    }
    state = {names["encoder"]: weight, names["decoder"]: weight + 1, "shared.weight": weight + 2}
    save_file(state, path)
    found = report("check", "t5", path)
    assert found["scheme"] == "t5"
    assert {entry["tensor"] for entry in found["tensors"]} == set(names.values())
    ours = relpos.check("t5", state)
    assert set(ours) == set(names.values())
    for entry in found["tensors"]:
        assert entry["verdict"] == "undecided"
        assert entry["shape"] == [32, 6]
        kind = entry["tensor"].split(".")[0]
        first, second = entry["comparisons"]  # two readings, what the name says first
        assert first["options"] == {"heads": 6, "buckets": 32, "bidirectional": kind == "encoder"}
        assert second["options"]["bidirectional"] is (kind == "decoder")
        assert f"its name says {kind}" in first["note"]
        assert "values cannot tell" in first["note"]
        readings = ours[entry["tensor"]].readings
        assert [reading.options for reading in readings] == [first["options"], second["options"]]
    text = output("check", "t5", path)
    assert "undecided: learned values" in text
    assert "= t5(heads=6, buckets=32, " in text
    turned = {"verdict": "undecided", "bidirectional": True}
    reads("t5", weight.T.contiguous(), "(transposed: mesh, t5x)", **turned)
    square = relpos.check("t5", torch.randn(32, 32).cumsum(0), bidirectional=True)
    assert [name[:6] for name, _ in all_told(square, "undecided")] == ["table "] * 2
    assert "buckets are the smooth axis" in square.readings[0].note


# RoPE


def llama_tables(head_dim, base, length):
    config = LlamaConfig(
        head_dim=head_dim,
        num_attention_heads=2,
        hidden_size=2 * head_dim,
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )
    module = LlamaRotaryEmbedding(config)
    cos, sin = module(torch.zeros(1), torch.arange(length)[None])
    return module.inv_freq, cos, sin


@pytest.mark.parametrize("base", [10000.0, 500000.0, 1000000.0, 41000.0])
@pytest.mark.parametrize("head_dim", [8, 128])
def test_rotary_tables(base, head_dim):
    frequencies, cos, sin = llama_tables(head_dim, base, 3000)
    options = {"head_dim": head_dim, "base": base}
    start = "frequencies base^(-2p / rotary_dim)"
    reads("rope", frequencies, start=start, options=options)
    for table, kind in ((cos, "cosines"), (sin, "sines")):
        start = f"{kind} [positions, ...], columns (p, p + rotary_dim / 2): half"
        reads("rope", table, start=start, options=options | {"layout": "half"})
        pairs = table[..., : head_dim // 2]
        reads("rope", pairs.repeat_interleave(2, -1), has={"layout": "interleaved"})
        single = reads("rope", pairs, "one column for each pair", "do not tell the layout")
        assert "layout" not in single.options
    reads("rope", torch.arange(50.0)[:, None] * frequencies, start="angles")


def test_partial_scaled_and_joined_tables():
    frequencies, _, _ = llama_tables(64, 1e4, 1)
    options = {"head_dim": 256, "base": 1e4, "rotary_dim": 64}
    reads("rope", frequencies, options=options, head_dim=256)
    scaled = "linear scaling: frequencies divided by 8"
    reads("rope", frequencies / 8, scaled, "rope_linear(factor=8) means it", options={})
    proportional = torch.where(torch.arange(32) < 8, frequencies, 0)
    means = "rope_proportional(partial_rotary_factor=0.25) means it"
    reads("rope", proportional, "the first 8 of 32 pairs turn", means, options={})
    fits_nothing("rope", frequencies * torch.linspace(1, 0.25, 32))
    reads("rope", create_sinusoidal_positions(100, 64), start="sines, then cosines")
    fits_nothing("rope", torch.randn(9, 64))


def test_projections_have_two_readings(tmp_path):
    heads, head_dim = 8, 16
    pair = torch.randn(heads, head_dim // 2, 1, 1).exp()  # pairs of equal size, in no order
    inter = (pair * torch.randn(heads, head_dim // 2, 2, 64)).reshape(heads * head_dim, 64)
    half = relpos.rope_permute(inter, head_dim, to="half")
    path = tmp_path / "model.safetensors"
    save_file({"model.layers.0.self_attn.q_proj.weight": half, "x.wq.weight": inter}, path)
    found = {
        entry["tensor"].rsplit(".", 2)[1]: entry
        for entry in report("check", "rope", path, "--head-dim", head_dim)["tensors"]
    }
    for name, layout in (("q_proj", "half"), ("wq", "interleaved")):
        entry = found[name]
        assert entry["verdict"] == "undecided"
        assert entry["comparisons"][0]["options"]["layout"] == layout
        assert len(entry["comparisons"]) == 2
        assert "no proof" in entry["comparisons"][0]["note"]
    words = found["q_proj"]["comparisons"][0]["note"].split("correlate by ")[1]
    assert float(words.split(",")[0]) > 0.8
    bare = report("check", "rope", path, "--tensor", "x.wq.weight")["tensors"][0]
    assert "give head_dim" in bare["comparisons"][0]["note"]


# Tables of rows


def test_rows_of_shaw():
    query, key = torch.arange(12)[:, None], torch.arange(12)
    notebook = (query - key).clamp(-7, 7) + 7
    options = {"max_distance": 7, "distance": "query-key"}
    reads("shaw", notebook, options=options)
    paper = (key - query).clamp(-7, 7) + 7
    reads("shaw", paper.int(), options=options | {"distance": "key-query"})
    found = relpos.check("shaw", torch.randn(15, 64))
    readings = all_told(found, "undecided")
    assert {o["distance"] for _, o in readings} == {"key-query", "query-key"}
    assert all("cannot tell" in reading.note for reading in found.readings)
    bert = {"name": "layer.0.distance_embedding.weight", "has": {"distance": "query-key"}}
    reads("shaw", torch.randn(15, 64), verdict="undecided", **bert)
    reads("shaw", torch.randn(64, 15), "transposed", verdict="undecided")
    fits_nothing("shaw", torch.randn(16, 64))
    w2v = relpos.check("shaw", torch.randn(73, 64))
    [seamless] = [r.options for r in w2v.readings if "-64 to 8" in r.convention]
    assert seamless == {"max_distance": 64, "right": 8, "head_dim": 64}
    assert relpos.Shaw(**seamless, values=False).key_table.shape == (73, 64)
    per_head = relpos.check("shaw", torch.randn(4, 15, 64), distance="key-query")
    [(_, options)] = all_told(per_head, "undecided")
    assert options["heads"] == 4


def test_rows_of_the_music_transformer():
    query, key = torch.arange(6)[:, None], torch.arange(6)
    rows = torch.where(key <= query, key - query + 5, -1)
    options = {"max_length": 6, "bidirectional": False}
    reads("music_transformer", rows, options=options)
    reads("music_transformer", key - query + 5, has={"bidirectional": True})
    table = all_told(relpos.check("music_transformer", torch.randn(256, 32)), "undecided")
    assert table[0][1] == {"max_length": 256, "head_dim": 32, "bidirectional": False}
    assert "distance 0 first" in table[1][0]
    assert table[1][1] == {}


def test_clipped_biases():
    query, key = torch.arange(9)[:, None], torch.arange(9)
    numbers = (query - key).clamp(-3, 3) + 3
    reads("bias_rpe", numbers, options={"max_distance": 4})
    assert "flip" in relpos.check("bias_rpe", 6 - numbers).readings[0].note
    table = torch.randn(2, 7)
    table[:, :3] = 0  # after causal training
    found = relpos.check("bias_rpe", table)
    assert found.verdict == "undecided"
    assert found.readings[0].options["max_distance"] == 4
    assert "as causal training leaves them" in found.readings[0].note
    assert "never trained" in found.readings[1].note
    reads("bias_rpe", table[:, numbers], start="bias [heads, ...], one")
    fits_nothing("bias_rpe", torch.randn(2, 9, 9))
    for scheme in ("bias_rpe", "shaw", "music_transformer"):
        for wild in (2**63 - 1, -(2**63)):
            fits_nothing(scheme, torch.full((3, 3), wild))


# Every scheme, arguments, the tool


@pytest.mark.parametrize("scheme", [s.name for s in relpos.schemes()])
def test_noise_fits_nothing_by_value(scheme, tmp_path):
    if not (ROOT / f"src/conventions/{scheme}.cc").exists():
        with pytest.raises(ValueError, match=f"{scheme}: has no conventions to compare with"):
            relpos.check(scheme, torch.randn(7))
        return
    for shape in ((7,), (6, 6), (2, 6, 6), (2, 3, 6, 6)):
        for dtype in (torch.float32, torch.int64):
            noise = (100 * torch.randn(shape)).to(dtype)
            verdict = relpos.check(scheme, noise).verdict
            assert verdict in ("none", "undecided"), (shape, dtype)
            np.save(tmp_path / "x.npy", noise.numpy())
            result = call("check", scheme, tmp_path / "x.npy")
            assert result.returncode == (verdict == "none"), result
            said = ("undecided", "nothing to compare with", "first difference at [")
            assert any(words in result.stdout for words in said)


def test_arguments():
    ones = torch.ones(3)
    for scheme, tensor, options, error, text in (
        ("nope", ones, {}, ValueError, "there is none named nope"),
        ("alibi", ones, {"slope": "paper"}, ValueError, "no option 'slope'; did you mean 'slopes'"),
        ("alibi", ones, {"heads": "two"}, TypeError, "heads: expected an integer"),
        (
            "alibi",
            ones > 0,
            {},
            TypeError,
            "tensor: expected floating or integer numbers, got bool",
        ),
        ("alibi", ones[:0], {}, ValueError, r"tensor: expected elements, got shape \[0\]"),
        ("t5", {"x": ones}, {}, ValueError, "none of the state dict's 1 names is one of t5's"),
        ("t5", [1.0], {}, TypeError, "tensor: expected a tensor or a state dict, got list"),
    ):
        with pytest.raises(error, match=text):
            relpos.check(scheme, tensor, **options)
    assert relpos.check("alibi", bloom_slopes(8), heads=7).comparisons == ()
    assert relpos.check("alibi", torch.tensor(1.0)).verdict == "none"


def test_tool(tmp_path):
    slopes = tmp_path / "slopes.npy"
    np.save(slopes, bloom_slopes(12).numpy())
    text = output("check", "alibi", slopes)
    assert "[12] float32: fits one convention:\n  slopes, the paper's rule\n" in text
    assert "= alibi(heads=12, slopes=paper)" in text
    assert "12 numbers compared" in text
    np.save(slopes, np.arange(12, dtype=np.float32))
    result = call("check", "alibi", slopes, "--json")
    assert result.returncode == 1
    [entry] = json.loads(result.stdout)["tensors"]
    assert entry["verdict"] == "none"
    assert len(entry["comparisons"]) > 4
    first = entry["comparisons"][0]
    assert (first["outcome"], first["index"], first["found"]) == ("differs", [0], 0)
    many = call("check", "alibi", slopes).stdout
    assert "closest first:" in many
    assert "more (--json)" in many


def test_refusals(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"layer.slopes": torch.ones(3), "other": torch.ones(2)}, path)
    line = refusal("check", "t5", path)
    assert "none of its 2 tensors has a name of t5's" in line
    assert "--tensor" in line
    line = refusal("check", "alibi", path, "--tensor", "layer.slope")
    assert "is named 'layer.slope'; did you mean 'layer.slopes'?" in line
    assert "no names" in refusal("check", "alibi", tmp_path / "x.npy", "--tensor", "y")
    for scheme, flag in (
        ("alibi", "--heads"),
        ("bias_rpe", "--max-distance"),
        ("rope", "--head-dim"),
        ("rope", "--rotary-dim"),
        ("rope", "--base"),
    ):
        line = refusal("check", scheme, path, "--tensor", "other", flag, "0")
        assert flag[2:].replace("-", "_") + ": expected" in line
    refusal("check", "alibi", tmp_path / "missing.npy")
    for words in (["alibi"], ["nope", path], []):
        refusal("check", *words)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_learned_values_that_are_not_finite_are_not_judged(tmp_path, bad):
    table = torch.randn(32, 8)
    table[3, 5] = bad
    for name in ("", "decoder.relative_attention_bias.weight"):
        with pytest.raises(ValueError, match=rf"{name or 'tensor'}: .* got {bad} at \[3, 5\]"):
            relpos.check("t5", table, name=name)
    (path,) = save(tmp_path, table=table.numpy())
    assert f"got {bad} at [3, 5]" in refusal("check", "t5", path)
