"""What tests/peers/test_scheme_parity.py, which compares the oracles with the code of others, does
not reach: the lengths of their lists, and DeBERTa's buckets of far distances."""

import pytest
import torch
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from tests.oracles import deberta
from tests.support.oracle import configs_of, registry


@pytest.mark.parametrize("name", registry())
def test_every_list_of_configurations_keeps_its_length(name):
    sizes = [(heads, d) for heads in (1, 6) for d in (1, 2, 3, 130)]
    assert len({len(configs_of(name, heads, d, d)) for heads, d in sizes}) == 1


@pytest.mark.peers
def test_log_buckets_as_in_transformers():
    distance = torch.arange(-3000, 3001)
    at = distance, torch.zeros(1, dtype=torch.int64)
    tried = [deberta.configs(1, 1, 1)[n] for n in (0, 1, 3, 4, 5)]
    tried += [{"buckets": b, "max_distance": d} for b, d in ((512, 1024), (9, 33), (64, 256))]
    for options in tried:
        span, far = options.get("buckets", 256), options.get("max_distance", 512)
        theirs = make_log_bucket_position(distance, span, far).long()
        expected = (theirs + span).clamp(0, 2 * span - 1)
        assert torch.equal(deberta.rows(options, *at)[:, 0], expected), options
