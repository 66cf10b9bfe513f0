"""Ying et al. 2021 (Graphormer), 3.1.2: a number of each head for the class of a pair, both of them
inputs of the call."""

import torch

CLASSES = 7


def configs(heads, head_dim, value_dim):
    return [{}, {"by_row": True, "hidden": 2}, {"hidden": 255}, {"by_row": True}]


def batched(options):
    """The inputs that have a batch axis in front."""
    return ("classes",) if options.get("by_row") else ()


def drawn_classes(options, batch, queries, keys, normal, classes=CLASSES):
    """uint8, a fifth of them the hidden class, where there is one."""
    shape = (batch, queries, keys) if options.get("by_row") else (queries, keys)
    found = (1e3 * normal(*shape)).long() % classes
    hidden = options.get("hidden")
    if hidden is not None:
        found = torch.where(normal(*shape) > 0.84, hidden, found)
    return found.to(torch.uint8)


def inputs(options, batch, heads, queries, keys, normal):
    shared = options.get("hidden") == 255  # one row of numbers for all heads
    table = normal(1 if shared else heads, CLASSES)
    return {"table": table, "classes": drawn_classes(options, batch, queries, keys, normal)}


def seen(options, given):
    """bool [B or 1, Lq, Lk]: the pairs that are no hidden ones."""
    classes = given["classes"] if options.get("by_row") else given["classes"][None]
    return classes.long() != options.get("hidden", -1)


def rows_of(table, classes):
    """Rows of the last axis but `rank`; a hidden class may have none."""
    return classes.long().clamp(max=table - 1)


def terms(options, parameters, pos_q, pos_k):
    table = parameters["table"]
    return {"bias": table[:, rows_of(table.shape[1], parameters["classes"])]}
