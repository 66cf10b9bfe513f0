"""Tables whose rows meet the queries, or what is given in their place, or the keys, and tables
whose rows join the values."""

import gc

import pytest
import relpos
import torch
from relpos._call.call import Call as Fields
from relpos.gpu import tiles
from relpos.gpu.lower import Lowered
from relpos.gpu.lowered.class_map import ClassMap
from relpos.gpu.lowered.projections import Projected, pull_back
from relpos.gpu.rows import chunks
from relpos.gpu.run import Run

from tests.gpu.cases import PLAIN, TIMES, assert_the_same_bits_twice, drawn, judged, number_of

ROWS = [*(f"shaw#{n}" for n in (2, 7)), *(f"relative_key#{n}" for n in (2, 3)), "deberta#3"]
ROWS += [f"music_transformer#{n}" for n in range(5)] + [f"inkling#{n}" for n in range(3)]
ROWS += ["wavlm#0", "prophetnet#0", "shaw#2+t5#3+inkling#0", "music_transformer#3+swin#0"]
ROWS += ["music_transformer#2+attention_sink#1"]
PROJECTED = [*(f"transformer_xl#{n}" for n in range(3)), "conformer#0", "gemma_audio#1"]
PROJECTED += ["enformer#0", "enformer#1", "xlnet#3", "transformer_xl#3+inkling#0+t5#1"]
PROJECTED += ["conformer#1+rope#0"]
COLUMNS = [*(f"relative_key#{n}" for n in (0, 1)), *(f"deberta#{n}" for n in (1, 2, 4, 5, 6))]
COLUMNS += ["relative_key#0+t5#1+rope#1", "deberta#4+swin#0"]
VALUES = [*(f"shaw#{n}" for n in (0, 1, 3, 4, 5, 8)), "vits#0", "axial_deeplab#0"]
VALUES += ["shaw#1+swin#0", "vits#0+relative_key#0+attention_sink#1"]
SIZES = {"queries": [1, 16, 33, 65], "keys": [5, 33, 64, 65], "head_dim": [1, 16, 33, 64, 200]}


def of(positions):
    return list(drawn(len(positions) * TIMES, position=positions, **SIZES))


@pytest.mark.parametrize("case", of(ROWS), ids=number_of)
def test_a_call_with_rows_keeps_the_promise(case, garbage):
    assert not judged(case), case


@pytest.mark.parametrize("case", of(PROJECTED), ids=number_of)
def test_projected_rows_and_vectors_beside_queries_keep_it(case, garbage):
    assert not judged(case), case


@pytest.mark.parametrize("case", of(COLUMNS), ids=number_of)
def test_rows_that_meet_keys_keep_it(case, garbage):
    assert not judged(case), case


@pytest.mark.parametrize("case", of(VALUES), ids=number_of)
def test_rows_that_join_values_keep_it(case, garbage):
    assert not judged(case), case


@pytest.mark.parametrize("offsets", ["zero", "aligned"])
def test_rows_join_values_tiles_away_from_the_inner_distances(offsets, garbage):
    """Of keys after them, and before them, where the ends of a row alone are summed."""
    case = {"position": "shaw#0", "queries": 16, "keys": 193, "mask": "", "offsets": offsets}
    assert not judged(PLAIN | case)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_tiles_keep_it_too(dtype, garbage, monkeypatch):
    monkeypatch.setattr(tiles, "INTERPRETED", tiles.Tile(32, 32, 4, 1))
    assert not judged(PLAIN | {"position": "music_transformer#4", "dtype": dtype, "mask": "window"})


@pytest.mark.parametrize(
    "more",
    [
        {"position": "inkling#0+t5#0", "dropout": 0.3, "mask": "float", "dtype": "bfloat16"},
        {"position": "deberta#3", "offsets": "scattered", "mask": "range+float"},
        {"position": "music_transformer#4+swin#1", "mask": "bool", "offsets": "zero"},
        {"position": "inkling#2+attention_sink#1", "offsets": "ragged", "mask": "window"},
        {"position": "axial_deeplab#0", "dropout": 0.3, "mask": "window", "dtype": "float16"},
    ],
    ids=["dropout", "scattered", "grid", "ragged", "values"],
)
def test_chunks_of_queries_keep_it(more, garbage, monkeypatch):
    monkeypatch.setattr(chunks, "MOST_BYTES", 1)
    before = relpos.gpu.launches().get("write_products", 0)
    tables = 2.5 if "axial" in more["position"] else 1  # that of values once, in the backward pass
    assert not judged(PLAIN | {"queries": 65, "keys": 33, "heads": (2, 1)} | more)
    assert relpos.gpu.launches()["write_products"] == before + 4 * tables  # of two chunks


