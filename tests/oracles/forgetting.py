"""Lin et al. 2025 (Forgetting Transformer), equation 4: score += F_i - F_j, F the running sum of
the log of the forget gates. F_i is the same for a whole row and left out."""

import torch

UP_TO_QUERY = True


def configs(heads, head_dim, value_dim):
    return [{}]


def inputs(options, batch, heads, queries, keys, normal):
    return {"log_f": torch.nn.functional.logsigmoid(1.0 + 2.0 * normal(batch, heads, keys))}


def terms(options, parameters, pos_q, pos_k):
    total = parameters["log_f"].cumsum(-1)
    return {"bias": -total[:, None, :].expand(-1, len(pos_q), -1)}
