"""relpos.hf.register(name, position=...): small random models of transformers with a position of
one's own, against the same models on an attention in plain torch."""

import copy

import pytest
import relpos
import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils

from tests.support.near import close
from tests.support.own_positions import (
    DIM,
    HEADS,
    Gated,
    Kerple,
    KeyGated,
    Shaw,
    distances,
    drawn,
    given,
    numbers,
    plain,
)

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.peers]

WIDTH = HEADS * DIM
SIZES = {"vocab_size": 53, "bos_token_id": 1, "eos_token_id": 2}
MODELS = {
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=WIDTH, intermediate_size=40, num_hidden_layers=2, num_attention_heads=HEADS,
            num_key_value_heads=2, **SIZES,
        )
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, **SIZES,
        )
    ),
    "bert": lambda: transformers.BertModel(
        transformers.BertConfig(
            hidden_size=WIDTH, intermediate_size=40, num_hidden_layers=2, num_attention_heads=HEADS,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **SIZES,
        )
    ),
}  # fmt: skip
SUM = "sum"
POSITIONS = {"kerple": Kerple, "shaw": Shaw, "key_gated": KeyGated}


def position_named(name):
    if name == SUM:
        return drawn(relpos.T5Bias, heads=HEADS, buckets=8, max_distance=20) + drawn(Kerple)
    return drawn(POSITIONS[name])


def dense(module, query, key, value, mask, scaling=None, **_):
    """The attention function of the twin: module.position at every pair."""
    at = distances(query.shape[2], key.shape[2])
    scaling = query.shape[3] ** -0.5 if scaling is None else scaling
    hidden = getattr(module, "hidden", None)
    out, _ = plain(module.position, query, key, value, at, mask, hidden=hidden, scale=scaling)
    return out.transpose(1, 2).contiguous(), None


def of_module(module):
    return given(module.position, getattr(module, "hidden", None))


@pytest.fixture(autouse=True)
def registered():
    relpos.hf.register("own", position=of_module)
    AttentionInterface.register("dense_twin", dense)

    def mask(*given, **named):
        named["allow_is_causal_skip"] = named["allow_bidirectional_skip"] = False
        return masking_utils.sdpa_mask(*given, **named)

    AttentionMaskInterface.register("dense_twin", mask)


def attention_modules(model):
    return [m for n, m in model.named_modules() if n.endswith((".self_attn", ".attn", ".self"))]


def pair(family, make):
    """The model on relpos, and its twin; each attention module has a position."""
    torch.manual_seed(0)
    model = MODELS[family]().double().eval()
    modules = attention_modules(model)
    assert len(modules) == 2
    for module in modules:
        module.position = make()
        module.register_forward_pre_hook(_keep_hidden, with_kwargs=True)
    twin = copy.deepcopy(model)
    model.set_attn_implementation("own")
    twin.set_attn_implementation("dense_twin")
    return model, twin


def _keep_hidden(module, args, kwargs):
    module.hidden = args[0] if args else kwargs["hidden_states"]


def agree(model, twin, **inputs):
    """Outputs, and the gradient of every parameter."""
    found = []
    for each in (model, twin):
        each.zero_grad(set_to_none=True)
        out = each(**inputs)[0]
        (out * numbers(7, *out.shape)).sum().backward()
        found.append((out.detach(), {n: p.grad for n, p in each.named_parameters()}))
    (out, gradients), (wanted, of_twin) = found
    close(out, wanted, 1e-8)  # layers of torch in double around it
    assert any("position." in name for name in gradients)
    for name, want in of_twin.items():
        if want is None:
            assert gradients[name] is None, name
            continue
        close(gradients[name], want, 1e-8, name)


def ids(batch=2, length=9):
    return torch.randint(3, 53, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", [*POSITIONS, SUM])
@pytest.mark.parametrize("family", MODELS)
def test_a_model_equals_its_dense_twin(family, name):
    model, twin = pair(family, lambda: position_named(name))
    agree(model, twin, input_ids=ids())
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 6:] = 0
    agree(model, twin, input_ids=ids(), attention_mask=mask)


