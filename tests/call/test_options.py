"""The one list of options: one that is added there reaches every function, and no other file of
the package has to name it."""

import inspect
import re

import pytest
import relpos
import torch
from relpos._call import options as listed
from relpos._call.options import OPTIONS, Option

from tests import ROOT

B, H, L, D = 1, 2, 6, 8


@pytest.fixture(scope="module", autouse=True)
def single_rank():
    """A group of this process alone."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def temperature(monkeypatch):
    """An option that this test alone adds: scores are divided by it."""
    added = Option(spread=lambda name, value, query: {"scale": 1.0 / (D**0.5 * value)})
    monkeypatch.setitem(OPTIONS, "temperature", added)
    return {"temperature": 3.0}, {"scale": 1.0 / (D**0.5 * 3.0)}


def layer():
    torch.manual_seed(0)
    return relpos.nn.MultiheadAttention(H * D, H, batch_first=True)


def hugging_face(q, k, v, **options):
    from relpos.hf._interface import attention_function

    scale = options.pop("scale", None)
    return attention_function(torch.nn.Module(), q, k, v, None, scaling=scale, **options)[0]


STARTS = torch.tensor([0, 2, L])
FUNCTIONS = {
    "attention": relpos.attention,
    "scores": lambda q, k, v, **options: relpos.scores(q, k, **options),
    "attention_varlen": lambda q, k, v, **options: relpos.attention_varlen(
        *(x[0].transpose(0, 1) for x in (q, k, v)), STARTS, **options
    ),
    "KVCache.attend": lambda q, k, v, **options: relpos.KVCache().attend(q, k, v, **options),
    "MultiheadAttention": lambda q, k, v, **options: layer()(
        *(x.transpose(1, 2).flatten(2) for x in (q, k, v)), **options
    )[0],
    "ring_attention": relpos.distributed.ring_attention,
    "ulysses_attention": relpos.distributed.ulysses_attention,
    "context_parallel": lambda *tensors, **options: within(*tensors, **options),
    "compose.rerope": lambda *tensors, **options: relpos.compose.rerope(
        *tensors, position=relpos.RoPE(D, layout="half"), window_size=2, **options
    ),
    "hf": hugging_face,
}


def within(*tensors, **options):
    with relpos.distributed.context_parallel():
        return relpos.attention(*tensors, **options)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_option_that_the_list_has_reaches(name, temperature):
    given, same = temperature
    q, k, v = torch.randn(3, B, H, L, D).unbind()
    got, want, without = (FUNCTIONS[name](q, k, v, **o) for o in (given, same, {}))
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert not torch.equal(got, without)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_option_that_the_list_lacks_is_refused_by(name):
    q, k, v = torch.randn(3, B, H, L, D).unbind()
    if name == "hf":  # whose models have keywords of their own
        FUNCTIONS[name](q, k, v, temperature=3.0)
        return
    with pytest.raises(TypeError, match="unexpected keyword argument 'temperature'"):
        FUNCTIONS[name](q, k, v, temperature=3.0)


def test_a_rank_with_another_value_is_refused(temperature):
    """What the ranks compare follows from the list."""
    from relpos.distributed._local import LocalCall

    tensors = torch.randn(3, B, H, L, D).unbind()
    how = {"layout": "contiguous", "mode": "ring"}

    def description(**options):
        return LocalCall.of(tensors, options, False, (None, None), how).description()

    plain = description()
    compared = [name for name, option in OPTIONS.items() if option.compared]
    assert {name for name in OPTIONS if name in plain or f"{name} given" in plain} == {
        *compared,
        "position",
    }
    for other in ({"float32_products": True}, {"scale": 0.5}, {"softcap": 3.0}, {"q_offset": 1}):
        (name,) = other
        assert description(**other)[name] != plain[name]
    assert description(key_padding_mask=torch.zeros(B, L, dtype=torch.bool)) != plain


def test_some_functions_lack_some_options():
    taken = {
        function: [name for name, option in OPTIONS.items() if function not in option.not_of]
        for function in ("attention", "scores", "attention_varlen")
    }
    for function, names in taken.items():
        shown = inspect.signature(getattr(relpos, function)).parameters
        assert [name for name in shown if name in OPTIONS] == names
        assert [shown[name].default for name in names] == [OPTIONS[name].default for name in names]
    assert "key_range" not in taken["attention_varlen"]
    tensors = torch.randn(3, B, H, L, D).unbind()
    for function, name in (("scores", "sinks"), ("attention_varlen", "attn_mask")):
        with pytest.raises(TypeError, match=rf"{function}\(\) got an unexpected .* '{name}'"):
            FUNCTIONS[function](*tensors, **{name: None})


def test_an_option_is_three_places():
    """float32_products: the list, the core's by name, the member; one more file acts on it."""
    files = [
        str(path.relative_to(ROOT))
        for folder in ("python", "include", "src")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".pyi", ".h", ".cc") and path.is_file()
        if re.search(r"\bfloat32_products\b", _code(path))
    ]
    named = {
        "python/relpos/_call/options.py",
        "src/call/call_options.cc",
        "include/relpos/attention.h",
    }
    (acts,) = set(files) - named
    assert acts.startswith("src/")
    assert len(files) == len(named) + 1
    assert listed.Options.__annotations__.keys() == OPTIONS.keys()


def _code(path):
    """The file without the docstrings and comments that explain it."""
    text = path.read_text(encoding="utf-8")
    return re.sub(r'""".*?"""|^\s*(?:#|//).*?$', "", text, flags=re.S | re.M)
