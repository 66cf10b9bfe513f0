"""Models of images that relpos.hf fuses, against transformers' own code, forward and backward."""

import copy
import types

import pytest
import relpos
import torch
from relpos.hf import _adapter
from relpos.hf.adapters import swin

from tests.hf.encoder_models import compared, outputs
from tests.hf.hf_models import pair, same, states
from tests.hf.test_hf_models import Largest
from tests.hf.vision_models import VISION, draw
from tests.support.near import close_to_largest

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.peers
@pytest.mark.parametrize("name", VISION)
def test_hidden_states_and_gradients_are_theirs(name, summary):
    family = VISION[name]
    model, fused = pair(family)
    assert states(fused) == {"fused"}
    assert list(fused.state_dict()) == list(model.state_dict())
    errors = compared(family, model, fused, family.given(0, "none"))
    summary.append(f"hf | {name} | fused | {errors[0]:.1e} | {errors[1]:.1e} |")


LONG = {  # of 24 x 24 patches
    "BEiT": {"image_size": 96},
    "BEiT, one table": {"image_size": 96},
    "Data2Vec, images": {"image_size": 96},
    "SAM": {"image_size": 96},
    "ViTDet": {"image_size": 96, "pretrain_image_size": 96},
}


@pytest.mark.parametrize("name", LONG)
def test_nothing_of_lq_times_lk_is_built(name):
    model = relpos.hf.fuse(VISION[name].make(**LONG[name]))
    with Largest() as largest:
        outputs(VISION[name], model, {"pixel_values": draw(1, 3, 96, 96)})
    assert largest.elements < 576 * 576 // 2


@pytest.mark.peers
@pytest.mark.parametrize("name", ["BEiT", "BEiT, one table", "Data2Vec, images", "SAM", "SAM-HQ"])
def test_images_of_other_sizes(name):
    """Tables are resized, as the models do it."""
    family = VISION[name]
    of_sam = "SAM" in name
    more = {"use_abs_pos": False} if of_sam else {"use_absolute_position_embeddings": False}
    model, fused = pair(family, **more)
    for part in (*model.modules(), *fused.modules()):
        if hasattr(part, "image_size") and of_sam:
            part.image_size = (20, 28)
    given = {"pixel_values": draw(2, 3, 20, 28)}
    compared(family, model, fused, given)


@pytest.mark.peers
@pytest.mark.parametrize("name", ["Swin", "Donut's Swin", "Swin V2", "BEiT", "SAM"])
def test_weights_are_theirs(name):
    given = {**VISION[name].given(0, "none"), "output_attentions": True}
    theirs, ours = (model(**given).attentions for model in pair(VISION[name]))
    assert theirs
    for wanted, found in zip(theirs, ours, strict=True):
        same(found, wanted)


@pytest.mark.peers
@pytest.mark.parametrize("name", VISION)
def test_restore_gives_back_every_bit(name):
    family = VISION[name]
    model, fused = pair(family)
    given = family.given(0, "none")
    assert torch.equal(family.called(relpos.hf.restore(fused), given), family.called(model, given))


@pytest.mark.peers
@pytest.mark.parametrize("name", VISION)
def test_models_of_meta_tensors_are_fused(name):
    family = VISION[name]
    with torch.device("meta"):
        model = family.configured()
    assert states(relpos.hf.fuse(model)) == {"fused"}


def test_biases_that_levit_keeps_are_not_those_of_its_weights():
    """In evaluation mode it keeps them, and reads them after its weights have changed."""
    family = VISION["LeViT"]
    model, _ = pair(family)
    given = family.given(0, "none")
    with torch.no_grad():
        family.called(model.eval(), given)
        for name, weights in model.named_parameters():
            if name.endswith("attention_biases"):
                weights.normal_()
    fused = relpos.hf.fuse(copy.deepcopy(model))
    assert states(fused) == {"fused"}
    model.train()
    model.eval()
    same(family.called(fused, given), family.called(model, given))


def test_a_mask_of_regions_is_none_of_numbers():
    numbers = torch.tensor([[0, 0, 1, 1, 2, 0], [3, 3, 3, 3, 3, 3]])
    mask = torch.where(numbers[:, :, None] == numbers[:, None], 0.0, -100.0)
    found, apart = swin._regions(mask)
    pairs = found[:, None] - found[:, :, None]
    assert torch.equal(apart[0][pairs + 5], mask)
    mask[0, 0, 1] = -100.0
    assert swin._regions(mask) is None
    assert swin._regions(draw(2, 6, 6)) is None
    assert swin._regions(torch.zeros(2, 6, 6))[1].eq(0.0).all()


