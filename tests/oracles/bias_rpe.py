"""The clipped scalar bias: one learned number for each head and clipped distance."""


def configs(heads, head_dim, value_dim):
    return [
        {"heads": heads, "max_distance": 8},
        {"heads": heads, "max_distance": 1},
        {"heads": heads, "max_distance": 2},
        {"heads": heads, "max_distance": 512},
        {"heads": heads, "max_distance": 8, "right": 3},
        {"heads": heads, "max_distance": 2, "right": 40},
        {"heads": heads, "max_distance": 9, "symmetric": True},
    ]


def terms(options, parameters, pos_q, pos_k):
    reach = options["max_distance"] - 1
    back = pos_q[:, None] - pos_k[None, :]
    right = options.get("right", reach)
    symmetric = options.get("symmetric", False)
    index = back.abs().clamp(max=reach) if symmetric else back.clamp(-right, reach) + right
    return {"bias": parameters["biases"][:, index]}
