"""The oracles against published numbers, small ones worked out by hand, and transformers."""

import pytest
import torch

from tests.oracles import deberta, kerple_log, kerple_power, rope, rope_llama3, swin, transformer_xl
from tests.support.oracle import Part, allowed_pairs, attend, oracle_of, positions

Q = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]]], dtype=torch.float64)  # and keys
V = torch.tensor([[[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]], dtype=torch.float64)


def attended(name, options, parameters, causal=True, scale=2**-0.5, **inputs):
    def numbers(held):
        return {n: torch.as_tensor(x, dtype=torch.float64) for n, x in held.items()}

    part = Part(name, options, numbers(parameters), numbers(inputs))
    pos_q, pos_k = positions(1, 3, 3)
    seen = allowed_pairs(pos_q, pos_k, heads=1, is_causal=causal)
    return attend(Q, Q, V, [part], pos_q, pos_k, seen, scale=scale).out[0, 0]


def check(found, expected):
    torch.testing.assert_close(found, torch.tensor(expected, dtype=found.dtype), rtol=0, atol=6e-7)


def test_deberta():
    tables = {
        "pos_key": [[[0.1, 0.0], [0.0, 0.1], [0.2, 0.1], [0.3, -0.2]]],
        "pos_query": [[[0.0, 0.3], [0.1, 0.1], [-0.2, 0.0], [0.1, 0.2]]],
    }
    options = {"heads": 1, "head_dim": 2, "buckets": 0, "max_distance": 2}
    found = attended("deberta", options, tables, causal=False, scale=6**-0.5)
    check(found, [[3.123620, 4.123620], [3.350206, 4.350206], [3.254762, 4.254762]])


def test_transformer_xl(monkeypatch):
    """With rows of R that are given, so that the shift and the two added vectors are seen."""
    rows = torch.tensor([[0.0, 1.0], [0.2, 0.4], [0.3, -0.1]], dtype=torch.float64)
    real = transformer_xl.terms

    def terms(options, parameters, pos_q, pos_k):
        found = real(options, parameters, pos_q, pos_k)
        back = (pos_q[:, None] - pos_k[None, :]).clamp(min=0)
        return found | {"key_rows": rows[back][None]}

    monkeypatch.setattr(transformer_xl, "terms", terms)
    options = {"heads": 1, "head_dim": 2, "width": 2}
    weight = torch.zeros(2, 2)
    added = {"r_w_bias": [[0.5, -0.5]], "r_r_bias": [[0.1, 0.1]]}
    found = attended("transformer_xl", options, {"r_net.weight": weight, **added})
    check(found, [[1.0, 2.0], [2.222490, 3.222490], [3.764301, 4.764301]])


def test_forgetting():
    found = attended("forgetting", {}, {}, log_f=[[[-0.1, -0.2, -0.3]]])
    check(found, [[1.0, 2.0], [2.424816, 3.424816], [3.842305, 4.842305]])


def test_kerple():
    ones = torch.ones(1, 1, 1, dtype=torch.float64)
    held = {"bias_p": 2 * ones, "bias_a": ones}
    at = torch.arange(5), torch.zeros(1, dtype=torch.int64)
    log = kerple_log.terms({}, held, *at)["bias"][0, :, 0]
    check(log, [0.0, -1.386294, -2.197225, -2.772589, -3.218876])
    power = kerple_power.terms({}, held, *at)["bias"][0, :, 0]
    check(power, [0.0, -1.0, -4.0, -9.0, -16.0])


@pytest.mark.peers
def test_log_buckets_as_in_transformers():
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distance = torch.arange(-3000, 3001)
    at = distance, torch.zeros(1, dtype=torch.int64)
    tried = [deberta.configs(1, 1, 1)[n] for n in (0, 1, 3, 4, 5)]
    tried += [{"buckets": b, "max_distance": d} for b, d in ((512, 1024), (9, 33), (64, 256))]
    for options in tried:
        span, far = options.get("buckets", 256), options.get("max_distance", 512)
        theirs = make_log_bucket_position(distance, span, far).long()
        expected = (theirs + span).clamp(0, 2 * span - 1)
        assert torch.equal(deberta.rows(options, *at)[:, 0], expected), options


def frequencies(**options):
    plain = {"layout": "half", "base": 500000.0} | options
    return rope_llama3.blended(plain, rope.inverse_frequencies(plain, plain["head_dim"]))


def test_llama3_frequencies():
    found = frequencies(head_dim=128)
    blended = [0.00216657063, 0.00137189368, 0.00085675146, 0.000524846022, 0.00031269365]
    expected = [0.00321144611, *blended, 0.000178507791, 9.55621217e-05]
    assert found[28:36].tolist() == pytest.approx(expected, rel=1e-6)
    assert float(found[63]) == pytest.approx(3.06892588e-07, rel=1e-6)
    expected = [0.00129054801, 0.000429556705, 9.70828623e-05]
    assert frequencies(head_dim=64, factor=32.0)[15:18].tolist() == pytest.approx(expected, 1e-6)


@pytest.mark.parametrize("window", [[3, 4], [1, 5], [4, 1], 3])
def test_ids_of_an_image_keep_offsets_apart(window):
    options = {"window": window}
    height, width = swin.sides(options)
    ids = swin.place(options, torch.arange(height * width))
    offsets = {}
    for a in range(height * width):
        for b in range(height * width):
            offset = a // width - b // width, a % width - b % width
            assert offsets.setdefault(int(ids[a] - ids[b]), offset) == offset
    assert len(offsets) == (2 * height - 1) * (2 * width - 1)
    assert swin.place(options, torch.tensor([-1])) == -width if width > 1 else True


def test_every_oracle_keeps_the_length_of_its_list():
    for name in ("deberta", "forgetting", "kerple_log", "rope_llama3", "swin", "transformer_xl"):
        module = oracle_of(name)
        lengths = {len(module.configs(heads, d, d)) for heads in (1, 6) for d in (1, 2, 3, 130)}
        assert len(lengths) == 1
