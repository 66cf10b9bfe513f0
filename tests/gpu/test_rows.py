"""Tables whose rows meet the queries, or what is given in their place."""

import pytest
import relpos
import torch
from relpos._call.call import Call as Fields
from relpos.gpu import tiles
from relpos.gpu.lower import Lowered
from relpos.gpu.rows import chunks

from tests.gpu.cases import PLAIN, TIMES, Here, drawn, judged, number_of

ROWS = [*(f"shaw#{n}" for n in (2, 7)), *(f"relative_key#{n}" for n in (2, 3)), "deberta#3"]
ROWS += [f"music_transformer#{n}" for n in range(5)] + [f"inkling#{n}" for n in range(3)]
ROWS += ["wavlm#0", "prophetnet#0", "shaw#2+t5#3+inkling#0", "music_transformer#3+swin#0"]
ROWS += ["music_transformer#2+attention_sink#1"]
PROJECTED = [*(f"transformer_xl#{n}" for n in range(3)), "conformer#0", "gemma_audio#1"]
PROJECTED += ["enformer#0", "enformer#1", "xlnet#3", "transformer_xl#3+inkling#0+t5#1"]
NUMBERS = ["default", "aligned", "zero", "both"]  # offsets that are not tensors
SIZES = {"queries": [1, 16, 33, 65], "keys": [5, 33, 64, 65], "head_dim": [1, 16, 33, 64, 200]}


@pytest.mark.parametrize(
    "case", list(drawn(len(ROWS) * TIMES, position=ROWS, **SIZES)), ids=number_of
)
def test_a_call_with_rows_keeps_the_promise(case, garbage):
    assert not judged(case), case


@pytest.mark.parametrize(
    "case",
    list(drawn(len(PROJECTED) * TIMES, position=PROJECTED, offsets=NUMBERS, **SIZES)),
    ids=number_of,
)
def test_projected_rows_and_vectors_beside_queries_keep_it(case, garbage):
    assert not judged(case), case


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_tiles_keep_it_too(dtype, garbage, monkeypatch):
    monkeypatch.setattr(tiles, "INTERPRETED", tiles.Tile(32, 32, 4, 1))
    assert not judged(PLAIN | {"position": "music_transformer#4", "dtype": dtype, "mask": "window"})


@pytest.mark.parametrize(
    "more",
    [
        {"position": "inkling#0+t5#0", "dropout": 0.3, "mask": "float", "dtype": "bfloat16"},
        {"position": "deberta#3", "offsets": "scattered", "mask": "range+float"},
        {"position": "music_transformer#4+swin#1", "mask": "bool", "offsets": "zero", "batch": 1},
        {"position": "inkling#2+attention_sink#1", "offsets": "ragged", "mask": "window"},
    ],
    ids=["dropout", "scattered", "grid", "ragged"],
)
def test_chunks_of_queries_keep_it(more, garbage, monkeypatch):
    monkeypatch.setattr(chunks, "MOST_BYTES", 1)
    before = relpos.gpu.launches().get("write_products", 0)
    assert not judged(PLAIN | {"queries": 65, "keys": 33, "heads": (2, 1)} | more)
    assert relpos.gpu.launches()["write_products"] == before + 4  # of two chunks


def test_two_runs_have_the_same_bits_and_rows_that_no_pair_reads_have_none():
    case = PLAIN | {"position": "shaw#7", "queries": 33}
    before = relpos.gpu.launches()
    first, second = (Here(case).computed() for _ in range(2))
    for name, result in first.items():
        assert torch.equal(result, second[name]), name
    grown = {n: count - before.get(n, 0) for n, count in relpos.gpu.launches().items()}
    names = ("write_products", "write_bands", "write_factor_gradient", "sum_band_rows")
    assert [grown[name] for name in names] == [4, 2, 2, 2]
    table = first["gradient of part 0 key_table"]
    assert not table[:8].any()  # of 31 rows, 15 of distance 0, those of -7 to 0 are read
    assert table[8:16].any(1).all()
    assert not table[16:].any()


def test_rows_cost_nothing_that_is_not_wanted():
    q = torch.randn(1, 2, 5, 8)
    k = q.clone().requires_grad_()
    shaw = relpos.Shaw(2, 8, values=False).requires_grad_(False)
    before = relpos.gpu.launches()
    relpos.attention(q, k, q, position=shaw).sum().backward()
    after = relpos.gpu.launches()
    for name in ("backward_queries", "write_bands", "sum_band_rows", "write_factor_gradient"):
        assert after.get(name, 0) == before.get(name, 0)


def test_a_table_that_follows_distances_needs_numbers():
    """It is computed before anything runs, and nothing waits for the device."""
    q = torch.randn(1, 2, 5, 8)
    conformer = relpos.ConformerRelative(2, 8, width=4)
    for options in (
        {"q_offset": torch.zeros(1).long()},
        {"q_positions": torch.arange(5), "k_positions": torch.arange(5)},
    ):
        name = next(iter(options))
        with pytest.raises(NotImplementedError, match=rf"^{name}: a tensor beside conformer"):
            relpos.attention(q, q, q, position=conformer, **options)
    assert relpos.attention(q, q, q, position=conformer).isfinite().all()


def test_a_query_that_is_added_to_is_still_the_query_of_rows():
    """As on the CPU, and trained alone."""
    q, k, v = torch.randn(3, 1, 2, 40, 8)
    conformer = relpos.ConformerRelative(2, 8, width=4)
    torch.nn.init.normal_(conformer.pos_bias_u)
    out = relpos.attention(q, k, v, position=conformer)
    want = torch.empty_like(out)
    call = Fields.of("attention", q, k, {"position": conformer})
    relpos._core.attention(q, k, v, call, want, None, None)
    torch.testing.assert_close(out, want, rtol=2e-6, atol=2e-6)
    before = relpos.gpu.launches()["backward_keys"]
    (found,) = torch.autograd.grad(out.sum(), [conformer.pos_bias_u])
    assert found.any()
    assert relpos.gpu.launches()["backward_keys"] == before


def test_the_chunk_of_queries():
    """Of memory that shapes decide: products and bands of 256 MiB."""
    q = torch.zeros(1, 1, 1, 8).expand(2, 16, 40_000, 8)
    music = relpos.MusicTransformer(8192, 8)

    def chunk(q, **options):
        call = Fields.of("attention", q, q, options)
        return chunks.chunk_of(Lowered(q, q, q, call), q, q)

    assert chunk(q) == 40_000
    assert chunk(q, position=music, is_causal=True) == 64
    assert chunk(q[:, :, :100], position=music, is_causal=True) >= 100
    assert chunk(q, position=relpos.Shaw(16, 8, values=False)) == 31744