def test_what_meets_rows_in_float32_beside_16_bits_has_gradients_of_float32(garbage):
    case = PLAIN | {"position": "inkling#0", "queries": 33, "keys": 33, "heads": (3, 1)}
    case |= {"value_dim": 128, "mask": "window+float", "dropout": 0.3, "seed": 20261189}
    assert not judged(case | {"dtype": "bfloat16", "tables": "float32"})


def test_two_runs_have_the_same_bits_and_rows_that_no_pair_reads_have_none():
    case = PLAIN | {"position": "shaw#7", "queries": 33}
    before = relpos.gpu.launches()
    first = assert_the_same_bits_twice(case)
    grown = {n: count - before.get(n, 0) for n, count in relpos.gpu.launches().items()}
    names = ("write_products", "write_bands", "multiply_bands", "sum_band_rows")
    assert [grown[name] for name in names] == [4, 2, 4, 4]  # and for what is not finite
    table = first["gradient of part 0 key_table"]
    assert not table[:8].any()  # of 31 rows, 15 of distance 0, those of -7 to 0 are read
    assert table[8:16].any(1).all()
    assert not table[16:].any()


def test_rows_in_float64_are_read_as_float32():
    q = torch.randn(1, 2, 5, 8)
    shaw = relpos.Shaw(2, 8)
    plain = relpos.attention(q, q, q, position=shaw)
    assert torch.equal(relpos.attention(q, q, q, position=shaw.double()), plain)


def test_rows_cost_nothing_that_is_not_wanted():
    q = torch.randn(1, 2, 5, 8)
    k = q.clone().requires_grad_()
    shaw = relpos.Shaw(2, 8, values=False).requires_grad_(False)
    before = relpos.gpu.launches()
    relpos.attention(q, k, q, position=shaw).sum().backward()
    after = relpos.gpu.launches()
    for name in ("backward_queries", "write_bands", "sum_band_rows", "multiply_bands"):
        assert after.get(name, 0) == before.get(name, 0)


def test_a_query_that_is_added_to_is_still_the_query_of_rows():
    """As on the CPU, and trained alone."""
    q, k, v = torch.randn(3, 2, 2, 40, 8)
    conformer = relpos.ConformerRelative(2, 8, width=4)
    torch.nn.init.normal_(conformer.pos_bias_u)
    out = relpos.attention(q, k, v, position=conformer)
    want = torch.empty_like(out)
    call = Fields.of("attention", q, k, {"position": conformer})
    relpos._core.attention(q, k, v, call, want, None, None)
    torch.testing.assert_close(out, want, rtol=2e-6, atol=2e-6)
    before = relpos.gpu.launches().get("backward_keys", 0)
    (found,) = torch.autograd.grad(out.square().sum(), [conformer.pos_bias_u])
    assert relpos.gpu.launches().get("backward_keys", 0) == before
    each = [
        relpos.attention(*(x[b : b + 1] for x in (q, k, v)), position=conformer) for b in (0, 1)
    ]
    (want,) = torch.autograd.grad(torch.cat(each).square().sum(), [conformer.pos_bias_u])
    assert found.any()
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-6)


def test_tables_are_prepared_once_for_all_chunks(monkeypatch):
    """What is projected, and the parts of tables."""
    projected = []
    project = Projected.table

    def counted(*of):
        projected.append(of)
        return project(*of)

    monkeypatch.setattr(Projected, "table", counted)
    monkeypatch.setattr(chunks, "MOST_BYTES", 1)
    q, k, v = torch.randn(3, 1, 2, 130, 16)
    conformer = relpos.ConformerRelative(2, 16, width=8)
    before = dict(relpos.gpu.launches())
    relpos.attention(q, k, v, position=conformer)
    grown = {n: relpos.gpu.launches()[n] - before.get(n, 0) for n in ("write_parts", "forward")}
    assert grown == {"write_parts": 1, "forward": 3}
    assert len(projected) == 1


