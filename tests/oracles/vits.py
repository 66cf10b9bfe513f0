"""Kim et al. 2021 (VITS): rows of near distances for keys and values, zeros beyond."""


def configs(heads, head_dim, value_dim):
    sizes = {"head_dim": head_dim, "value_dim": value_dim}
    return [sizes | {"window_size": window} for window in (4, 0, 1, 150)]


def terms(options, parameters, pos_q, pos_k):
    window = options["window_size"]
    distance = pos_k[None, :] - pos_q[:, None]
    near = (distance.abs() <= window)[..., None]
    row = distance.clamp(-window, window) + window
    return {
        "key_rows": parameters["emb_rel_k"][0, row] * near,
        "value_rows": parameters["emb_rel_v"][0, row] * near,
    }
