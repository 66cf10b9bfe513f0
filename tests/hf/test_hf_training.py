"""Fused models in training and after it: LoRA, Trainer, checkpointing, autocast, compiling,
quantization, files. Each is compared with the model that was not fused."""

import contextlib
import copy
import dataclasses
import itertools

import peft
import pytest
import relpos
import torch
import transformers

from tests.hf import hf_text
from tests.hf.hf_models import FAMILIES, FLOAT32_MODEL, inputs, pair, same, states
from tests.hf.test_hf_models import largest_of_modules
from tests.support.near import within
from tests.support.peer_modes import Float64

pytestmark = [
    pytest.mark.peers,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated"),
]

MODELS = {
    "Llama": FAMILIES["Llama"],
    "T5": FAMILIES["T5"],
    "DeBERTa v3": dataclasses.replace(hf_text.FAMILIES["DeBERTa v3"], model="DebertaV2ForMaskedLM"),
}
STEPS = 3
# Steps multiply roundings: float32 shows 4e-4 in gradients after three, and double 1e-12.
FLOAT64_MODEL = 1e-10


def wide_pair(name):
    """A model in float64, and a fused copy of it."""
    model = MODELS[name].make().double()
    return model, relpos.hf.fuse(copy.deepcopy(model))


def batches(family, rows=2, mask="padded"):
    """Inputs with labels; padding has none, nor what is told from padding."""
    for seed in itertools.count():
        given = inputs(family, rows=rows, mask=mask)
        draw = torch.Generator().manual_seed(seed)
        given["input_ids"] = torch.randint(3, 53, given["input_ids"].shape, generator=draw)
        given["labels"] = given.pop("decoder_input_ids", given["input_ids"]).clone()
        seen = given["attention_mask"] == 1
        if family.kind == "decoder":  # a token is told by the one before it
            seen[:, 1:] &= seen[:, :-1].clone()
        if seen.shape == given["labels"].shape:
            given["labels"][~seen] = -100
        yield given


def trained(family, model, call=None, steps=STEPS):
    """The losses of some steps of SGD, and the gradients of the last one."""
    parameters = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.5)
    losses, wide = [], next(model.parameters()).dtype == torch.float64
    for given in itertools.islice(batches(family), steps):
        optimizer.zero_grad()
        caches = {} if family.kind == "encoder" else {"use_cache": False}
        with Float64() if wide else contextlib.nullcontext():
            loss = (model if call is None else call)(**given, **caches).loss
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return torch.tensor(losses), gradients


def same_training(ours, theirs, bound=FLOAT64_MODEL):
    (losses, gradients), (expected, wanted) = ours, theirs
    within(((losses - expected).abs() / expected).max(), bound, "losses")
    assert gradients.keys() == wanted.keys()
    scales = largest_of_modules(wanted)
    for name, gradient in gradients.items():
        within((gradient - wanted[name]).abs().max() / scales[name], bound, name)


@pytest.mark.parametrize("name", MODELS)
def test_steps_are_theirs(name):
    model, fused = (each.train() for each in wide_pair(name))
    before = next(fused.parameters()).clone()
    same_training(trained(MODELS[name], fused), trained(MODELS[name], model))
    assert not torch.equal(before, next(fused.parameters()))


@pytest.mark.parametrize("name", MODELS)
def test_a_step_with_checkpoints_is_theirs(name):
    model, fused = (each.train() for each in pair(MODELS[name]))
    fused.gradient_checkpointing_enable({"use_reentrant": False})
    ours, theirs = (trained(MODELS[name], each, steps=1) for each in (fused, model))
    same_training(ours, theirs, FLOAT32_MODEL)


@pytest.mark.parametrize("name", ["Llama", "T5"])
def test_a_compiled_step_is_theirs(name):
    model, fused = pair(MODELS[name], **{n: 1 for n in _layers(MODELS[name])})
    torch._dynamo.reset()
    compiled = torch.compile(fused, backend="aot_eager", fullgraph=True)
    ours, theirs = trained(MODELS[name], fused, compiled, 1), trained(MODELS[name], model, steps=1)
    same_training(ours, theirs, FLOAT32_MODEL)


def _layers(family):
    return {"num_layers", "num_decoder_layers", "num_hidden_layers"} & family.options.keys()


@pytest.mark.parametrize("name", MODELS)
def test_autocast_is_as_near_as_theirs(name):
    """To float32 without autocast; both round to bfloat16 in the layers around attention."""
    family = MODELS[name]
    given = next(batches(family))
    exact, *found = (copy.deepcopy(each) for each in (pair(family)[0], *pair(family)))
    logits = [exact(**given).logits]
    exact(**given).loss.backward()
    for each in found:
        with torch.autocast("cpu", torch.bfloat16):
            out = each(**given)
        assert out.logits.dtype == torch.bfloat16
        out.loss.backward()
        logits.append(out.logits.float())
    seen = (given["labels"] >= 0)[..., None]
    errors = [((each - logits[0]) * seen).norm() / (logits[0] * seen).norm() for each in logits[1:]]
    assert errors[1] <= 1.5 * errors[0], errors
    norms = []
    for each in found:
        squares = [
            (p.grad - q.grad).square().sum()
            for p, q in zip(each.parameters(), exact.parameters(), strict=True)
            if q.grad is not None
        ]
        norms.append(sum(squares).sqrt())
    assert norms[1] <= 1.5 * norms[0], norms


