"""relpos.hf beside the table of families: masks, the interface, report, what is refused and how."""

import copy
import itertools
import pathlib
import pickle
import sys
import textwrap
import types

import pytest
import relpos
import torch
import transformers
from relpos.hf import _adapter, _mask
from transformers import masking_utils

from tests import ROOT
from tests.hf.hf_models import FAMILIES, OTHERS, Family, inputs, outputs, pair, same, states
from tests.support.cli_tool import ran
from tests.support.near import close_to_largest

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def registered():
    relpos.hf.register()


def agrees_with_theirs(**given):
    """A Mask of two rows sees what that of transformers does."""
    mask = _mask.mask_function(**given)
    seen = torch.ones(2, mask.q_length, mask.kv_length, dtype=torch.bool)
    if mask.key_range is not None:
        lo, hi = (bound.expand(2, -1)[..., None] for bound in mask.key_range)
        keys = torch.arange(mask.kv_length)
        seen &= (keys >= lo) & (keys < hi)
    if mask.padding is not None:
        seen &= ~mask.padding[:, None]
    theirs = masking_utils.sdpa_mask(**given, allow_is_causal_skip=False)
    assert torch.equal(seen, theirs.expand(2, 1, -1, -1)[:, 0])


PATTERNS = {
    "causal": masking_utils.causal_mask_function,
    "all": masking_utils.bidirectional_mask_function,
    "window": masking_utils.sliding_window_causal_mask_function(3),
    "two-sided window": masking_utils.sliding_window_bidirectional_mask_function(2),
    "chunks": masking_utils.chunked_causal_mask_function(4, torch.tensor([0, 2])),
    "chunks of 6": masking_utils.chunked_causal_mask_function(6, torch.tensor([0, 1])),
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(
    ("queries", "keys", "start", "first"),
    [(9, 9, 0, 0), (3, 9, 6, 0), (1, 4, 7, 4), (1, 6, 7, 2), (3, 7, 9, 5)],
)
@pytest.mark.parametrize("padded", [False, True])
def test_masks_are_those_of_transformers(pattern, queries, keys, start, first, padded):
    attention_mask = None
    if padded:
        attention_mask = torch.ones(2, keys + first, dtype=torch.bool)
        attention_mask[0, : first + 2] = False
        attention_mask[1, -1:] = False
    agrees_with_theirs(
        batch_size=2,
        q_length=queries,
        kv_length=keys,
        q_offset=start,
        kv_offset=first,
        mask_function=PATTERNS[pattern],
        attention_mask=attention_mask,
    )


@pytest.mark.parametrize("pattern", ["causal", "window", "all"])
def test_packed_sequences_stay_apart(pattern):
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 0, 1, 2, 3, 4, 5, 6, 7]])
    function = masking_utils.packed_sequence_compatibility_function(
        PATTERNS[pattern], positions, masking_utils.find_packed_sequence_indices(positions)
    )
    agrees_with_theirs(batch_size=2, q_length=9, kv_length=9, mask_function=function)


def overlaid(pattern, *blocks, join=masking_utils.or_masks):
    """A pattern, and tokens that see those of their block; -1 is none."""
    return join(PATTERNS[pattern], masking_utils.blockwise_overlay(torch.tensor(blocks)))


@pytest.mark.parametrize("pattern", ["causal", "window"])
@pytest.mark.parametrize(("queries", "keys", "first"), [(12, 12, 0), (3, 12, 0), (1, 5, 7)])
def test_blocks_that_see_each_other(pattern, queries, keys, first):
    rows = [-1, 0, 0, 0, -1, 1, 1, 2, 2, 2, -1, -1], [0, 0, 0, 0, 0, 0, -1, -1, 1, 1, 1, 1]
    agrees_with_theirs(
        batch_size=2,
        q_length=queries,
        kv_length=keys,
        q_offset=first + keys - queries,
        kv_offset=first,
        mask_function=overlaid(pattern, *rows),
    )


NO_INTERVALS = {
    "either": masking_utils.or_masks(
        PATTERNS["window"], lambda batch, head, query, key: key < 2
    ),  # a prefix beside a window: two intervals
    "both": overlaid("causal", [0, 0, 0, 0], join=masking_utils.and_masks),
    "unknown": lambda batch, head, query, key: key <= query,
    "causal, apart": overlaid("causal", [0, -1, 0, 0]),
    "window, apart": overlaid("window", [0, -1, 0, 0]),
}


