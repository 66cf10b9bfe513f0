"""Shaw, Uszkoreit, Vaswani 2018, equations 3 to 5: clipped rows for keys and for values."""


def configs(heads, head_dim, value_dim):
    sizes = {"head_dim": head_dim, "value_dim": value_dim}
    return [
        {"max_distance": 3, **sizes},
        {"max_distance": 1, **sizes, "heads": heads},
        {"max_distance": 16, "head_dim": head_dim, "values": False},
        {"max_distance": 4, **sizes, "distance": "query-key", "init": "xavier_normal"},
        {"max_distance": 200, **sizes, "heads": heads, "distance": "query-key"},
    ]


def terms(options, parameters, pos_q, pos_k):
    reach = options["max_distance"]
    distance = pos_k[None, :] - pos_q[:, None]
    if options.get("distance", "key-query") == "query-key":
        distance = -distance
    index = distance.clamp(-reach, reach) + reach
    rows = {"key_rows": parameters["key_table"][..., index, :]}
    if options.get("values", True):
        rows["value_rows"] = parameters["value_table"][..., index, :]
    return rows
