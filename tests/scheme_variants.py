"""Small positions of every scheme in the registry, one per value of each option."""

import relpos

HEADS, HEAD_DIM = 2, 4
SIZES = {"heads": HEADS, "head_dim": HEAD_DIM}


def variants():
    """(test id, class, options), the required options alone first."""
    for scheme in relpos.schemes():
        base = scheme.example()
        base |= {name: SIZES[name] for name in base if name in SIZES}
        yield scheme.name, scheme, base
        for option in scheme.options:
            values = (False, True) if option.type == "bool" else option.choices
            values = [v for v in values if v != base.get(option.name, option.default)]
            if option.name in SIZES and option.name not in base:
                values = [SIZES[option.name]]
            for value in values:
                yield f"{scheme.name}-{option.name}={value}", scheme, base | {option.name: value}


VARIANTS = list(variants())
IDS = [name for name, _, _ in VARIANTS]


def build(scheme, options):
    return getattr(relpos, scheme.class_name)(**options)