def test_a_gate_of_the_hidden_states():
    model, twin = pair("llama", lambda: drawn(Gated, width=WIDTH))
    agree(model, twin, input_ids=ids())


def test_packed_sequences():
    """position_ids that start again: the documents stay apart, and distances are those within."""
    model, _ = pair("llama", lambda: drawn(Kerple))
    tokens = ids(1, 9)
    at = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    with torch.no_grad():
        whole = model(tokens, position_ids=at, use_cache=False).logits
        apart = [model(tokens[:, part]).logits for part in (slice(0, 4), slice(4, 9))]
    close(whole, torch.cat(apart, 1), 1e-8)


@pytest.mark.parametrize(
    ("family", "cache"), [("llama", "dynamic"), ("llama", "static"), ("gpt2", "dynamic")]
)
def test_generation(family, cache):
    """Greedy tokens and their scores, with a cache, are those of the whole sequence."""
    model, twin = pair(family, lambda: drawn(Kerple))
    options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    options |= {"output_logits": True, "return_dict_in_generate": True}
    mask = torch.ones(2, 5, dtype=torch.int64)
    mask[0, :2] = 0
    found = model.generate(ids(2, 5), attention_mask=mask, cache_implementation=cache, **options)
    sequence = found.sequences
    whole_mask = torch.cat([mask, torch.ones(2, 20, dtype=torch.int64)], 1)
    positions = (whole_mask.cumsum(1) - 1).clamp(min=0)
    whole = whole_logits(twin, sequence, whole_mask, positions)[:, 4:-1]
    close(torch.stack(found.logits, 1).double(), whole, 1e-5)  # transformers casts them to float32


def whole_logits(twin, sequence, mask, positions):
    """Row by row without padding, since a row of padding sees no key."""
    rows = []
    with torch.no_grad():
        for row, seen in zip(sequence, mask, strict=True):
            logits = twin(row[None, seen.bool()]).logits[0]
            rows.append(torch.nn.functional.pad(logits, (0, 0, len(row) - len(logits), 0)))
    return torch.stack(rows)


