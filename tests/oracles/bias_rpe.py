"""The clipped scalar bias: one learned number for each head and clipped distance."""


def configs(heads, head_dim, value_dim):
    return [
        {"heads": heads, "max_distance": 8},
        {"heads": heads, "max_distance": 1},
        {"heads": heads, "max_distance": 2},
        {"heads": heads, "max_distance": 512},
    ]


def terms(options, parameters, pos_q, pos_k):
    reach = options["max_distance"] - 1
    index = (pos_q[:, None] - pos_k[None, :]).clamp(-reach, reach) + reach
    return {"bias": parameters["biases"][:, index]}
