"""One oracle per scheme: `tests/oracles/NAME.py`, NAME as in `relpos.schemes()`.

The conformance tests loop over the registry, so a new scheme is tested the day its oracle stands
here; a scheme without one fails. An oracle is the paper's formula written plainly in torch over
dense [Lq, Lk] grids. It never calls relpos. It has two functions:

    def configs(heads, head_dim, value_dim) -> list
        Constructor arguments to try, one dict each, for an attention call of these sizes; odd ones
        belong here (one class, no clipping, tables longer and shorter than the sequence). The list
        has the same length at every size; None stands where a size has no such configuration.

    def terms(options, parameters, pos_q, pos_k) -> dict
        `options` is one of those dicts. `parameters` are the module's parameters and buffers by
        dotted name, in the dtype of the computation. `pos_q` [Lq] and `pos_k` [Lk] are int64.
        Any of

        "bias"        [H, Lq, Lk]                      added to the scores after the scale
        "key_rows"    [Lq, Lk, D] or [H, Lq, Lk, D]    scale * <q_i, row_ij> joins the scores
        "column_rows" the same shapes                  scale * <k_j, row_ij> joins the scores
        "value_rows"  [Lq, Lk, Dv] or [H, Lq, Lk, Dv]  join v_j under the weights
        "rotate"      function (x [..., L, D], pos [L]) -> x turned; q and k both pass through it
        "rotate_sizes"  with "rotate": the same with |cos| and |sin| and every sign positive

        Index the parameters with differentiable operations (`table[index]`), so that autograd gives
        the parameters' gradients. Keep angles and bucket edges in double or in integers.

A module that rotates sets `ROTATES = True`: two of them are never summed. A module whose bias is
linear in the distance sets `LINEAR = True`: it counts from each row's nearest visible key on when
the sizes of the addends are summed (`tests/promise.py`). There `options` has "sizes" as well, and
the parameters are the sizes of a module's own.

A whole example, for a bias of one learned number per head for the past and one for the future:

    def configs(heads, head_dim, value_dim):
        return [{"heads": heads}]

    def terms(options, parameters, pos_q, pos_k):
        future = (pos_k[None, :] > pos_q[:, None]).long()
        return {"bias": parameters["side"][:, future]}          # side [H, 2] -> [H, Lq, Lk]
"""
