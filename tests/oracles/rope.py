"""Su et al. 2021 (RoFormer), equation 34: pair p turns by position * base^(-2p/dims)."""

import torch

ROTATES = True


def configs(heads, head_dim, value_dim):
    even = head_dim - head_dim % 2
    if even == 0:
        return [None] * 8
    part = half_of(even)
    return [
        {"head_dim": head_dim, "layout": "half", "rotary_dim": even},
        {"head_dim": head_dim, "layout": "interleaved", "rotary_dim": even},
        {"head_dim": head_dim, "layout": "half", "rotary_dim": part, "base": 500000.0},
        {"head_dim": head_dim, "layout": "interleaved", "rotary_dim": part, "base": 100.0},
        {"head_dim": head_dim, "layout": "interleaved", "rotary_dim": 2},
        {"head_dim": head_dim, "layout": "half", "rotary_dim": even, "angle": "float32"},
        None if head_dim % 2 else {"head_dim": head_dim, "layout": "half"},
        {"head_dim": head_dim, "layout": "half", "rotary_dim": part, "start": head_dim - part},
    ]


def half_of(dims):
    """An even number of dims, at least 2."""
    return max(2, dims // 2 - dims // 2 % 2)


def sized(head_dim, *variants, multiple=2):
    """Options of variants with the sizes of a head that turns as far as it can, in layout half
    unless they say another; None for each where the head is too small."""
    most = head_dim - head_dim % multiple
    if most == 0:
        return [None] * len(variants)
    return [{"head_dim": head_dim, "rotary_dim": most, "layout": "half"} | own for own in variants]


def dims_of(options):
    return options.get("rotary_dim") or options["head_dim"] - options.get("start", 0)


def inverse_frequencies(options, dims):
    """base^(-2p/dims) [dims / 2], in double. "float32" rounds each step of 1 / base^(2p/dims) to
    float32, as Hugging Face's Llama does."""
    pair = torch.arange(0, dims, 2, dtype=torch.float64)
    base = options.get("base", 10000.0)
    if options.get("angle", "double") == "float32":
        base = torch.tensor(base, dtype=torch.float32).double()
        return 1.0 / (base ** (pair / dims).float().double()).float()
    return base ** (-pair / dims)


def pairs(options, x, cos, sin, minus):
    """x [..., L, D] with its pairs turned by cos and sin [..., L, pairs]; `minus` is the sign of
    the first sine."""
    dims, start = dims_of(options), options.get("start", 0)
    before, turned, rest = x.split([start, dims, x.shape[-1] - start - dims], dim=-1)
    if options.get("layout", "interleaved") == "half":
        a, b = turned[..., : dims // 2], turned[..., dims // 2 :]
        both = torch.cat([a * cos + minus * b * sin, b * cos + a * sin], dim=-1)
    else:
        a, b = turned[..., 0::2], turned[..., 1::2]
        both = torch.stack([a * cos + minus * b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    return torch.cat([before, both, rest], dim=-1)


def rotation(options, frequency, magnitude=1.0, axes=None):
    """The terms of a rotation by position * frequency, the product in the frequency's dtype, with
    cosines and sines times a magnitude. With axes, pairs turn by axes(position) [L, pairs] instead
    of the position."""

    def angles(position):
        by = position[:, None] if axes is None else axes(position)
        return (by.to(frequency.dtype) * frequency[None, :]).double()

    def rotate(x, position):
        angle = angles(position)
        cos, sin = magnitude * angle.cos(), magnitude * angle.sin()
        return pairs(options, x, cos.to(x.dtype), sin.to(x.dtype), -1)

    def rotate_sizes(x, position):
        angle = angles(position)
        cos, sin = angle.cos().abs() + 2.0**-20, angle.sin().abs() + 2.0**-20
        return pairs(options, x, magnitude * cos, magnitude * sin, 1)

    return {"rotate": rotate, "rotate_sizes": rotate_sizes}


def terms(options, parameters, pos_q, pos_k):
    return rotation(options, inverse_frequencies(options, dims_of(options)))
