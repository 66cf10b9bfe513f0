"""relpos.jax beside plain jnp, and under JAX's transformations."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import relpos
import relpos.jax as rj
import relpos.numpy as rn

from tests import FULL, ROOT
from tests.support.arrays import REFUSED, X

B, H, HK, L, D, DV = 2, 4, 2, 13, 8, 6


def drawn(dtype, *shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def inputs(dtype, key_heads=H):
    shapes = ((B, H, L, D), (B, key_heads, L, D), (B, key_heads, L, DV))
    return [drawn(dtype, *shape, seed=n) for n, shape in enumerate(shapes)]


# The twins: each formula in jnp alone, on the grid of distances k - q of L tokens.


def distances():
    places = jnp.arange(L)
    return places[None, :] - places[:, None]


def t5(table):
    """Causal buckets of T5, 32 of them up to distance 128, half exact."""
    back = jnp.maximum(-distances(), 0)
    far = 16 + (jnp.log(jnp.maximum(back, 1) / 16) / jnp.log(128 / 16) * 16).astype(jnp.int32)
    return table[jnp.where(back < 16, back, jnp.minimum(far, 31))].transpose(2, 0, 1)


def alibi():
    slopes = 2.0 ** (-8.0 * jnp.arange(1, H + 1) / H)
    return slopes[:, None, None] * distances()


def turned(x):
    """Rotated by halves, base 10000."""
    angles = jnp.arange(L)[:, None] * 10000.0 ** (-jnp.arange(0, D, 2) / D)
    a, b = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attend(q, k, v, bias=0.0, rows=None, sinks=None, softcap=None, window=None, values=None):
    """(out, lse) of causal attention; rows, values [2 clip + 1, size] by clipped distance."""
    k, v = (jnp.repeat(x, H // x.shape[1], axis=1) for x in (k, v))
    scores = jnp.einsum("bhid,bhjd->bhij", q, k)
    clip = None if rows is None else (rows.shape[0] - 1) // 2
    if rows is not None:
        of = jnp.clip(distances(), -clip, clip) + clip
        scores = scores + jnp.einsum("bhid,ijd->bhij", q, rows[of])
    scores = scores * D**-0.5 + bias
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    seen = distances() <= 0
    if window is not None:
        seen &= distances() >= -window
    scores = jnp.where(seen, scores, -jnp.inf)
    if sinks is not None:
        held = jnp.broadcast_to(sinks[:, None, None], (B, H, L, 1))
        scores = jnp.concatenate([scores, held], -1)
    lse = jax.nn.logsumexp(scores, axis=-1)
    weights = jnp.exp(scores - lse[..., None])[..., :L]
    out = jnp.einsum("bhij,bhje->bhie", weights, v)
    if values is not None:
        out = out + jnp.einsum("bhij,ije->bhie", weights, values[of])
    return out, lse


def with_t5(q, k, v, table):
    return attend(q, k, v, t5(table))


def with_rope(q, k, v):
    return attend(turned(q), turned(k), v)


def with_shaw(q, k, v, rows, values):
    return attend(q, k, v, rows=rows, values=values)


def with_sum(q, k, v, table):
    return attend(turned(q), turned(k), v, t5(table) + alibi(), softcap=2.5, window=5)


def with_sinks(q, k, v, sinks, mask):
    return attend(q, k, v, mask, sinks=sinks)


def called(position, names=(), *, key_heads=H, **options):
    """The call that a twin is of: the tensors after q, k, v are options of these names, then
    parameters."""

    def call(q, k, v, *rest):
        given = dict(zip(names, rest, strict=False)) | {"parameters": rest[len(names) :]}
        options.setdefault("enable_gqa", key_heads != H)
        of = {"position": position, "is_causal": True, "return_lse": True, **options}
        return rj.attention(q, k, v, **of, **given)

    return call


# name: (twin, call, shapes of what follows q, k, v, key heads)
T5 = "t5(heads=4, bidirectional=false)"
ROPE = "rope(head_dim=8, layout=half)"
TWINS = {
    "t5": (with_t5, called(T5), [(32, H)], H),
    "rope": (with_rope, called(ROPE, key_heads=HK), [], HK),
    "shaw": (
        with_shaw,
        called("shaw(head_dim=8, value_dim=6, max_distance=3)"),
        [(7, D), (7, DV)],
        H,
    ),
    "sum": (
        with_sum,
        called(f"{T5}+{ROPE}+alibi(heads=4)", softcap=2.5, window=(5, 0)),
        [(32, H)],
        H,
    ),
    "sinks": (
        with_sinks,
        called(None, ("sinks", "attn_mask"), key_heads=HK),
        [(H,), (1, H, L, L)],
        HK,
    ),
}
DTYPES = {"float64": 2e-13, "float32": 3e-5, "float16": 3e-2, "bfloat16": 2e-1}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for n, name in enumerate(TWINS)
        for m, dtype in enumerate(DTYPES)
        if FULL or (n + m) % 2 == 0
    ],
)
def test_equals_plain_jnp(name, dtype):
    """Forward and the gradients of everything, of jnp in float64."""
    twin, call, shapes, key_heads = TWINS[name]
    with jax.enable_x64(True):
        given = [*inputs(dtype, key_heads), *(drawn(dtype, *s, seed=9) for s in shapes)]
        exact = [x.astype(jnp.float64) for x in given]
        dout, dlse = drawn(jnp.float64, B, H, L, DV, seed=7), drawn(jnp.float64, B, H, L, seed=8)
        want, pull = jax.vjp(twin, *exact)
        got, pulled = jax.vjp(jax.jit(call), *given)
        wants = [*want, *pull((dout, dlse))]
        gots = [*got, *pulled((dout.astype(dtype), dlse.astype(got[1].dtype)))]
    assert got[0].dtype == dtype
    for n, (a, b) in enumerate(zip(gots, wants, strict=True)):
        assert a.shape == b.shape
        error = np.abs(np.asarray(a, np.float64) - np.asarray(b)).max()
        assert error <= DTYPES[dtype] * max(1.0, np.abs(b).max()), (n, error)


@pytest.fixture
def held():
    q, k, v = inputs(jnp.float32)
    return q, k, v, drawn(jnp.float32, 32, H, seed=3)


def loss(q, k, v, table, **options):
    options = {"position": T5, "parameters": [table], "is_causal": True, **options}
    return (rj.attention(q, k, v, **options) ** 2).sum()


def each(function, count, *args):
    """One call for each index of the first axis, stacked."""
    found = [function(*(x[n] for x in args)) for n in range(count)]
    return jax.tree.map(lambda *x: jnp.stack(x), *found)


def same_tree(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.shape == b.shape
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


# What differs between the mapped calls, and the axis by which it is mapped; None: shared.
MAPPED = {
    "query, key and value": {"q": 0, "k": 0, "v": 0},
    "query alone": {"q": 0},
    "an inner axis": {"q": 3, "k": 2},
    "parameters": {"table": 0},
    "a mask": {"q": 0, "mask": 0},
    "a mask of its rank": {"q": 0, "k": 0, "v": 0, "whole": 0},
    "padding": {"padding": 1, "v": 0},
    "offsets": {"offset": 0, "q": 0},
    "positions": {"q": 0, "at": 0},
    "everything": dict.fromkeys(("q", "k", "v", "table", "mask", "padding", "offset"), 0),
}


def mapped_inputs(batch, axes):
    """{name: (value, axis or None)}, with three of each that is mapped."""
    random = np.random.default_rng(5)
    shapes = {
        "q": (batch, H, L, D),
        "k": (batch, H, L, D),
        "v": (batch, H, L, DV),
        "table": (32, H),
        "mask": (L, L),
        "whole": (batch, 1, L, L),
        "padding": (batch, L),
        "offset": (),
        "at": (L,),
    }
    made = {}
    for name, shape in shapes.items():
        if name not in axes and name not in ("q", "k", "v", "table"):
            continue
        full = (3, *shape) if name in axes else shape
        if name == "padding":
            value = random.random(full) < 0.3
        elif name in ("offset", "at"):
            value = np.sort(random.integers(-10, 30, full), -1)
        else:
            value = random.standard_normal(full).astype(np.float32)
        value = jnp.asarray(value)
        made[name] = jnp.moveaxis(value, 0, axes[name]) if name in axes else value
    return made


def one(made):
    names = {"mask": "attn_mask", "whole": "attn_mask", "padding": "key_padding_mask"}
    names |= {"offset": "q_offset", "at": "q_positions"}
    options = {names[n]: x for n, x in made.items() if n in names}
    options |= {"k_positions": jnp.arange(L)} if "at" in made else {}
    q, k, v, table = (made[name] for name in ("q", "k", "v", "table"))
    out, lse = rj.attention(
        q, k, v, position=T5, parameters=[table], is_causal=True, return_lse=True, **options
    )
    return (out**2).sum() + jnp.where(jnp.isfinite(lse), lse, 0).sum(), (out, lse)


@pytest.mark.parametrize(
    ("case", "batch"),
    [(case, b) for n, case in enumerate(MAPPED) for b in (1, 2) if FULL or b == 1 + n % 2],
)
def test_vmap_gives_the_bits_of_calls_one_by_one(case, batch):
    """Of the call, and of its gradients by query, key and value, and by everything."""
    axes = MAPPED[case]
    made = mapped_inputs(batch, axes)
    dims = {name: axes.get(name) for name in made}

    def slices(function):
        def at(n):
            return {x: jnp.take(y, n, dims[x]) if x in axes else y for x, y in made.items()}

        return jax.tree.map(lambda *x: jnp.stack(x), *(function(at(n)) for n in range(3)))

    floating = [n for n, x in made.items() if jnp.issubdtype(x.dtype, jnp.floating)]
    for wanted in (["q", "k", "v"], floating):

        def both(given, wanted=wanted):
            def of(trained):
                return one(given | trained)

            (_, results), found = jax.value_and_grad(of, has_aux=True)(
                {name: given[name] for name in wanted}
            )
            return results, found

        same_tree(jax.vmap(both, in_axes=(dims,))(made), slices(both))
    same_tree(jax.jit(jax.vmap(both, in_axes=(dims,)))(made), slices(both))


@pytest.mark.parametrize("name", ["q_offset", "positions"])
def test_each_call_of_vmap_has_its_own_length(name):
    """On which the frequencies of rope_dynamic depend, beyond the positions of training."""
    random = np.random.default_rng(6)
    text = f"rope_dynamic(head_dim={D}, layout=half, factor=2, max_position_embeddings=4)"
    q, k, v = (jnp.asarray(random.standard_normal((3, 2, H, L, D), np.float32)) for _ in range(3))

    def one(q, k, v, start):
        where = {"q_offset": start}
        if name == "positions":
            where = {"q_positions": jnp.arange(L) + start, "k_positions": jnp.arange(L)}
        return rj.attention(q, k, v, position=text, **where)

    starts = jnp.asarray([0, 7, 300])
    want = jnp.stack([one(*(x[n] for x in (q, k, v, starts))) for n in range(3)])
    same_tree(jax.vmap(one)(q, k, v, starts), want)
    shared = jnp.stack([one(*(x[n] for x in (q, k, v)), starts[1]) for n in range(3)])
    same_tree(jax.vmap(one, (0, 0, 0, None))(q, k, v, starts[1]), shared)


def test_vmap_of_vmap(held):
    q, k, v, table = held
    many = jnp.stack([q * n for n in range(1, 9)]).reshape(2, 4, *q.shape)
    keys = jnp.stack([k, k + 1, k - 1, k + 2])

    def of(q, k):
        return jax.grad(loss, (0, 1))(q, k, v, table)

    inner = jax.vmap(jax.vmap(of), in_axes=(0, None))
    want = each(lambda m: each(lambda q, k: of(q, k), 4, m, keys), 2, many)
    same_tree(inner(many, keys), want)
    tables = jnp.stack([table, table + 1])
    of_table = jax.grad(loss, 3)
    got = jax.vmap(jax.vmap(of_table, (0, None, None, None)), (0, None, None, 0))
    want = each(lambda m, t: each(lambda q: of_table(q, k, v, t), 4, m), 2, many, tables)
    same_tree(got(many, k, v, tables), want)
    none = jax.vmap(of)(jnp.zeros((0, *q.shape)), jnp.zeros((0, *k.shape)))
    assert [x.shape for x in none] == [(0, *q.shape), (0, *k.shape)]


def test_other_transformations(held):
    want = jax.grad(loss, (0, 3))(*held)
    same_tree(jax.jit(jax.grad(loss, (0, 3)))(*held), want)
    same_tree(jax.grad(jax.jit(loss), (0, 3))(*held), want)
    same_tree(jax.grad(jax.checkpoint(loss), (0, 3))(*held), want)

    def scanned(q, k, v, table):
        def body(total, scale):
            return total + loss(scale * q, k, v, table), None

        return jax.lax.scan(body, 0.0, jnp.ones(1))[0]

    same_tree(jax.grad(scanned, (0, 3))(*held), want)
    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.hessian(loss)(*held)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(loss, held, held)


def calls_in(jaxpr, target):
    """The equations that call a handler, of a jaxpr and those within."""
    for equation in jaxpr.eqns:
        if equation.params.get("target_name") == target:
            yield equation
        for held in equation.params.values():
            inner = getattr(held, "jaxpr", None)
            if inner is not None:
                yield from calls_in(inner, target)


def test_only_wanted_gradients_are_computed(held):
    def own(*args):
        return loss(*args, scale=0.25)  # which no other test has traced

    for wanted in ((0,), (0, 1, 3), (3,)):
        made = jax.make_jaxpr(jax.grad(own, wanted))(*held)
        (backward,) = calls_in(made.jaxpr, "relpos_attention_backward")
        assert len(backward.outvars) == len(wanted)


def test_other_results(held):
    q, k, v, table = held
    sinks = drawn(jnp.float32, B, H, L, seed=4)
    given = {"position": T5, "parameters": [table], "is_causal": True, "sinks": sinks}
    found = rj.attention(q, k, v, return_lse=True, return_weights=True, **given)
    want = rn.attention(q, k, v, return_lse=True, return_weights=True, **given)
    same_tree(found, want)
    weights = rj.attention(q, k, v, return_weights=True, **given)[1]
    same_tree(weights, want[2])

    def of(sinks):
        out, weights = rj.attention(q, k, v, return_weights=True, **{**given, "sinks": sinks})
        return (out**2).sum() + weights.sum()

    wanted = rn.attention_backward(2 * want[0], q, k, v, **given)
    same_tree(jax.grad(of)(sinks), wanted.sinks)
    by_lse = jax.grad(lambda q: rj.attention(q, k, v, return_lse=True, **given)[1].sum())(q)
    zeros, ones = jnp.zeros_like(want[0]), jnp.ones_like(want[1])
    wanted = rn.attention_backward(zeros, q, k, v, dlse=ones, **given)
    same_tree(by_lse, wanted.query)
    halves = [x.astype(jnp.bfloat16) for x in (q, k, v)]
    for exact in (False, True):
        same_tree(
            rj.attention(*halves, float32_products=exact),
            rn.attention(*halves, float32_products=exact),
        )


def test_tiles(held):
    q, k, v, table = held
    mask = relpos.from_mask_mod(lambda b, h, i, j: (j <= i) & (j % 3 != 1), queries=L, keys=L)
    given = {"position": T5, "parameters": [table], "attn_mask": mask}
    want = rn.attention(q, k, v, **given)
    same_tree(rj.attention(q, k, v, **given), want)
    mapped = jax.vmap(lambda q: rj.attention(q, k, v, **given))(jnp.stack([q, q]))
    same_tree(mapped, np.stack([want, want]))
    parts = [x.numpy() for x in (mask.ranges, mask.entries, mask.words)]
    with jax.enable_x64(True):
        tiles = rj.TileMask(*map(jnp.asarray, parts), mask.shape)
        same_tree(rj.attention(q, k, v, **{**given, "attn_mask": tiles}), want)


def test_seeds(held):
    q, k, v, _ = held
    seed = 2**61 + 12345
    want = rn.attention(q, k, v, dropout_p=0.4, seed=seed)
    same_tree(rj.attention(q, k, v, dropout_p=0.4, seed=seed), want)
    small = rn.attention(q, k, v, dropout_p=0.4, seed=7)
    drop = jax.jit(lambda q, seed: rj.attention(q, k, v, dropout_p=0.4, seed=seed))
    for seed in (7, np.int64(7), jnp.uint32(7), jnp.asarray([7])):
        same_tree(drop(q, jnp.asarray(seed)), small)
    seeds = jnp.arange(6, 9)
    got = jax.vmap(drop, (None, 0))(q, seeds)
    same_tree(got, each(lambda seed: drop(q, seed), 3, seeds))
    keys = jax.random.split(jax.random.key(0), 2)
    one, two = (drop(q, key) for key in keys)
    assert not jnp.array_equal(one, two)
    same_tree(drop(q, keys[0]), one)
    gradient = jax.grad(lambda v: rj.attention(q, k, v, dropout_p=0.4, seed=7).sum())(v)
    wanted = rn.attention_backward(np.ones_like(small), q, k, v, dropout_p=0.4, seed=7)
    same_tree(gradient, wanted.value)


def test_traced_offsets(held):
    """One compiled function serves every step of a generation."""
    q, k, v, table = held
    step = jax.jit(
        lambda q, at: rj.attention(
            q, k, v, position=T5, parameters=[table], is_causal=True, q_offset=at
        )
    )
    for at in (0, 5, 12):
        now = q[:, :, at : at + 1]
        want = rn.attention(now, k, v, position=T5, parameters=[table], is_causal=True, q_offset=at)
        same_tree(step(now, at), want)
    assert step._cache_size() == 1


def test_integers_of_32_bits_keep_their_sign(held):
    q, k, v, table = held
    given = {"position": T5, "parameters": [table], "is_causal": True}
    places = np.arange(L, dtype=np.int32) - 7
    for now in (
        {"q_offset": jnp.int32(-3)},
        {"q_positions": jnp.asarray(places), "k_positions": jnp.asarray(places - 2)},
    ):
        got = jax.jit(lambda now: rj.attention(q, k, v, **given, **now))(now)
        plain = {name: np.asarray(x, np.int64) for name, x in now.items()}
        same_tree(got, rn.attention(q, k, v, **given, **plain))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        *REFUSED,
        ({"dropout_p": 0.5, "seed": X}, TypeError, r"seed: expected an int, .*float32"),
        ({"attn_mask": [1]}, TypeError, "attn_mask: expected an array of JAX or NumPy, got list"),
    ],
)
def test_errors_are_raised_where_the_call_is_traced(options, error, words):
    with pytest.raises(error, match=words):
        rj.attention(X, X, X, **options)
    with pytest.raises(error, match=words):
        jax.jit(lambda x: rj.attention(x, x, x, **options))(X)


def test_errors_of_query_key_and_value():
    for tensors, words in (
        ((X[0], X, X), r"query: expected rank 4, \[B, H, Lq, D\], got \[2, 6, 8\]"),
        ((X, X.astype(np.float16), X), "key: expected float32, as query has, got float16"),
        ((X.astype(np.int32), X, X), "query: expected float32, float64, bfloat16 or float16"),
        ((X, X[..., :4], X), r"key: expected \[1, 2, 6, 8\]"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            rj.attention(*tensors)


def test_errors_of_numbers_keep_their_words():
    """What the numbers of arrays break is found when they are there, in the handler."""
    given = {"q_positions": np.arange(6), "is_causal": True}
    for vmapped in (False, True):

        def call(at):
            return rj.attention(X, X, X, k_positions=at, **given)

        at = np.arange(6)[::-1]
        call, at = (jax.vmap(call), np.stack([np.arange(6), at])) if vmapped else (call, at)
        with pytest.raises(jax.errors.JaxRuntimeError, match="k_positions: must not decrease"):
            jax.block_until_ready(call(at))


def test_without_jax():
    """Neither relpos nor relpos.numpy imports it, and relpos.jax needs no torch."""
    code = """
import sys
sys.modules["torch"] = None
import relpos, relpos.numpy
assert "jax" not in sys.modules
sys.modules["jax"] = None
try:
    import relpos.jax
except ImportError as error:
    assert "relpos.jax needs JAX" in str(error) and "relpos[jax]" in str(error), error
else:
    raise AssertionError
del sys.modules["jax"]
import relpos.jax as rj, numpy as np
x = np.ones((1, 2, 6, 8), np.float32)
print(rj.attention(x, x, x, position="alibi(heads=2)", is_causal=True).shape)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "(1, 2, 6, 8)", done.stderr


def test_the_example_runs():
    command = [sys.executable, ROOT / "examples/jax/train.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("loss "), done.stderr
