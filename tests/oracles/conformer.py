"""Gulati et al. 2020 (Conformer): projected sinusoids of the distance, sine beside cosine."""

from tests.oracles.transformer_xl import by_head, distances, waves

SPANS = True


def configs(heads, head_dim, value_dim):
    sizes = {"heads": heads, "head_dim": head_dim}
    return [sizes | {"width": 8}, sizes | {"width": 2}, sizes | {"width": 34}]


def terms(options, parameters, pos_q, pos_k):
    n, at = distances(options, pos_q, pos_k)
    width = options.get("width", options["heads"] * options["head_dim"])
    features = waves(options | {"width": width}, n, beside=True)
    return {
        "query_added": parameters["pos_bias_u"],
        "key_rows": by_head(parameters["linear_pos.weight"], options["heads"], features)[:, at],
        "key_rows_added": parameters["pos_bias_v"],
    }
