"""Shaw, Uszkoreit, Vaswani 2018, equations 3 to 5: clipped rows for keys and for values."""


def configs(heads, head_dim, value_dim):
    sizes = {"head_dim": head_dim, "value_dim": value_dim}
    return [
        {"max_distance": 3, **sizes},
        {"max_distance": 1, **sizes, "heads": heads},
        {"max_distance": 16, "head_dim": head_dim, "values": False},
        {"max_distance": 4, **sizes, "distance": "query-key", "init": "xavier_normal"},
        {"max_distance": 200, **sizes, "heads": heads, "distance": "query-key"},
        {"max_distance": 6, **sizes, "left": 9, "right": 2},
        {"max_distance": 5, **sizes, "right": 4, "distance": "query-key"},
        {"max_distance": 7, "head_dim": head_dim, "values": False, "rows": 31},
        {"max_distance": 3, **sizes, "rows": 9, "distance": "query-key", "left": 2},
    ]


def terms(options, parameters, pos_q, pos_k):
    left, right = (options.get(side, options["max_distance"]) for side in ("left", "right"))
    clipped = (pos_k[None, :] - pos_q[:, None]).clamp(-left, right)
    mirrored = options.get("distance", "key-query") == "query-key"
    index = right - clipped if mirrored else clipped + left
    if "rows" in options:
        middle = (options["rows"] - 1) // 2
        index = middle - clipped if mirrored else middle + clipped
    rows = {"key_rows": parameters["key_table"][..., index, :]}
    if options.get("values", True):
        rows["value_rows"] = parameters["value_table"][..., index, :]
    return rows