def with_lora(model):
    """Adapters that already count, of every linear layer."""
    torch.manual_seed(3)
    names = [
        name
        for name, part in model.named_modules()
        if type(part) is torch.nn.Linear and not name.endswith(("lm_head", "decoder"))
    ]  # those have the weights of the embedding
    return peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=names, init_lora_weights=False)
    )


@pytest.mark.parametrize("order", ["fused, then LoRA", "LoRA, then fused"])
@pytest.mark.parametrize("name", MODELS)
def test_lora(name, order, tmp_path):
    family = MODELS[name]
    model = family.make().double()
    theirs = with_lora(copy.deepcopy(model))
    if order == "LoRA, then fused":
        ours = relpos.hf.fuse(with_lora(copy.deepcopy(model)))
    else:
        ours = with_lora(relpos.hf.fuse(copy.deepcopy(model)))
    assert states(ours) == {"fused"}
    same_training(trained(family, ours), trained(family, theirs))
    given = next(batches(family))
    expected = ours(**given).loss
    ours.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(relpos.hf.fuse(copy.deepcopy(model)), tmp_path)
    assert torch.equal(again(**given).loss, expected)
    merged = ours.merge_and_unload()
    assert states(merged) == {"fused"}
    same(merged(**given).loss, expected)


@pytest.mark.parametrize("name", ["Llama", "T5"])
def test_trainer(name, tmp_path):
    """Accumulated gradients, checkpoints of activations, and going on from a saved state."""
    family = MODELS[name]
    rows = [
        {key: value[0] for key, value in given.items()}
        for given in itertools.islice(batches(family, rows=1, mask="ones"), 8)
    ]

    def train(model, folder, resume=None):
        arguments = transformers.TrainingArguments(
            output_dir=tmp_path / folder,
            max_steps=4,
            save_steps=2,
            logging_steps=1,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            gradient_checkpointing=True,
            learning_rate=0.05,
            optim="sgd",
            use_cpu=True,
            disable_tqdm=True,
            report_to=[],
        )
        trainer = transformers.Trainer(model, arguments, train_dataset=rows)
        trainer.train(resume_from_checkpoint=resume)
        return torch.tensor([log["loss"] for log in trainer.state.log_history if "loss" in log])

    model, fused = (each.train() for each in pair(family))
    begun = copy.deepcopy(fused)
    expected, losses = train(model, "theirs"), train(fused, "ours")
    assert len(losses) == 4
    same(losses, expected)
    went_on = train(begun, "again", tmp_path / "ours" / "checkpoint-2")
    assert torch.equal(went_on, losses)
    for ours, theirs, again in zip(
        *(each.parameters() for each in (fused, model, begun)), strict=True
    ):
        same(ours, theirs)
        assert torch.equal(ours, again)
    plain = type(model).from_pretrained(tmp_path / "ours" / "checkpoint-4")
    assert type(plain).__module__.startswith("transformers.")
    given = next(batches(family))
    same(plain.eval()(**given).loss, fused.eval()(**given).loss)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
@pytest.mark.parametrize("name", MODELS)
def test_quantized_layers(name):
    """A number at the middle between two of 8 bits may go either way, so the outputs are equal to a
    part of what quantization itself does to them."""
    family = MODELS[name]
    given = next(batches(family, mask="ones"))

    def quantized(model):
        return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, torch.qint8)

    model, fused = pair(family)
    with torch.no_grad():
        plain = model(**given).logits
        theirs, ours = (quantized(each) for each in (model, fused))
        assert states(ours) == {"fused"}
        assert not any(type(part) is torch.nn.Linear for part in ours.modules())
        expected = theirs(**given).logits
        rounding = (expected - plain).norm()
        assert rounding > 1e-3 * plain.norm()
        within((ours(**given).logits - expected).norm(), 0.25 * rounding)


@pytest.mark.parametrize("name", MODELS)
def test_files(name, tmp_path):
    """Weights go from fused models to others and back, and so do whole models."""
    family = MODELS[name]
    given = next(batches(family))
    model, fused = pair(family)
    trained(family, fused)
    expected = fused(**given).loss
    fused.save_pretrained(tmp_path / "saved")
    assert "relpos" not in (tmp_path / "saved" / "config.json").read_text().lower()
    plain = type(model).from_pretrained(tmp_path / "saved", attn_implementation="eager").eval()
    same(plain(**given).loss, expected)
    assert torch.equal(relpos.hf.fuse(copy.deepcopy(plain))(**given).loss, expected)
    torch.save(fused.state_dict(), tmp_path / "state")
    model.load_state_dict(torch.load(tmp_path / "state"))
    same(model(**given).loss, expected)
    other = relpos.hf.fuse(family.make())
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(**given).loss, expected)
    torch.save(fused, tmp_path / "whole")
    whole = torch.load(tmp_path / "whole", weights_only=False)
    assert states(whole) == {"fused"}
    assert torch.equal(whole(**given).loss, expected)
    same_training(trained(family, whole.double()), trained(family, plain.double()))


@pytest.mark.parametrize("name", ["Llama", "T5"])
def test_from_pretrained_on_relpos(name, tmp_path):
    family = MODELS[name]
    model = family.make()
    model.save_pretrained(tmp_path)
    relpos.hf.register()
    ours = type(model).from_pretrained(tmp_path, attn_implementation="relpos").eval()
    assert states(ours) == {"attention"}
    same_training(trained(family, ours.double()), trained(family, model.double()))
    assert states(relpos.hf.fuse(ours)) == {"fused"}
    with Float64():
        losses = [each(**next(batches(family))).loss for each in (ours, model)]
    same(*losses)
