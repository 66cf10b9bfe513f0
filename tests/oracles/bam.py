"""Bianchessi et al. 2025 (BAM): score += -(|(delta - 2 sinh(loc)) exp(scale)| + 1e-5)^shape of
each head, as the authors' code has it."""

NONLINEAR = SPANS = True
EXPONENTS = True  # two of its numbers are exponents: those of 20 overflow float64


def configs(heads, head_dim, value_dim):
    return [{"heads": heads}]


def terms(options, parameters, pos_q, pos_k):
    loc, scale, shape = (parameters[name][0] for name in ("loc", "scale", "shape"))
    delta = (pos_k[None, :] - pos_q[:, None]).to(loc.dtype)
    if "sizes" in options:
        return {"bias": sizes(delta, loc, scale, shape, 2.0**-53 / options["sizes"])}
    z = (delta - (loc.exp() - (-loc).exp())) * scale.exp()
    return {"bias": -((z.abs() + 1e-5) ** shape)}


def sizes(delta, *parameters):
    """Of the value, and of its derivatives as those of a value, whose signs may differ; `off` is
    the rounding of double in units of the result's."""
    *parameters, off = parameters
    loc, scale, shape = (x.detach() for x in parameters)
    d_loc, d_scale, d_shape = (x - x.detach() for x in parameters)
    width = scale.exp()
    base = ((delta - 2 * loc.sinh()) * width).abs() + 1e-5
    value, log = base**shape, base.log().abs()
    # A difference of two numbers, and an exponential of a product
    unsure = off * ((delta.abs() + 2 * loc.abs().sinh()) * width / base)
    value = value * (1 + unsure * (1 + shape.abs()) + off * (1 + log * shape.abs()))
    slope = value / base * shape.abs()
    return value + slope * (2 * loc.cosh() * width * d_loc + base * d_scale) + value * log * d_shape
