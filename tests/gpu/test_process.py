"""Runs the tests of this folder in the interpreter, and what decides whether there is one."""

import os
import re
import subprocess
import sys

import pytest
import relpos

from tests import FULL, ROOT

FOLDER = ROOT / "python/relpos/gpu"
ENV = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


def ran(code, **env):
    """What a process of its own printed, and its errors."""
    found = subprocess.run(
        [sys.executable, "-c", code], env=ENV | env, cwd=ROOT, capture_output=True, text=True
    )
    return found.stdout + found.stderr


def interpreted(*tests):
    """How many of the tests passed in the interpreter, all of them; and pytest's last line."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *tests, "-q", "-p", "no:cacheprovider", "--tb=short"],
        env=ENV | {"RELPOS_GPU": "interpret", "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    return int(re.search(r"(\d+) passed", run.stdout)[1]), run.stdout.splitlines()[-1]


def test_the_kernels_in_the_interpreter(summary):
    passed, line = interpreted("tests/gpu", "--numprocesses=2")
    assert passed > 50
    summary.append(f"kernels of the GPU in Triton's interpreter: {line}")


def test_ranks_train_in_the_interpreter():
    """Rings and Ulysses with a T5 table under DDP and FSDP2, over gloo; no call of theirs can go
    another way. Without RELPOS_FULL a ring under DDP alone."""
    chosen = "modules_train" if FULL else "modules_train and ddp-zigzag"
    passed, _ = interpreted("tests/distributed/test_distributed_use.py", "-k", chosen)
    assert passed == (5 if FULL else 1)


QUICKENED = """
import runpy, sys
import tests.gpu.conftest
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.skipif(not FULL, reason="half a minute: with RELPOS_FULL=1")
def test_the_bench_runs_in_the_interpreter():
    env = ENV | {"RELPOS_GPU": "interpret", "OMP_NUM_THREADS": "1"}
    bench = [sys.executable, "bench/gpu.py", "--small"]
    text = subprocess.run(
        [sys.executable, "-c", QUICKENED, *bench[1:]],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rows = re.findall(r"^\| 1, 2, 64, 16 \| (.+?) \| ([\d.]+) \| [\d.]+ \| [\d.]+ \| ", text, re.M)
    names = [name for name, _ in rows]
    assert [name for name in names if "causal" not in name] == [
        "SDPA",
        "relpos, no position",
        "relpos, T5 table that is not trained",
        "relpos, T5 table",
        "relpos, BiasRPE of 1023 distances",
        "relpos, ALiBi",
        "relpos, KERPLE",
        "relpos, RoPE",
        "relpos, Shaw, m 64",
        "relpos, DeBERTa",
        "relpos, Transformer-XL",
        "relpos, Inkling",
        "relpos, XLNet, segments too",
        "relpos, Graphormer, 64 classes of pairs",
    ]
    assert names.count("relpos, Music Transformer, causal") == 1
    assert len(rows) == 29
    assert text.count("not timed") == 2
    assert re.search(r"launches:.* sum_diagonals \d", text)
    refused = subprocess.run(bench[:2], env=ENV, cwd=ROOT, capture_output=True, text=True)
    assert "no CUDA device" in refused.stderr


CHECK = """
import sys
sys.path.insert(0, "scripts")
import gpu_check
row = next(row for row in gpu_check.rows() if row.kernel == "backward_queries" and row.bits == 16)
found = gpu_check.compiled(row)
print(found.row.chip, found.registers, found.stack, found.shared, found.atomics)
print(found.faults())
print(found._replace(stack=8, shared=10**6, atomics=["red.global.add"]).faults())
print(found._replace(row=row._replace(bits=32), stack=8).faults())
layout = "tensor<32x16xbf16, #ttg.dot_op<{opIdx = %d, parent = #mma, kWidth = %d}>>"
print([len(gpu_check.misread(layout % operand)) for operand in ((0, 4), (0, 8), (1, 8))])
print({(row.chip, row.kernel) for row in gpu_check.rows()} == {
    (chip, kernel) for chip in (80, 90, 100) for kernel in gpu_check.KERNELS
})
"""


def test_the_check_compiles_a_row_and_knows_faults():
    """All rows are `make gpu-check`."""
    sizes, none, three, spilled, wrong, every = ran(CHECK).splitlines()
    assert re.fullmatch(r"80 \d+ 0 \d+ \[\]", sizes)
    assert int(sizes.split()[1]) > 32
    assert (none, spilled, wrong, every) == ("[]", "[]", "[0, 1, 0]", "True")
    assert len(three.split(", ")) == 3
    assert "it spills" in three
    assert "red.global.add in its ptx" in three


SOURCES = """
from relpos.gpu.problem import Config
from relpos.gpu.terms.bias import bias_score
config = Config(*[()] * 17)._replace(scores=(bias_score,))
first = config.constants().sources.value
bias_score._unsafe_update_src(bias_score.src.replace("term.width - 1", "term.width - 2"))
print(len(first), first == config.constants().sources.value)
"""


def test_another_source_of_a_term_is_another_kernel():
    """Of Triton's cache, which knows functions within a tuple by their names."""
    assert ran(SOURCES).splitlines() == ["16 False"]


LAUNCHES = """
import relpos, torch
from relpos._call.call import Call
from relpos.gpu import calls, run
from triton.backends.compiler import GPUTarget
from triton.runtime import driver


class Hopper:
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)


def launch(self, kernel, grid, tile, **given):
    options = {} if tile is None else {"num_warps": tile.warps, "num_stages": tile.stages}
    compiled = kernel.warmup(grid=grid, **given, **options, enable_fp_fusion=True)
    print(kernel.fn.__name__, "cubin" in compiled.asm)


driver.set_active(Hopper())
run.Run.launch, run.chip = launch, lambda device: 90
q = torch.randn(2, 2, 64, 16).bfloat16()
t5, swin = relpos.T5Bias(2), relpos.SwinBias(2, window=8)
everything = {
    "position": t5,
    "sinks": torch.zeros(2),
    "softcap": 3.0,
    "dropout_p": 0.1,
    "key_padding_mask": torch.zeros(2, 64, dtype=torch.bool),
    "attn_mask": torch.zeros(64, 64).bfloat16(),
    "is_causal": True,
    "q_positions": torch.arange(64).expand(2, -1),
    "k_positions": torch.arange(64),
}
causal = {"position": t5, "is_causal": True}
turns = [
    relpos.RoPE(16, layout="half", rotary_dim=4),
    relpos.RoPEMixed(2, 16, grid=8, start=4, rotary_dim=4),
    relpos.RotaryTables(16, layout="interleaved", start=8)(*torch.zeros(4, 2, 64, 4).bfloat16()),
]
axial = relpos.AxialDeepLab(span=9, head_dim=16)
inkling = relpos.Inkling(rank=4, extent=8)(torch.zeros(2, 2, 64, 4).bfloat16())
projected = [inkling, relpos.ConformerRelative(2, 16)]
apart = {"position": axial, "q_positions": torch.arange(64), "k_positions": torch.arange(64)}
narrow = relpos.BiasRPE(2, max_distance=8)
given = [{"position": position} for position in (turns, t5, narrow, swin, axial, projected)]
for options in (*given, apart, causal, everything):
    call = Call.of("attention", q, q, options)
    out, lse, softmax = torch.empty_like(q), torch.empty(2, 2, 64), torch.empty(2, 2, 64, 2)
    calls.attention(q, q, q, call, out, lse, softmax)
    like = [call.attn_mask, *call.parameters]
    wanted = [*(torch.empty_like(q) for _ in range(3))]
    wanted += [None if x is None else torch.empty_like(x, requires_grad=False) for x in like]
    calls.attention_backward((q, q, q, out, softmax, q, lse), call, wanted)
    print()
"""


def test_launches_bind_and_compile_as_on_a_gpu():
    """Triton's own way from a launch to the binary, with a driver that stands in for a GPU's."""
    rows = ["write_cells", "row_sums"]
    backward = [*rows, "backward_keys", "backward_queries"]
    twice = ["forward", "mark_rows", "forward"]
    anew = ["backward_keys", "mark_rows", "backward_keys"]
    anew_of_queries = ["backward_queries", "mark_rows", "backward_queries"]
    of_keys = ["find_queries", "backward_keys", "mark_rows", "find_queries", "backward_keys"]
    diagonals = ["fold_ends", "sum_diagonals", "fold_diagonals", "write_table_gradient"]
    by_shares = ["backward_keys", "backward_keys", "join_shares", "join_shares"]
    pairs = ["fold_ends", "sum_pairs", "fold_pairs", "write_table_gradient"]
    products = ["write_parts", "write_products"] * 2
    times = ["write_parts", "multiply_bands", "multiply_bands"]
    of_table = ["sum_band_rows", "sum_band_rows", "write_rows_gradient"]
    of_both = [*of_table, *times[1:], *of_table, *times[1:]]
    of_passes = ["backward_keys", "backward_queries"]
    of_rows = [*products, "row_sums", "write_parts", "write_products", *of_passes]
    gathered = ["gather_bands", "finish_bands"]
    turned = [*["write_turns"] * 3, "turn_rows", "turn_rows"]  # queries, keys; both by the grid
    expected = [
        [
            *(*turned, "forward", *turned, "row_sums", "backward_keys", "backward_queries"),
            *("turn_rows", "turn_rows", "sum_angles", "sum_angles", "fold_angles"),
            *("write_turn_gradient", "write_turn_gradient"),
        ],
        ["write_cells", "forward", *backward, *diagonals],
        ["write_cells", "forward", *rows, *by_shares, "backward_queries", *diagonals],
        ["write_cells", "forward", *backward, *pairs],
        [
            *(*products, "forward", "write_weights", "finish_bands", *times, *of_rows),
            *("write_bands", "finish_bands", "finish_bands", *of_both),
            *("write_weights", "finish_bands", *of_table),
        ],
        [
            *(*products, "forward", *products, "row_sums", "backward_keys", "backward_queries"),
            *("write_bands", "finish_bands", *of_both),
        ],
        [
            *(*products, "forward", "write_weights", *gathered, *times),
            *(*of_rows, "write_bands", *gathered, *gathered, *of_both),
            *("write_weights", *gathered, *of_table),
        ],
        ["write_cells", *twice, *rows, *anew, *anew_of_queries, *diagonals],
        [
            *("write_cells", *twice, *rows, *of_keys, *anew_of_queries),
            *(*pairs, "sum_mask", "sink_gradient"),
        ],
    ]
    shown = ran(LAUNCHES).split("\n\n")[:-1]
    assert [call.splitlines() for call in shown] == [
        [f"{name} True" for name in names] for names in expected
    ]


def test_relpos_does_not_import_triton():
    assert "False" in ran("import sys, relpos; print('triton' in sys.modules)")
    assert relpos.gpu.launches() == {}


def test_a_machine_without_triton_says_what_to_install():
    call = (
        "import sys, torch; sys.modules['triton'] = None; import relpos; q = torch.ones(1, 1, 2, 4)"
    )
    text = ran(f"{call}; relpos.attention(q, q, q)", RELPOS_GPU="interpret")
    assert "ImportError: relpos.attention on CUDA needs Triton, which is not installed" in text
    assert "pip install triton" in text


def test_the_switch_has_two_values_and_comes_before_triton():
    assert "RELPOS_GPU: expected one of auto, interpret, got 'on'" in ran(
        "import relpos", RELPOS_GPU="on"
    )
    late = "import triton, relpos"
    assert "had imported triton yet" in ran(late, RELPOS_GPU="interpret")
    assert not ran(late, RELPOS_GPU="interpret", TRITON_INTERPRET="1")


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.stem)
def test_sources_keep_what_makes_results_the_same(path):
    text = path.read_text()
    for word in ("atomic", "autotune", "index_add", "scatter_add", "bincount"):
        assert word not in text
    assert "cumsum" not in text.replace("tl.cumsum", "")  # PyTorch's has no fixed order
    if path.stem != "product":  # which widens operands of 16 bits
        assert "tl.dot" not in text
        assert not re.search(r"\.to\(tl\.b?float16\)", text)