@pytest.mark.peers
def test_a_window_of_another_size_is_an_error():
    _, fused = pair(VISION["Swin"])
    attention = fused.encoder.layers[0].blocks[0].attention
    with pytest.raises(ValueError, match=r"9 tokens of a window of 3 x 3, got 4"):
        attention(draw(1, 4, 16))


COPIES = {
    "got_ocr2": "GotOcr2VisionAttention",
    "slanext": "SLANeXtVisionAttention",
    "pp_formulanet": "PPFormulaNetVisionAttention",
    "deepseek_ocr2": "DeepseekOcr2SamVisionAttention",
    "unlimited_ocr": "UnlimitedOcrSamVisionSdpaAttention",
    "seggpt": "SegGptAttention",
}


def of_copy(folder, name):
    """An attention module of 5 x 5 patches, with random rows."""
    module = __import__(f"transformers.models.{folder}.modeling_{folder}", fromlist=[name])
    config = types.SimpleNamespace(
        image_size=20,
        patch_size=4,
        hidden_size=16,
        num_attention_heads=2,
        qkv_bias=True,
        attention_dropout=0.0,
        use_rel_pos=True,
        use_relative_position_embeddings=True,
    )
    given = (config,) if name == "SegGptAttention" else (config, 0)
    made = getattr(module, name)(*given)
    for rows in (made.rel_pos_h, made.rel_pos_w):
        torch.nn.init.normal_(rows)
    return made


@pytest.mark.peers
@pytest.mark.parametrize("folder", COPIES)
def test_copies_of_sam_s_encoder(folder):
    theirs = of_copy(folder, COPIES[folder])
    ours = copy.deepcopy(theirs)
    plan = _adapter.find(ours).plan(ours, torch.nn.Sequential(ours))
    _adapter.apply(plan, ours)
    for size in ((5, 5), (3, 6)):
        states_of = [draw(2, *size, 16).requires_grad_() for _ in range(2)]
        outs = [m(x)[0] for m, x in zip((ours, theirs), states_of, strict=True)]
        same(*outs)
        for out in outs:
            (out * draw(*out.shape)).sum().backward()
        same(states_of[0].grad, states_of[1].grad)
        same(ours.rel_pos_h.grad, theirs.rel_pos_h.grad)


@pytest.mark.peers
@pytest.mark.parametrize("deviates", ["rows", "scale", "index"])
def test_another_attention_of_the_same_name_stays(deviates):
    name = "Swin" if deviates == "index" else "SAM"
    model = VISION[name].make()
    for part in model.modules():
        if deviates == "index" and hasattr(part, "relative_position_index"):
            part.relative_position_index = part.relative_position_index.flip(0)
        elif type(part).__name__ == "SamVisionAttention":
            if deviates == "scale":
                part.scale = torch.tensor([part.scale, 1.0] * 4)
            else:
                own = part.get_rel_pos
                part.get_rel_pos = lambda *given, own=own: own(*given).flip(1)
    given = VISION[name].given(0, "none")
    wanted = VISION[name].called(model, given)
    fused = relpos.hf.fuse(copy.deepcopy(model))
    assert states(fused) == {"untouched"}
    assert torch.equal(VISION[name].called(fused, given), wanted)


@pytest.mark.peers
@pytest.mark.parametrize("name", ["Swin", "BEiT"])
def test_one_graph(name):
    """A mask of shifted windows stays one of numbers in a graph, which cannot ask for regions."""
    torch._dynamo.reset()
    family = VISION[name]
    _, model = pair(family)
    given = family.given(0, "none")
    graph = torch.compile(model, fullgraph=True, backend="aot_eager")
    same(family.called(graph, given), family.called(model, given))


# Torch's own attention in bfloat16 is up to 0.05 of the largest value from float32 here, with the
# cosines and scales of Swin V2 the farthest; theirs and ours are as near.
@pytest.mark.peers
@pytest.mark.parametrize("name", ["Swin", "Swin V2", "BEiT", "LeViT", "SAM"])
def test_bfloat16_and_autocast(name):
    family = VISION[name]
    model, fused = pair(family)
    given = family.given(0, "none")
    exact = family.called(model, given).detach()
    low = family.called(copy.deepcopy(fused).bfloat16(), given)
    assert low.dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        cast = family.called(fused, given)
    for out in (low, cast):
        out.sum().backward()
        close_to_largest(out.float(), exact, 0.1)
