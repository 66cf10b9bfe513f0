"""Shaw et al. 2018, 3.3, on a graph: a query, or a vector of it, meets a row for the class of each
pair. All are inputs of the call."""

from tests.oracles.pair_bias import drawn_classes, rows_of, seen

__all__ = ["batched", "configs", "inputs", "seen", "terms"]

HEAD_DIM = True  # inputs() takes it
CLASSES, RANK = 40, 5


def configs(heads, head_dim, value_dim):
    return [
        {},
        {"by_row": True, "by_head": True, "scale": 0.3},
        {"factor": True, "scale": 0.4, "hidden": 7},
        {"factor": True, "by_head": True, "scale": 0.6, "by_row": True, "hidden": 200},
    ]


def batched(options):
    """The inputs that have a batch axis in front."""
    return ("classes", "factor") if options.get("by_row") else ("factor",)


def inputs(options, batch, heads, queries, keys, normal, head_dim):
    factor = options.get("factor")
    shape = (CLASSES, RANK if factor else head_dim)
    given = {
        "table": 0.5 * normal(*((heads, *shape) if options.get("by_head") else shape)),
        "classes": drawn_classes(options, batch, queries, keys, normal, CLASSES),
    }
    return given | ({"factor": normal(batch, heads, queries, RANK)} if factor else {})


def terms(options, parameters, pos_q, pos_k):
    table, scale = parameters["table"], options.get("scale")
    classes = rows_of(CLASSES, parameters["classes"])
    rows = table[:, classes] if options.get("by_head") else table[classes]  # [(H,) Lq, Lk, r]
    if options.get("factor"):
        return {"bias": scale * (rows * parameters["factor"][:, :, None]).sum(-1)}
    return {"key_rows": rows} if scale is None else {"unscaled_rows": scale * rows}
