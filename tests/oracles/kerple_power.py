"""Chi et al. 2022 (KERPLE), the power kernel: score += -a n^p, 0 < p <= 2, as gpt-neox has it."""

import torch

from tests.oracles.kerple_log import clamped, configs, far  # noqa: F401

NONLINEAR = SPANS = True


def terms(options, parameters, pos_q, pos_k):
    p, a = clamped(parameters["bias_p"], 0.01, 2.0), clamped(parameters["bias_a"], 0.01)
    return {"bias": -a * torch.pow(far(options, pos_q, pos_k, p.dtype), p)}
