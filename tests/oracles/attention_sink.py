"""OpenAI 2025 (gpt-oss): a score without a value joins the softmax of each row."""

SINKS = True


def configs(heads, head_dim, value_dim):
    return [{"heads": heads}, {"heads": heads, "per_query": True}]


def inputs(options, batch, heads, queries, keys, normal):
    return {"sinks": 2.0 * normal(batch, heads, queries)} if options.get("per_query") else {}


def terms(options, parameters, pos_q, pos_k):
    return {"sink": parameters["sinks"]}
