"""Huang et al. 2020, methods 1 and 4: the same rows of distances meet queries and keys."""


def configs(heads, head_dim, value_dim):
    sizes = {"head_dim": head_dim}
    return [
        sizes | {"positions": 8},
        sizes | {"positions": 1},
        sizes | {"positions": 200, "kind": "relative_key"},
        sizes | {"positions": 3, "kind": "relative_key"},
    ]


def terms(options, parameters, pos_q, pos_k):
    last = options["positions"] - 1
    row = (pos_q[:, None] - pos_k[None, :]).clamp(-last, last) + last
    rows = parameters["distance_embedding.weight"][row]
    found = {"key_rows": rows}
    return found | {"column_rows": rows} if options.get("kind") != "relative_key" else found
