"""Small random-weight models of speech and of images that relpos.hf fuses."""

import copy
import importlib
import operator
from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers

from tests.hf.hf_models import FLOAT32_MODEL, Family, within_float32
from tests.hf.test_hf_models import largest_of_modules
from tests.support.near import within
from tests.support.peer_modes import Float64

FLOAT64_MODEL = 1e-10
RESULT = "result"

# Parameters that stand for positions; transformers draws them small or as zeros.
_POSITIONS = (
    *("bias_u", "bias_v", "rel_pos", "distance_embedding", "relative_position_bias_table"),
    *("rel_attn_embed", "attention_biases", "emb_rel", "pe_k", "gru_rel_pos_const"),
)


@dataclass(frozen=True)
class Encoder(Family):
    """A model, what it reads, and where its outputs count.

    given(length, mask): the inputs, with "padded" rows or "none" of them. seen(outputs, given):
    which outputs [B, L] are of no padding; None: all count. folder: of the model, where
    transformers does not show its class. part: the submodule that is called.
    """

    given: Callable[[int, str], dict] | None = None
    seen: Callable[[torch.nn.Module, dict], torch.Tensor] | None = None
    folder: str = ""
    part: str = ""

    def configured(self, **more) -> torch.nn.Module:
        name = self.model
        where = transformers
        if self.folder:
            folder = self.folder.removesuffix("_swin").removesuffix("_vision")
            where = importlib.import_module(f"transformers.models.{folder}.modeling_{self.folder}")
        config = getattr(transformers, self.config)(**{**self.options, **more})
        return getattr(where, name)(config)

    def make(self, **more) -> torch.nn.Module:
        model = super().make(**more)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if any(each in name for each in _POSITIONS):
                    parameter.normal_()
                elif parameter.dim() > 2:  # convolutions: numbers stay as large as they come
                    parameter.normal_(0.0, parameter[0].numel() ** -0.5)
            for part in model.modules():
                if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
                    torch.nn.init.constant_(part.weight, 0.5)
        return model

    def called(self, model, given):
        """The first output."""
        called = operator.attrgetter(self.part)(model) if self.part else model
        return called(**cast(model, given))[0]


def cast(model, given):
    """Inputs of the model's dtype; copies, since some models write into theirs."""
    dtype = next(model.parameters()).dtype
    return {
        name: x.clone().to(dtype) if x.is_floating_point() else x.clone()
        for name, x in given.items()
    }


def outputs(family, model, given):
    """The first output where it counts, and the gradient of every parameter."""
    model.zero_grad(set_to_none=True)
    out = family.called(model, given)
    if family.seen is not None:
        seen = family.seen(model, cast(model, given)).to(out.dtype)
        out = out * seen.view(*seen.shape, *[1] * (out.dim() - seen.dim()))
    steps = torch.arange(out.numel(), dtype=torch.float64)
    weights = torch.sin(steps * 0.37).to(torch.float32).view_as(out).to(out.dtype)
    (out * weights).sum().backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return out.detach(), gradients


def compared(family, model, fused, given):
    """Outputs and gradients against transformers' own in float64, within the bounds of float32
    and of float64. Returns the errors in float32.

    Of a gradient that cancels, as that of a scale of Swin V2, theirs may be off by more, too."""
    with Float64():
        exact = outputs(family, copy.deepcopy(model).double(), given)
        wide = outputs(family, copy.deepcopy(fused).double(), given)
    for name, error in _errors(wide, exact).items():
        within(error, FLOAT64_MODEL, name)
    ours = _errors(outputs(family, fused, given), exact)
    result = ours.pop(RESULT)
    within(result, FLOAT32_MODEL, RESULT)
    within_float32(ours, model, lambda each: _errors(outputs(family, each, given), exact))
    return result, max(ours.values(), default=0.0)


def _errors(found, exact):
    """{RESULT or a parameter: error, of the largest number of the result or of its module}."""
    (out, gradients), (wanted, exact_gradients) = found, exact
    assert gradients.keys() == exact_gradients.keys()
    scales = largest_of_modules(exact_gradients)
    errors = {
        name: (gradient - exact_gradients[name]).abs().max().item() / scales[name]
        for name, gradient in gradients.items()
        if scales[name]
    }
    return errors | {RESULT: ((out - wanted).abs().max() / wanted.abs().max()).item()}


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def shown(length, mask):
    """int64 [2, length], 0 for what is padded; the second row's last part."""
    seen = torch.ones(2, length, dtype=torch.int64)
    if mask == "padded":
        seen[1, length * 3 // 5 :] = 0
    return seen
