"""Attention with T5's bias and the gradient of its table, on arrays of NumPy alone."""

import numpy as np
import relpos.numpy as rn

random = np.random.default_rng(0)
q, k, v = (random.standard_normal((1, 8, 64, 32), np.float32) for _ in range(3))
(spec,) = rn.parameters("t5(heads=8)")
table = random.standard_normal(spec.shape, np.float32)
call = {"position": "t5(heads=8)", "parameters": [table], "is_causal": True}

out, softmax = rn.attention(q, k, v, return_softmax=True, **call)
found = rn.attention_backward(np.ones_like(out), q, k, v, out=out, softmax=softmax, **call)
print("out", out.shape, "gradient of", spec.name, found.parameters[0].shape)