def test_weights_that_two_projections_read_get_both_gradients():
    q = torch.randn(1, 2, 5, 16)
    call = Fields.of("attention", q, q, {"position": relpos.ConformerRelative(2, 16, width=8)})
    lowered = Lowered(q, q, q, call)
    (one,) = lowered.projections
    of_tables = torch.randn(2, *lowered.parameters[-1].shape).unbind(0)
    both, alone = (list(map(torch.zeros_like, call.parameters)) for _ in range(2))
    pull_back([one, one], of_tables, both)
    pull_back([one], [of_tables[0] + of_tables[1]], alone)
    at = one.weights.parameter
    torch.testing.assert_close(both[at], alone[at], rtol=1e-5, atol=1e-5)
    assert all(x.any() == (n == at) for n, x in enumerate(both))


def test_starts_that_no_distance_reaches_are_none():
    """Of DeBERTa with few buckets, whose window would be that of all distances."""
    far = ClassMap([1 - 2**62, -3, 2, 2**62], [9, 0, 1, 2, 8])
    assert (far.lo, far.hi) == (-4, 2)
    assert far.classes(-4, 2, torch.device("cpu")).tolist() == [0, 1, 1, 1, 1, 1, 2]
    none = ClassMap([2**62], [3, 4])
    assert none.classes(0, 1, torch.device("cpu")).tolist() == [3, 3]


def test_the_chunk_of_queries():
    """Of memory that shapes decide: all in 1 GiB, else chunks of 512 MiB, or of up to 1 GiB."""
    q = torch.zeros(1, 1, 1, 8).expand(2, 16, 40_000, 8)
    music = relpos.MusicTransformer(8192, 8)

    def chunk(q, **options):
        call = Fields.of("attention", q, q, options)
        return chunks.chunk_of(Lowered(q, q, q, call), q, q)

    assert chunk(q) == 40_000
    assert chunk(q, position=music, is_causal=True) == 448
    assert chunk(q[:, :, :100], position=music, is_causal=True) >= 100
    assert chunk(q, position=relpos.Shaw(32, 8, values=False)) == 40_000
    assert chunk(q, position=relpos.Shaw(64, 8, values=False)) == 13376  # a third
    # Rows of keys take as much in any case.
    both = relpos.RelativeKey(200, 8, kind="relative_key_query")
    assert chunk(q, position=both) == 40_000


@pytest.mark.parametrize(
    "position",
    [
        relpos.Shaw(4, 16, value_dim=16),
        relpos.RelativeKey(4, 16, kind="relative_key_query"),
        relpos.TransformerXL(2, 16),
    ],
    ids=lambda position: type(position).__name__,
)
def test_a_number_that_nobody_sees_reaches_no_table(position, garbage):
    torch.manual_seed(4)
    given = [torch.randn(2, 2, 9, 16) for _ in range(3)]
    padding = torch.zeros(2, 9, dtype=torch.bool)
    padding[0, 5], padding[1] = True, True  # a key, and all that a batch row could see

    def gradients(hidden):
        q, k, v = (x.clone() for x in given)
        k[0, :, 5] = v[0, :, 5] = q[1, :, 3] = hidden
        out = relpos.attention(q, k, v, position=position, key_padding_mask=padding, q_offset=0)
        return torch.autograd.grad(out.square().sum(), list(position.parameters()))

    for one, other in zip(gradients(torch.nan), gradients(0.0), strict=True):
        assert torch.equal(one, other)


def test_what_a_call_made_does_not_wait_for_the_collector(monkeypatch):
    """Products and bands are gone before those of the next chunk, and all of a call after it."""
    monkeypatch.setattr(chunks, "LEAST", 16)
    monkeypatch.setattr(chunks, "MOST_BYTES", 1)
    q = torch.randn(1, 2, 40, 8, requires_grad=True)
    alive, run = [], Run.__init__

    def count(*given):
        held = [x for x in gc.get_objects() if isinstance(x, (Run, Lowered))]
        alive.append(sum(bool(vars(x)) for x in held))
        if given:
            run(*given)

    monkeypatch.setattr(Run, "__init__", count)
    gc.collect()
    gc.disable()
    try:
        for position in (relpos.Shaw(2, 8), relpos.RoPE(8, layout="half")):
            relpos.attention(q, q, q, position=position).sum().backward()
        count()
    finally:
        gc.enable()
    assert len(alive) > 6
    assert max(alive) <= 2, alive  # the call, and the part that is to run
    assert alive[-1] == 0
