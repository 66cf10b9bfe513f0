"""Numbers far from the usual: large scores, far keys, the lowest float, huge values, hidden NaN.

Every result is compared with the formula in float64 on the same inputs.
"""

import math

import pytest
import relpos
import torch

from tests.support.oracle import gradients, naive
from tests.support.steps import same_bits, step

LOWEST = torch.finfo(torch.float32).min


def inputs(queries, keys, scale=1.0, heads=2, dim=32, dtype=torch.float32, seed=0):
    """query, key, value, and the gradient of out."""
    torch.manual_seed(seed)
    q, k, v = (torch.randn(1, heads, n, dim) for n in (queries, keys, keys))
    return [x.to(dtype) for x in (scale * q, scale * k, v, torch.randn(1, heads, queries, dim))]


def exact(q, k, v, bias, dout, dlse=None):
    """out, lse and gradients (q, k, v, bias) in float64; pairs at -inf are hidden."""
    leaves = [x.double().detach().requires_grad_() for x in (q, k, v, bias)]
    found = naive(*leaves)
    seeds = [dout.double(), None if dlse is None else dlse.double()]
    return [found.out, found.lse, *gradients([found.out, found.lse], seeds, leaves)]


def error(got, want):
    """The largest difference, relative to the largest value."""
    return ((got.double() - want).abs().max() / want.abs().max()).item()


class TestSaturatedRows:
    # One float32 log-sum-exp between the passes gave errors of 1e-3 in dv at scores of 1e4.
    @pytest.mark.parametrize("queries", [9, 128])
    @pytest.mark.parametrize("scores", [1e2, 1e3, 1e4])
    def test_gradients(self, scores, queries):
        q, k, v, dout = inputs(queries, 160, scale=scores**0.5)
        out, lse, dq, dk, dv, _ = exact(q, k, v, torch.zeros(()), dout)
        got_out, got_lse, got_dq, got_dk, got_dv = step(q, k, v, dout, q_offset=0)
        assert error(got_lse, lse) < 1e-6
        # A score s leaves eps s in a weight, but for that of a key that has nearly all of its row.
        assert error(got_dv, dv) < 4e-7 * min(scores, 100) + 1e-6
        assert error(got_out, out) < 4e-7 * scores + 1e-6
        # Where every row is saturated dq and dk cancel to nothing: relative to what cancels.
        dweight = (dout.double() @ v.double().mT).abs().amax() * 32**-0.5
        for got, want, factor in ((got_dq, dq, k), (got_dk, dk, q)):
            cancelling = dweight * factor.abs().amax()
            assert (got.double() - want).abs().amax() < 1e-6 * (1 + scores) * cancelling

    def test_weights_sum_to_one(self):
        q, k, v, _ = inputs(40, 50, scale=100.0)
        weights = relpos.attention(q, k, v, q_offset=0, return_weights=True)[-1]
        assert (weights.double().sum(-1) - 1).abs().max() < 1e-6