@pytest.mark.parametrize("name", NO_INTERVALS)
def test_a_mask_that_is_no_interval_is_that_of_transformers(name):
    given = {
        "batch_size": 2,
        "q_length": 4,
        "kv_length": 4,
        "mask_function": NO_INTERVALS[name],
        "attention_mask": torch.tensor([[True] * 4, [True, False, True, True]]),
    }
    if "apart" in name or name == "both":  # these hold blocks of one row
        given |= {"batch_size": 1, "attention_mask": torch.ones(1, 4, dtype=torch.bool)}
    theirs = masking_utils.sdpa_mask(**given, allow_is_causal_skip=False)
    assert torch.equal(_mask.mask_function(**given), theirs)


@pytest.mark.peers
def test_a_static_cache_beams_and_packed_rows():
    model, fused = pair("Llama")
    given = inputs(FAMILIES["Llama"])
    given["attention_mask"][1:] = 1
    for how in ({"cache_implementation": "static"}, {"num_beams": 3}):
        texts = [
            m.generate(**given, **how, max_new_tokens=6, do_sample=False) for m in (model, fused)
        ]
        assert torch.equal(*texts)
    ids = given["input_ids"]
    for positions in (
        torch.cat([torch.arange(9), torch.arange(12)])[None].expand(2, -1),  # two sequences a row
        3 * torch.arange(21)[None] + 7,
    ):
        same(*(m(ids, position_ids=positions, use_cache=False).logits for m in (fused, model)))


@pytest.mark.peers
def test_a_dense_mask_of_the_user_s():
    model, fused = pair("Llama")
    ids = inputs(FAMILIES["Llama"])["input_ids"]
    seen = torch.ones(21, 21, dtype=torch.bool).tril()
    seen[10:, 3] = False
    seen = seen[None, None].expand(2, 1, -1, -1)
    added = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
    theirs = model(ids, attention_mask=added, use_cache=False).logits
    for mask in (seen, added):
        same(fused(ids, attention_mask=mask, use_cache=False).logits, theirs)


@pytest.mark.peers
@pytest.mark.parametrize("name", ["T5", "Llama", *OTHERS])
def test_register_alone_keeps_padding_and_bias(name):
    family = (FAMILIES | OTHERS)[name]
    model, given = family.make(), inputs(family)
    mask = given["attention_mask"]
    seen = 1 if family.kind == "encoder-decoder" else mask[..., None]
    theirs = model(**given)[0] * seen
    model.set_attn_implementation("relpos")
    ours, unpadded = (
        model(**given | {"attention_mask": x})[0] * seen for x in (mask, torch.ones_like(mask))
    )
    same(ours, theirs)
    assert states(model) == {"attention"}
    assert (unpadded - ours).abs().max() > 1e-2 * ours.abs().max()


@pytest.mark.peers
@pytest.mark.parametrize("name", ["Llama", "BLOOM", "GPT-J", "MPNet"])
def test_weights_come_where_asked_for(name):
    family = FAMILIES[name]
    model, fused = pair(name)
    given = inputs(family)
    if family.kind == "decoder":
        given["use_cache"] = False
    theirs, ours = (m(**given, output_attentions=True).attentions for m in (model, fused))
    first = 21 // 4  # rows of padding see nothing
    for a, b in zip(ours, theirs, strict=True):
        same(a[:, :, first:], b[:, :, first:])


