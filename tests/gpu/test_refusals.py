"""What has no kernel raises its name, and what is wrong raises as on the CPU."""

import pytest
import relpos
import torch
from relpos._call.call import Call as Fields

from tests.support.sample import PLAIN, tensors, trained

WITHOUT_KERNELS = {"xpos"}
Q, K, V, _ = tensors(queries=6, keys=6)


def attention(*given, **options):
    return relpos.attention(*(given or (Q, K, V)), **options)


@pytest.mark.parametrize("name", PLAIN)
def test_a_scheme_is_computed_or_refused_by_name(name):
    module, _ = trained(name)
    call = {"position": module}
    if name not in WITHOUT_KERNELS:
        assert attention(**call).isfinite().all()
        return
    with pytest.raises(NotImplementedError, match=rf"^position: {name}: its [\w ]+ has no kernel"):
        attention(**call)


def test_other_calls_without_a_kernel():
    with pytest.raises(NotImplementedError, match=r"^query: float64 has no kernel"):
        attention(Q.double(), K.double(), V.double())
    wide = torch.zeros(1, 1, 2, 257)
    with pytest.raises(NotImplementedError, match=r"^query: a head size above 256 .*, got 257"):
        attention(wide, wide, wide)
    with pytest.raises(NotImplementedError, match=r"^float32_products: has no kernel"):
        attention(float32_products=True)


T5 = relpos.T5Bias(4)


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ((Q, K[..., :3], V), {}),
        ((Q, K[:, :2], V[:, :2]), {}),
        ((Q, K[:, :3], V[:, :3]), {"enable_gqa": True}),
        ((Q, K[:, :, :4], V[:, :, :4]), {"is_causal": True}),
        ((Q, K[:, :, :4], V[:, :, :4]), {"position": T5}),
        ((Q, K, V), {"k_offset": 3, "is_causal": True}),
        ((Q, K, V), {"q_offset": 2**61, "is_causal": True}),
        ((Q, K, V), {"q_offset": torch.zeros(3).long()}),
        ((Q, K, V), {"window": (-2, 0)}),
        ((Q, K, V), {"scale": float("inf")}),
        ((Q, K, V), {"softcap": 0.0}),
        ((Q, K, V), {"key_padding_mask": torch.zeros(1, 5, dtype=torch.bool)}),
        ((Q, K, V), {"attn_mask": torch.zeros(6, 5)}),
        ((Q, K, V), {"key_range": (torch.zeros(5).long(), torch.zeros(6).long())}),
        ((Q, K, V), {"q_positions": torch.arange(6), "k_positions": torch.arange(5)}),
        ((Q, K, V), {"position": relpos.T5Bias(3)}),
    ],
    ids=str,
)
def test_errors_are_those_of_the_cpu(given, options):
    with pytest.raises((TypeError, ValueError)) as ours:
        attention(*given, **options)
    query, key, value = given
    call = Fields.of("attention", query, key, options)
    with pytest.raises((TypeError, ValueError)) as theirs:
        relpos._core.attention(query, key, value, call, torch.empty_like(V), None, None)
    assert type(ours.value) is type(theirs.value)
    assert str(ours.value) == str(theirs.value)
