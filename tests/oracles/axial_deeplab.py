"""Wang et al. 2020 (Axial-DeepLab), equation 4: rows of offsets for queries, keys and values."""


def configs(heads, head_dim, value_dim):
    sizes = {"head_dim": head_dim, "value_dim": value_dim}
    return [sizes | {"span": span} for span in (5, 1, 2, 140)]


def terms(options, parameters, pos_q, pos_k):
    last = options["span"] - 1
    distance = pos_k[None, :] - pos_q[:, None]
    near = (distance.abs() <= last)[..., None]
    row = distance.clamp(-last, last) + last
    names = {"key_rows": "query_table", "column_rows": "key_table", "value_rows": "value_table"}
    return {kind: parameters[name][row] * near for kind, name in names.items()}