@pytest.mark.parametrize("name", ["T5", "Llama", "BLOOM", "MPNet", "LongT5, transient global"])
def test_copies_and_pickles_compute_the_same(name):
    family = FAMILIES[name]
    fused, given = relpos.hf.fuse(family.make()), inputs(family)
    expected, gradients = outputs(family, fused, given)
    for twin in (copy.deepcopy(fused), pickle.loads(pickle.dumps(fused))):
        with torch.no_grad():  # the copy reads its own table
            for parameter in fused.parameters():
                parameter.add_(0.1)
        out, own = outputs(family, twin, given)
        assert torch.equal(out, expected)
        assert all(torch.equal(own[n], gradients[n]) for n in gradients)
        with torch.no_grad():
            for (_, mine), (_, theirs) in zip(
                fused.named_parameters(), twin.named_parameters(), strict=True
            ):
                mine.copy_(theirs)
        assert str(relpos.hf.report(twin)) == str(relpos.hf.report(fused))


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated")
@pytest.mark.parametrize("name", ["T5", "Llama", "BLOOM"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients(name, reentrant):
    family = FAMILIES[name]
    fused, given = relpos.hf.fuse(family.make()).train(), inputs(family)
    for part in fused.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    _, expected = outputs(family, fused, given)
    fused.gradient_checkpointing_enable({"use_reentrant": reentrant})
    _, gradients = outputs(family, fused, given)
    for parameter, gradient in gradients.items():
        close_to_largest(gradient, expected[parameter], 1e-6, parameter)


@pytest.mark.parametrize("name", ["T5", "Llama"])
def test_compiles_in_one_graph(name):
    family = FAMILIES[name]
    layers = {n: 1 for n in ("num_layers", "num_decoder_layers") if n in family.options}
    fused, given = relpos.hf.fuse(family.make(**layers)), inputs(family)
    expected = fused(**given, use_cache=False)[0]
    torch._dynamo.reset()
    compiled = torch.compile(fused, backend="eager", fullgraph=True)
    out = compiled(**given, use_cache=False)[0]
    seen = given["attention_mask"].cumsum(1)[..., None] > 0 if family.kind == "decoder" else 1
    torch.testing.assert_close(out * seen, expected * seen, rtol=1e-5, atol=1e-5)


def test_dropout_is_drawn_from_torch_s_generator():
    family = FAMILIES["T5"]
    fused = relpos.hf.fuse(family.make(dropout_rate=0.3)).train()
    given = inputs(family)

    def draw(seed):
        torch.manual_seed(seed)
        return fused(**given).logits

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


def test_other_models_of_the_same_config_stay():
    config, ids = FAMILIES["BLOOM"].make().config, torch.arange(3, 12)[None]
    one, other = (transformers.BloomModel(config).eval() for _ in range(2))
    before = other(ids).last_hidden_state
    relpos.hf.fuse(one)
    assert torch.equal(other(ids).last_hidden_state, before)
    assert relpos.hf.fuse(one) is one  # twice is once
    assert type(one.h[0].self_attention).__mro__.count(type(other.h[0].self_attention)) == 1


@pytest.mark.peers
def test_what_is_saved_is_a_model_of_transformers(tmp_path):
    family = FAMILIES["T5"]
    fused, given = relpos.hf.fuse(family.make()), inputs(family)
    fused.save_pretrained(tmp_path)
    assert "relpos" not in (tmp_path / "config.json").read_text().lower()
    again = type(fused).from_pretrained(tmp_path, attn_implementation="eager").eval()
    same(again(**given).logits, fused(**given).logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_module_that_computes_with_its_mask_stays_in_its_dtype(dtype):
    """As transformers' eager mask, which has the dtype of the model."""
    given = {"batch_size": 2, "q_length": 5, "kv_length": 5, "dtype": dtype}
    given["attention_mask"] = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
    mask = _mask.mask_function(**given, mask_function=masking_utils.causal_mask_function)
    theirs = masking_utils.eager_mask(**given, mask_function=masking_utils.causal_mask_function)
    scores = torch.randn(2, 3, 5, 5, dtype=dtype)
    found = scores + mask
    assert found.dtype == dtype
    assert torch.equal(found, scores + theirs)


# Classes that compute attention by themselves: untouched, and report says why.
LEFT_ALONE = {
    "ConvBertModel": (FAMILIES["Phi"].options, "does not use the attention interface"),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_models_without_an_adapter_stay_as_they_are(name):
    options, reason = LEFT_ALONE[name]
    model = Family(name, options, "encoder").configured().eval()
    given = inputs(FAMILIES["Llama"])["input_ids"]

    def run():
        torch.manual_seed(0)
        return model(given)[0]

    before, runs = run(), model.config._attn_implementation
    with pytest.warns(UserWarning, match="keeps layers untouched"):
        relpos.hf.fuse(model)
    assert model.config._attn_implementation == runs
    assert torch.equal(run(), before)
    found = relpos.hf.report(model)
    assert {layer.state for layer in found.layers} == {"untouched"}
    assert all(reason in layer.why for layer in found.layers)
    assert reason in str(found)


def test_what_relpos_cannot_compute_raises_with_the_reason():
    ids = torch.arange(3, 12)[None]
    # Computes attention by itself, with the mask that it gets: it gets the matrix.
    bloom = FAMILIES["BLOOM"].make()
    expected = bloom(ids)[0]
    bloom.config._attn_implementation = "relpos"
    same(bloom(ids)[0], expected)
    fused = relpos.hf.fuse(FAMILIES["T5"].make())
    fused.set_attn_implementation("sdpa")
    with pytest.raises(TypeError, match="computes with its position bias itself"):
        fused(input_ids=ids, decoder_input_ids=ids)
    assert "is now 'sdpa'" in relpos.hf.report(fused).layers[0].why
    with pytest.raises(TypeError, match="model: expected a transformers model"):
        relpos.hf.fuse(torch.nn.Linear(2, 2))


def test_every_adapter_names_classes_that_exist():
    folder = pathlib.Path(transformers.__file__).parent / "models"
    text = "\n".join(
        line
        for path in folder.glob("*/modeling_*.py")
        for line in path.read_text().splitlines()
        if line.startswith("class ")
    )
    files = _adapter._files()
    adapters = itertools.chain(*(getattr(file, "ADAPTERS", []) for file in files))
    names = [name for adapter in adapters for name in adapter.classes]
    names += [name for file in files for name in getattr(file, "NO_ATTENTION", ())]
    assert len(names) > 30
    assert len(names) == len(set(names))
    assert [name for name in names if f"class {name}(" not in text] == []


def test_a_new_file_brings_its_family_along(tmp_path, monkeypatch):
    """A scheme of its own: BERT's self-attention with a slope that the adapter brings."""
    from relpos.hf import adapters

    (tmp_path / "sloped_bert.py").write_text(
        textwrap.dedent(
            """
            import relpos
            from relpos.hf._adapter import Adapter, Plan
            from relpos.hf._lazy import Bias


            class _Sloped:
                def forward(self, *args, **kwargs):
                    bias = Bias(lambda: self._relpos_position)
                    return super().forward(*args, position_bias=bias, **kwargs)


            def _plan(module, owner):
                position = relpos.ALiBi(module.num_attention_heads)
                return Plan("slopes", _Sloped, {"_relpos_position": position})


            ADAPTERS = [Adapter(("BertSelfAttention",), _plan)]
            """
        )
    )
    monkeypatch.setattr(adapters, "__path__", [*adapters.__path__, str(tmp_path)])
    model, ids = OTHERS["BERT"].make(), inputs(FAMILIES["Llama"])["input_ids"]
    before = model(ids).last_hidden_state
    relpos.hf.fuse(model)
    assert {layer.why for layer in relpos.hf.report(model).layers} == {"slopes"}
    assert (model(ids).last_hidden_state - before).abs().max() > 1e-2


def test_the_example_changes_one_line_and_no_number():
    printed = ran([sys.executable, ROOT / "examples/hf_t5.py", "--length", 96])
    assert "6 of 6 attention layers fused" in printed
    assert "MiB at the peak" in printed


def test_import_needs_no_transformers_and_the_functions_say_what_to_install():
    text = """
        import sys
        import relpos, torch
        print("transformers" in sys.modules)
        sys.modules["transformers"] = None
        for call in (relpos.hf.register, lambda: relpos.hf.fuse(torch.nn.Linear(1, 1)),
                     lambda: relpos.hf.report(torch.nn.Linear(1, 1))):
            try:
                call()
            except ImportError as error:
                print(error)
    """
    loaded, *lines = ran([sys.executable, "-c", textwrap.dedent(text)]).splitlines()
    assert loaded == "False"
    assert len(lines) == 3
    assert all("pip install transformers==" in line for line in lines)


def test_a_version_without_the_interfaces_is_named(monkeypatch):
    old = types.ModuleType("transformers")
    old.__version__ = "4.30.0"
    monkeypatch.setitem(sys.modules, "transformers", old)
    with pytest.raises(ImportError, match=r"transformers 4\.30\.0 lacks what relpos needs"):
        relpos.hf.register()
    monkeypatch.undo()
    monkeypatch.delattr(masking_utils, "sdpa_mask")
    with pytest.raises(ImportError, match="no sdpa_mask"):
        relpos.hf.register()


def test_linearize_is_an_earlier_name_of_fuse():
    fused = relpos.hf.linearize(FAMILIES["T5"].make())
    assert all(layer.state == "fused" for layer in relpos.hf.report(fused).layers)


@pytest.mark.parametrize("name", ["T5", "Llama", "BLOOM"])
def test_restore_gives_back_classes_and_bits(name):
    family = FAMILIES[name]
    model, given = family.make(), inputs(family)
    kinds, before = [type(part) for part in model.modules()], model(**given)[0]
    names = [sorted(vars(part)) for part in model.modules()]
    relpos.hf.fuse(relpos.hf.fuse(model))
    assert [type(part) for part in model.modules()] != kinds
    for each in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model):
        assert relpos.hf.restore(each) is each
        assert [type(part) for part in each.modules()] == kinds
        assert [sorted(vars(part)) for part in each.modules()] == names
        assert torch.equal(each(**given)[0], before)
    relpos.hf.restore(model)  # nothing is left to undo
    assert relpos.hf.report(relpos.hf.fuse(model)).layers[0].state == "fused"
