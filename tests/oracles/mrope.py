"""Wang et al. 2024 (Qwen2-VL), M-RoPE: a pair turns by time, row or column of a token."""

import torch

from tests.oracles.rope import dims_of, inverse_frequencies, rotation, sized

ROTATES = True


def configs(heads, head_dim, value_dim):
    pairs = head_dim // 2
    thirds = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    return sized(
        head_dim,
        {},
        {"section": thirds, "interleaved": True, "base": 100.0},
        {"section": [0, pairs, 0], "layout": "interleaved"},
        {"section": thirds, "angle": "float32"},
    )


def inputs(options, batch, heads, queries, keys, normal):
    def drawn(length):
        return (15.0 * normal(batch, 3, length)).long()

    return {"q_coordinates": drawn(queries), "k_coordinates": drawn(keys)}


def axis_of_pairs(options, pairs):
    first = [pairs // 4, 3 * pairs // 8]
    section = options.get("section") or [*first, pairs - sum(first)]
    if not options.get("interleaved", False):
        return torch.tensor([axis for axis, count in enumerate(section) for _ in range(count)])
    axis = torch.zeros(pairs, dtype=torch.int64)
    for each in (1, 2):
        axis[each : 3 * section[each] : 3] = each
    return axis


def terms(options, parameters, pos_q, pos_k):
    dims = dims_of(options)
    axis = axis_of_pairs(options, dims // 2)
    turn = rotation(options, inverse_frequencies(options, dims), axes=lambda at: at[axis].T)
    return turn | {name: parameters[name] for name in ("q_coordinates", "k_coordinates")}
