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
relpos.attention(x, x)  # call-overload
relpos.attention(x, x, x, None)  # call-overload
relpos.attention(x, x, x, position="t5")  # arg-type
relpos.attention(x, x, x, window=9)  # call-overload
relpos.attention(x, x, x, causal=True)  # call-overload
relpos.attention(x, x, x, float32_products=1)  # call-overload
relpos.scores(x, x, dropout_p=0.1)  # call-arg
relpos.attention_varlen(x, x, x, x, key_range=(x, x))  # call-overload
relpos.attention(x, x, x).missing()  # attr-defined
relpos.distributed.ring_attention(x, x, x, ring=True)  # call-overload
relpos.merge([x])  # call-arg
relpos.KVCache(max_length="9")  # arg-type
relpos.nn.MultiheadAttention("512", 8)  # arg-type
