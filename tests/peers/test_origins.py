"""Parameters under the names of other code: loaded, given back, listed in docs/schemes.md."""

import pytest
import relpos
import torch

from tests import ROOT
from tests.support.sample import configurations, trained

PAGE = (ROOT / "docs/schemes.md").read_text()
NAMES = PAGE[PAGE.index("## Names in other code") :].split("\n## ")[0]


def origins():
    """(scheme, number of the configuration, parameter, origin)."""
    return [
        pytest.param(name, number, spec.name, origin, id=f"{name}#{number}: {origin.name}")
        for name, number in configurations()
        for spec in trained(name, number)[0]._specs
        for origin in spec.origins
    ]


@pytest.mark.parametrize(("name", "number", "parameter", "origin"), origins())
def test_both_ways(name, number, parameter, origin):
    held, fresh = trained(name, number)[0], trained(name, number)[0]
    table = held.get_parameter(parameter).detach()
    theirs = table.transpose(-1, -2).clone() if origin.transposed else table.clone()
    state = held.state_dict()
    del state[parameter]
    state[origin.name] = theirs
    for place in ("", "inner.position."):  # at the top, and within a model
        torch.nn.init.zeros_(fresh.get_parameter(parameter))
        model = fresh
        for step in reversed(place.split(".")[:-1]):
            model = torch.nn.ModuleDict({step: model})
        model.load_state_dict({place + n: value for n, value in state.items()})
        assert torch.equal(fresh.get_parameter(parameter), table)
        assert set(state) == {*(held.state_dict().keys() - {parameter}), origin.name}
    projects = [{o.project for o in spec.origins} for spec in held._specs]
    if all(origin.project in each for each in projects):
        given = held.origin_state_dict(origin.project)
        spec = next(spec for spec in held._specs if spec.name == parameter)
        first = next(o for o in spec.origins if o.project == origin.project)
        assert torch.equal(given[first.name], table.mT if first.transposed else table)
        torch.nn.init.zeros_(fresh.get_parameter(parameter))
        fresh.load_state_dict(given)
        assert torch.equal(fresh.get_parameter(parameter), table)
    assert f"in {origin.project}: {origin.name}" in held.describe()


def test_the_page_lists_them():
    found = [parameter.values for parameter in origins()]
    assert {origin.project for *_, origin in found} >= {"t5x", "mesh", "tensor2tensor", "bert"}
    for name, _, parameter, origin in found:
        row = next(line for line in NAMES.splitlines() if f"`{name}` `{parameter}`" in line)
        assert f"`{origin.name}`" in row
        assert origin.project == "notebooks" or f"`{origin.project}`" in row


def test_a_mirrored_table_is_not_taken():
    state = {"distance_embedding.weight": torch.randn(9, 8)}
    with pytest.raises(RuntimeError, match=r"Unexpected key.*distance_embedding.weight"):
        relpos.Shaw(4, 8, values=False).load_state_dict(state)
    position = relpos.Shaw(4, 8, values=False, distance="query-key")
    position.load_state_dict(state)
    query, key = torch.randn(2, 1, 1, 5, 8).unbind()
    left, right = torch.arange(5)[:, None], torch.arange(5)
    rows = state["distance_embedding.weight"][left - right + 4]  # BERT's own indexing
    want = (query @ key.mT + (query[..., None, :] * rows).sum(-1)) / 8**0.5
    torch.testing.assert_close(relpos.scores(query, key, position=position), want)


def test_two_names_for_one_table_are_an_error():
    state = {
        "rel_embedding": torch.randn(2, 32),
        "relative_attention_bias.weight": torch.ones(32, 2),
    }
    with pytest.raises(RuntimeError, match=r"Unexpected key.*rel_embedding"):
        relpos.T5Bias(2).load_state_dict(state)


def test_unknown_projects():
    with pytest.raises(
        ValueError, match=r"project: expected one .*: mesh, notebooks, t5x; got 'x'"
    ):
        relpos.T5Bias(2).origin_state_dict("x")
    with pytest.raises(ValueError, match="none is known"):
        relpos.BiasRPE(2, 4).origin_state_dict("t5x")
    assert relpos.ALiBi(2).origin_state_dict("bloom") == {}