def test_decoding_evaluates_few_times():
    position, counts = drawn(Kerple), []
    bias = position.bias
    position.bias = lambda distance: counts.append(len(distance)) or bias(distance)
    relpos.hf.register("own_shared", position=position)
    torch.manual_seed(0)
    model = MODELS["llama"]().double().eval()
    model.set_attn_implementation("own_shared")
    model.generate(ids(1, 5), max_new_tokens=50, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert len(counts) <= 20


def test_one_position_for_all_layers():
    position = drawn(Kerple)
    relpos.hf.register("own_shared", position=position)
    model, twin = pair("llama", lambda: position)
    for module in attention_modules(twin):
        module.position = position
    model.set_attn_implementation("own_shared")
    out = model(ids()).logits
    wanted = twin(ids()).logits
    close(out.detach(), wanted.detach(), 1e-8)
    got, want = (
        torch.autograd.grad(x.square().sum(), list(position.parameters())) for x in (out, wanted)
    )
    close(list(got), list(want), 1e-8)
    relpos.hf.register("own_shared", position=[relpos.ALiBi(HEADS).double()])  # another one
    assert not torch.allclose(model(ids()).logits, out)


def test_only_past_distances_are_asked_for():
    class Past(relpos.Position):
        def bias(self, distance):
            assert int(distance.max()) <= 0
            return distance[None].double() / 8

    relpos.hf.register("own_shared", position=Past())
    model, _ = pair("llama", lambda: drawn(Kerple))
    model.set_attn_implementation("own_shared")
    assert model(ids()).logits.isfinite().all()


def test_weights_and_state():
    model, _ = pair("llama", lambda: drawn(Kerple))
    names = {n for n in model.state_dict() if "position." in n}
    assert names == {
        f"model.layers.{n}.self_attn.position.{p}" for n in range(2) for p in ("p", "a")
    }
    other = copy.deepcopy(model)
    close(other(ids()).logits.detach(), model(ids()).logits.detach(), 1e-12)
    report = relpos.hf.report(model)
    assert all(layer.state == "attention" for layer in report.layers)
    assert "with the position of 'own'" in str(report)


@pytest.mark.parametrize(
    ("name", "position", "error", "message"),
    [
        ("sdpa", drawn(Kerple), ValueError, "name: expected one that transformers"),
        ("relpos", drawn(Kerple), ValueError, "name: expected one that transformers"),
        ("eager", drawn(Kerple), ValueError, "name: expected one that transformers"),
        ("a/b", drawn(Kerple), ValueError, "name: expected letters"),
        (3, drawn(Kerple), TypeError, "name: expected a string"),
        ("mine", None, ValueError, "position: expected one for attn_implementation='mine'"),
        ("mine", Kerple, TypeError, "the class Kerple"),
        ("mine", "kerple", TypeError, "expected None, a relpos position"),
    ],
)
def test_what_register_refuses(name, position, error, message):
    with pytest.raises(error, match=message):
        relpos.hf.register(name, position=position)


def test_what_calls_refuse():
    relpos.hf.register("own_shared", position=drawn(Kerple))
    config = transformers.BartConfig(
        d_model=WIDTH, encoder_layers=1, decoder_layers=1, encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS, encoder_ffn_dim=40, decoder_ffn_dim=40, vocab_size=53,
    )  # fmt: skip
    bart = transformers.BartModel(config).double().eval()
    bart.set_attn_implementation("own_shared")
    with pytest.raises(NotImplementedError, match="BartAttention is of an encoder-decoder model"):
        bart(ids(), decoder_input_ids=ids())
    model, _ = pair("llama", lambda: drawn(Gated, width=WIDTH))
    relpos.hf.register("own_shared", position=lambda module: module.position)
    model.set_attn_implementation("own_shared")
    with pytest.raises(ValueError, match="expected Gated called with hidden"):
        model(ids())
    relpos.hf.register("own_shared", position=drawn(Kerple, heads=2))
    with pytest.raises(ValueError, match=r"Kerple.bias: expected \[4"):
        model(ids())
    with pytest.raises(ValueError, match="got 'own_shared', whose position fuse would drop"):
        relpos.hf.fuse(model)


def test_an_encoder_decoder_by_a_function_of_the_module():
    """Cross-attention has none."""
    position = drawn(Kerple)
    asked = []

    def choose(module):
        asked.append(module)
        return None if module.is_cross else position

    relpos.hf.register("own_shared", position=choose)
    config = transformers.BartConfig(
        d_model=WIDTH, encoder_layers=1, decoder_layers=1, encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS, encoder_ffn_dim=40, decoder_ffn_dim=40, vocab_size=53,
        dropout=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    bart = transformers.BartModel(config).double().eval()
    for name, module in bart.named_modules():
        if name.endswith("attn"):
            module.is_cross = name.endswith("encoder_attn")
            module.position = position
    twin = copy.deepcopy(bart)

    def dense_or_none(module, query, key, value, mask, scaling=None, **_):
        part = None if module.is_cross else module.position
        parts = relpos.Sum(part) if part is not None else relpos.Sum()
        at = distances(query.shape[2], key.shape[2])
        out, _ = plain(parts, query, key, value, at, mask, scale=scaling)
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register("dense_twin", dense_or_none)
    bart.set_attn_implementation("own_shared")
    twin.set_attn_implementation("dense_twin")
    inputs = {"input_ids": ids(2, 9), "decoder_input_ids": ids(2, 5)}
    with torch.no_grad():
        close(bart(**inputs)[0], twin(**inputs)[0], 1e-8)
    assert {module.is_cross for module in asked} == {False, True}
