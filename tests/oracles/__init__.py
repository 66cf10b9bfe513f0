"""One oracle per scheme: `tests/oracles/NAME.py`, NAME as in `relpos.schemes()`. A term that is
given with the call (`src/schemes/terms/NAME.cc`) may have one, too.

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
        "key_rows_added"  with "key_rows": [H, D]      is added to q_i in that product
        "segment_rows", "segment_rows_added"           the same once more
        "unscaled_rows"  the shapes of "key_rows"      <q_i, row_ij> joins the scores unscaled
        "column_rows" the shapes of "key_rows"         scale * <k_j, row_ij> joins the scores
        "value_rows"  [Lq, Lk, Dv] or [H, Lq, Lk, Dv]  join v_j under the weights
        "query_added" [H, D]                           is added to q_i in scale * <q_i, k_j>
        "sink"        [H] or [H, Lq]                   joins the softmax without a value
        "rotate"      function (x [..., L, D], pos [L]) -> x turned; q and k both pass through it
        "rotate_sizes"  with "rotate": the same with |cos| and |sin| and every sign positive
        "q_coordinates", "k_coordinates"  what "rotate" takes in place of positions: [axes, L], or
                      cosines and sines
        "decay"       with "rotate": function (steps [L]) -> [L, D]; dim d of a product shrinks by
                      decay(pos_q - pos_k)

        Index the parameters with differentiable operations (`table[index]`), so that autograd gives
        the parameters' gradients. Keep angles and bucket edges in double or in integers.

More functions where a scheme has what they stand for:

    def inputs(options, batch, heads, queries, keys, normal) -> dict
        What the position takes by call: tensors with a batch axis by name, in the order in which
        they are given. `normal(*shape)` draws numbers. `terms` finds those of one batch row among
        its parameters.

    def batched(options) -> names
        The inputs that have a batch axis in front; without it, all have.

    def seen(options, given) -> bool [B or 1, Lq, Lk]
        Pairs that no hidden class hides. Such schemes stay out of packed calls and rings.

    def place(options, tokens) -> positions
        The positions of tokens by number, int64 of any shape, where the call gives none. Where keys
        stand elsewhere, place_keys says where.

    def places(options) -> bool
        Whether `place` holds; without it, it does.

What else the tests must know of a scheme, as attributes of the module:

    ROTATES    True where it rotates: two that do are never summed; nor are two that place tokens.
    UP_TO_QUERY  True where its scores lack a number for each query, which a softmax does not see.
    SINKS      True where it gives sinks, which do see it: the two are never summed.
    LINEAR     True where its bias is linear in the distance: it counts from each row's nearest
               visible key on when the sizes of the addends are summed (`tests/support/promise.py`).
    NONLINEAR  True where its parameters enter by a formula that is not linear in them: sizes are
               those of the formula's values and derivatives.
    EXPONENTS  True where parameters are exponents: tests draw small ones.
    HEAD_DIM   True where `inputs` takes the head size as a last argument.
    READS_LENGTH  True where terms depend on the length of the call: options["call_length"] is one
               more than the last position of all its batch rows. The first configuration does not:
               it gives the length.
    GROWS      True where products grow with the distance of keys ahead, beyond float32 where they
               are far: tests draw none there.
    NEAR       True where positions that are far from 0 are refused.
    KEY_HEADS  True where parameters are of key heads: configs takes their number as a fourth
               argument.
    SPANS      True where a number is computed for each distance between the least and the greatest
               of a call: its tests keep positions together.

Where sizes are summed, `options` has "sizes", the rounding of the computation, and the parameters
are the sizes of a module's own (themselves, if NONLINEAR).

A whole example, for a bias of one learned number per head for the past and one for the future:

    def configs(heads, head_dim, value_dim):
        return [{"heads": heads}]

    def terms(options, parameters, pos_q, pos_k):
        future = (pos_k[None, :] > pos_q[:, None]).long()
        return {"bias": parameters["side"][:, future]}          # side [H, 2] -> [H, Lq, Lk]
"""