class TestRisingReferences:
    """Scores that rise along a row by 55, then 90 powers of 2: what was summed before comes to a
    factor of 2^-145, below float32's least number, and is 2^-90 of the sum in the end. Where values
    are large it has overflowed, too, before the reference rose."""

    @pytest.mark.parametrize("queries", [1, 20])
    @pytest.mark.parametrize("keys", [300, 5000])
    @pytest.mark.parametrize("size", [1.0, 1e30])
    def test_small_weights_stay(self, keys, queries, size):
        rises = torch.tensor([0.0, 55.0, 145.0]) * 0.6931471805599453
        mask = torch.full((queries, keys), -torch.inf)
        mask[:, [1, keys // 2, keys - 2]] = rises
        q, k, v, dout = inputs(queries, keys, scale=0.0)
        v *= size
        v[:, :, keys - 2] = 0.0
        out, lse, _, _, dv, _ = exact(q, k, v, mask, dout)
        assert error(relpos.attention(q, k, v, attn_mask=mask, q_offset=0), out) < 2e-5
        got = step(q, k, v, dout, attn_mask=mask, q_offset=0)
        assert error(got[0], out) < 2e-5
        assert error(got[1], lse) < 1e-6
        assert error(got[4], dv) < 2e-5


class TestFarKeys:
    # The scores themselves are large: their small parts were lost, dv was off by 2e-2 at 1e6.
    SLOPES = torch.tensor([0.37, 0.11])

    def check(self, at, keys, hidden=None, **place):
        """Results of queries that stand `at` and of keys: the formula's, by a dense bias."""
        q, k, v, dout = inputs(len(at), len(keys))
        bias = -self.SLOPES.double()[:, None, None] * (keys - at[:, None]).abs()
        if hidden is not None:
            place["key_padding_mask"] = hidden[None]
            bias = bias.masked_fill(hidden, -torch.inf)
        *want, _ = exact(q, k, v, bias, dout)
        got = step(q, k, v, dout, relpos.ALiBi(2, slopes=self.SLOPES), **place)
        bounds = {"out": 2e-6, "lse": 2e-7, "dq": 3e-6, "dk": 3e-6, "dv": 3e-6}
        for (name, bound), mine, right in zip(bounds.items(), got, want, strict=True):
            assert error(mine, right) < bound, name
        return got

    @pytest.mark.parametrize("queries", [3, 100])
    @pytest.mark.parametrize("far", [1_000, 32_000, 1_000_000])
    @pytest.mark.parametrize("side", [-1, 1])
    def test_linear_bias(self, far, side, queries):
        """The same scores at every distance, to the bit."""
        at, keys = torch.arange(queries), torch.arange(130)
        found = []
        for n in (far, 500):
            if side < 0:
                found.append(self.check(at + n, keys, q_offset=n))
            else:
                found.append(self.check(at, keys + n, q_offset=0, k_offset=n))
            found[-1].pop(1)  # lse
        same_bits(*found)

    @pytest.mark.parametrize("queries", [2, 70])
    def test_keys_on_both_sides(self, queries):
        """A mask leaves keys far before and far after each query: 5,000 or more on either side."""
        keys = torch.cat([torch.arange(40), torch.arange(10_400, 10_450)])
        at = torch.arange(queries) + 5_050
        self.check(at, keys, q_positions=at, k_positions=keys)

    @pytest.mark.parametrize("queries", [5, 70])
    def test_nearest_key_behind_padding(self, queries):
        """The keys near the queries are padding: the nearest visible key is 3,000 away."""
        keys = torch.arange(3_300)
        self.check(keys[-queries:], keys, keys >= 300 - queries, q_offset=3_300 - queries)

    def test_no_keys(self):
        q, k, v, _ = inputs(3, 0)
        positions = {"q_positions": torch.arange(3), "k_positions": torch.arange(0)}
        out, lse = relpos.attention(q, k, v, position=relpos.ALiBi(2), return_lse=True, **positions)
        assert torch.equal(out, torch.zeros_like(out))
        assert lse.eq(-torch.inf).all()

    def test_gradient_of_slopes(self):
        """The shift of a row is part of its lse: its gradient must not be lost."""
        far, queries, keys = 200_000, 70, 90
        position = relpos.ALiBi(2, learned=True)
        q, k, v, dout = inputs(queries, keys)
        dlse = torch.randn(1, 2, queries)
        distance = torch.arange(keys) - torch.arange(far, far + queries)[:, None]
        bias = -position.slopes.detach().double()[:, None, None] * distance.abs()
        *want, dbias = exact(q, k, v, bias, dout, dlse)[2:]
        *got, dslopes = step(q, k, v, dout, position, dlse, q_offset=far)[2:]
        for mine, right in zip(got, want, strict=True):
            assert error(mine, right) < 3e-6
        assert error(dslopes.flatten(), (dbias * -distance.abs()).sum((1, 2))) < 1e-6


class TestTheLowestFloat:
    # Times log2(e) it overflowed to -inf, which hides: out was 0 and lse -inf.
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("queries", [3, 40])
    def test_mask(self, dtype, queries):
        q, k, v, dout = inputs(queries, 70, dtype=dtype)
        mask = torch.zeros(queries, 70, dtype=dtype)
        mask[1] = torch.finfo(dtype).min
        mask[0, 5:] = torch.finfo(dtype).min
        mask[2, 9:] = -torch.inf
        out, lse, *want, _ = exact(q, k, v, mask, dout)
        got = step(q, k, v, dout, attn_mask=mask, q_offset=0)
        bar = 1e-6 if dtype == torch.float32 else 2e-2
        assert error(got[0], out) < bar
        assert torch.allclose(got[0][:, :, 1].double(), v.double().mean(2), atol=bar)
        assert torch.isfinite(got[1]).all()
        assert error(got[1][:, :, [0, 2]], lse[:, :, [0, 2]]) < 1e-6
        assert (got[1][:, :, 1] / lse[:, :, 1] - 1).abs().max() < 1e-6
        for mine, right in zip(got[2:], want, strict=True):
            assert error(mine, right) < 2 * bar

    @pytest.mark.parametrize("queries", [3, 40])
    def test_table(self, queries):
        q, k, v, dout = inputs(queries, 70)
        position = relpos.T5Bias(2)
        with torch.no_grad():
            position.relative_attention_bias.weight.fill_(LOWEST)
        got = step(q, k, v, dout, position, q_offset=0)
        mean = v.double().mean(2, keepdim=True).expand_as(got[0])
        assert torch.allclose(got[0].double(), mean, atol=1e-6)
        assert torch.allclose(got[1], torch.full_like(got[1], LOWEST), rtol=1e-6)

    def test_scores(self):
        q, k, _, _ = inputs(4, 70)
        mask = torch.full((4, 70), LOWEST)
        assert torch.allclose(
            relpos.scores(q, k, attn_mask=mask, q_offset=0)[0, 0], mask, rtol=1e-6
        )


class TestHugeValues:
    @pytest.mark.parametrize("queries", [1, 40, 130])
    @pytest.mark.parametrize("position", [None, "Shaw"])
    def test_outputs_do_not_overflow(self, queries, position):
        """Sums of weights times values overflowed before they were divided."""
        q, k, v, dout = inputs(queries, 4096, scale=0.1)
        v = v.abs() * 1e36
        shaw = relpos.Shaw(4, 32) if position else None
        out = exact(q, k, v, torch.zeros(()), dout)[0]
        if shaw is not None:
            torch.nn.init.zeros_(shaw.key_table)
            torch.nn.init.ones_(shaw.value_table)
        got = relpos.attention(q, k, v, position=shaw, q_offset=0)
        assert error(got, out) < 3e-6

    def test_values_that_are_inf_stay_so(self):
        q, k, v, _ = inputs(20, 100)
        v[0, 0, 3, 2] = torch.inf
        v[0, 1, 4, 1] = torch.nan
        out = relpos.attention(q, k, v, q_offset=0)
        assert torch.equal(out[0, 0, :, 2], torch.full((20,), torch.inf))
        assert out[0, 1, :, 1].isnan().all()
        assert torch.isfinite(out[0, 0, :, 3:]).all()


class TestHiddenPlaces:
    """The same bits whatever a hidden key holds: in an uninitialised cache, that is anything."""

    FILLS = (0.0, 3.0e38, torch.inf, -torch.inf, torch.nan)
    BEYOND = 77  # keys from here on are hidden by padding

    def options(self, kind, queries):
        if kind == "padding":
            hidden = torch.zeros(1, 150, dtype=torch.bool)
            hidden[:, self.BEYOND :] = True
            return {"key_padding_mask": hidden, "q_offset": 0}
        if kind == "range":  # row i sees the keys before BEYOND, the last of them row by row
            hi = self.BEYOND - torch.arange(queries) % 5
            return {"key_range": (torch.zeros_like(hi), hi), "q_offset": 0}
        mask = torch.zeros(queries, 150, dtype=torch.bool)
        mask[:, : self.BEYOND] = torch.rand(queries, self.BEYOND) > 0.3
        mask[:, 0] = True
        return {"attn_mask": mask, "q_offset": 0}

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("queries", [1, 7, 30, 130])
    @pytest.mark.parametrize("kind", ["padding", "range", "mask"])
    @pytest.mark.parametrize("scheme", [None, "Shaw", "ALiBi"])
    def test_bits(self, dtype, queries, kind, scheme):
        q, k, v, dout = inputs(queries, 150, dtype=dtype, dim=32)
        options = self.options(kind, queries)
        if scheme == "Shaw":
            options["position"] = relpos.Shaw(6, 32)
        elif scheme == "ALiBi":
            options["position"] = relpos.ALiBi(2)
        results = []
        for fill in self.FILLS:
            k[:, :, self.BEYOND :] = fill
            v[:, :, self.BEYOND :] = fill
            results.append(step(q, k, v, dout, **options)[:5])
            same_bits(results[-1], results[0])

    @pytest.mark.parametrize("queries", [1, 30, 130])
    def test_a_key_that_some_rows_see(self, queries):
        """Rows that do not see a NaN keep their bits; the others are NaN."""
        q, k, v, _ = inputs(queries, 150)
        lo = torch.zeros(queries, dtype=torch.int64)
        hi = 80 + torch.arange(queries) % 7
        results = []
        for fill in (1.0, torch.nan):
            v[:, :, 82:84] = fill
            results.append(relpos.attention(q, k, v, key_range=(lo, hi), q_offset=0))
        blind = hi <= 82
        assert torch.equal(results[0][:, :, blind], results[1][:, :, blind])
        assert results[1][:, :, ~blind].isnan().all()

    def test_a_query_that_is_nan(self):
        """Keys that a NaN query does not see keep the bits of their gradients."""
        q, k, v, dout = inputs(130, 130)
        found = []
        for fill in (1.0, torch.nan, torch.inf):
            q[:, :, 100] = fill
            dout[:, :, 100] = fill
            of_keys = step(q, k, v, dout, is_causal=True)[3:]
            found.append([x[:, :, 101:] for x in of_keys])
            same_bits(found[-1], found[0])


LONG = [0.1] * 4000


def ones(rows):
    return torch.ones(1, 1, rows, 1, dtype=torch.float64)


class TestManySmallParts:
    """Sums whose rounding would grow with the number of their parts, were they one chain."""

    @pytest.mark.parametrize("queries", [1, 20])
    def test_equal_values_come_back(self, queries):
        """Weights of 2^-26 beside one of 1: 600 in one float32 chain are off by 140 eps."""
        zeros, values = torch.zeros(1, 1, 600, 8), torch.ones(1, 1, 600, 8)
        mask = torch.full((queries, 600), -18.0)
        mask[:, 1] = 0.0
        out = relpos.attention(zeros[:, :, :queries], zeros, values, attn_mask=mask, q_offset=0)
        assert (out - 1).abs().max() < 64 * 2.0**-24

    @staticmethod
    def within(found, parts):
        """Whether a float64 result of one length is the sum of its parts, as promised."""
        bound = (64 + len(LONG) / 64) * 2.0**-53 * math.fsum(abs(x) for x in parts)
        return abs(found - math.fsum(parts)) < bound

    def test_gradients_of_a_key_in_float64(self):
        """One chain of doubles over 4,000 equal rows would be off by 4 times the promise."""
        query, key, value = ones(len(LONG)), ones(1).requires_grad_(), ones(1).requires_grad_()
        out, lse = relpos.attention(query, key, value, q_offset=0, return_lse=True)
        torch.autograd.backward([out, lse], [torch.full_like(out, 0.1), torch.full_like(lse, 0.1)])
        for gradient in (key.grad, value.grad):
            assert self.within(gradient.item(), LONG)

    def test_a_query_in_float64(self):
        """The same over 4,000 keys, for the output, the log-sum-exp and the query's gradient."""
        query, sign = 0 * ones(1), ones(len(LONG))
        sign[:, :, ::2] = -1
        out, lse = relpos.attention(
            query.requires_grad_(), sign, 0.1 * sign, q_offset=0, scale=1.0, return_lse=True
        )
        out.sum().backward()
        assert self.within(query.grad.item(), [x / len(LONG) for x in LONG])
        assert abs(lse.item() - math.log(len(LONG))) < 1e-14
        faint = math.log(0.1) * ones(len(LONG))
        faint[:, :, 0] = 0.0
        _, lse = relpos.attention(ones(1), faint, sign, q_offset=0, scale=1.0, return_lse=True)
        exact = 1.0 + (len(LONG) - 1) * math.exp(math.log(0.1))
        assert abs(lse.item() - math.log(exact)) < 1e-14
        out = relpos.attention(query, sign, 0.1 * ones(len(LONG)), q_offset=0)
        assert self.within(out.item(), [x / len(LONG) for x in LONG])

    def test_a_large_head_in_float64(self):
        """Products of 4,000 dimensions, in scores and in gradients of weights."""
        wide = ones(len(LONG)).transpose(2, 3)
        _, lse = relpos.attention(0.1 * wide, wide, wide, scale=1.0, return_lse=True)
        exact = math.fsum(LONG)
        assert abs(lse.item() - exact) < (64 + 1 / 64) * 2.0**-53 * (1 + 2 * exact)
        value = torch.cat([0.1 * wide, -0.1 * wide], 2)
        mask = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
        out = relpos.attention(0 * wide, 0 * value, value, attn_mask=mask, q_offset=0)
        out.sum().backward()
        half = [x / 2 for x in LONG]
        assert self.within(mask.grad[0, 0].item(), half)
        assert self.within(-mask.grad[0, 1].item(), half)

    def test_a_table_in_float64(self):
        """A number that 80,000 pairs read gets gradients of one sign from most of them."""
        n, position = 400, relpos.BiasRPE(1, max_distance=3).double()
        value = 0.1 * ones(n)
        value[:, :, n // 2 :] = -0.1
        out = relpos.attention(0 * ones(n), 0 * ones(n), value, position=position)
        (table,) = torch.autograd.grad(out.sum(), list(position.parameters()))
        parts = [[] for _ in range(5)]
        for i in range(n):
            for j in range(n):
                parts[min(max(i - j, -2), 2) + 2].append(value[0, 0, j, 0].item() / n)
        bound = (64 + n / 64) * 2.0**-53
        for found, mine in zip(table.flatten().tolist(), parts, strict=True):
            assert abs(found - math.fsum(mine)) < bound * math.fsum(map(abs, mine))


def test_keys_on_both_sides_that_are_not_near():
    """A steep linear bias of 2,000 on either side, which softmax does not see."""
    q, _, v, dout = inputs(1, 80, heads=1)
    k = torch.zeros(1, 1, 80, 32)
    positions = torch.cat([torch.arange(-139, -99), torch.arange(100, 140)])
    slopes = torch.tensor([19.1])
    mask = torch.linspace(0.0, 0.7, 80)[None]
    bias = -slopes.double() * positions.abs() + mask.double()
    place = {"q_positions": torch.zeros(1, dtype=torch.int64), "k_positions": positions}
    options = {"position": relpos.ALiBi(heads=1, slopes=slopes), "attn_mask": mask, **place}
    out = exact(q, k, v, bias[None], dout)[0]
    assert error(relpos.attention(q, k, v, **options), out) < 5e-6
