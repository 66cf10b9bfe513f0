"""What mypy must refuse: the stubs say more than Any. A comment names the error of its line."""

import relpos
import torch

x = torch.zeros(1, 8, 4, 64)
relpos.T5Bias()  # call-arg
relpos.T5Bias("8")  # arg-type
relpos.T5Bias(8, 32, 128, True, 1.0, 5)  # call-arg
relpos.RoPE(64)  # call-arg
relpos.RoPE(64, layout=1)  # arg-type
relpos.ALiBi(8, "paper")  # call-arg
relpos.NoSuchScheme(8)  # attr-defined
relpos.attention(x, x)  # call-arg
relpos.attention(x, x, x, None)  # call-arg
relpos.attention(x, x, x, position="t5")  # arg-type
relpos.attention(x, x, x, window=9)  # arg-type
relpos.attention(x, x, x, causal=True)  # call-arg
relpos.merge([x])  # call-arg
relpos.KVCache(max_length="9")  # arg-type
relpos.nn.MultiheadAttention("512", 8)  # arg-type
