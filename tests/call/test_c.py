"""The C library: its symbols, and a program of C99 built against the install tree."""

import re
import shutil
import subprocess

import numpy as np
import pytest
import relpos
import relpos.numpy as rn

from tests import ROOT

BUILD = ROOT / "build/release"
HEADER = (ROOT / "include/relpos.h").read_text()


def run(*command, **options):
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    out = tmp_path_factory.mktemp("prefix")
    run(ROOT / ".venv/bin/cmake", "--install", BUILD, "--prefix", out, "--component", "c")
    return out


def built(code, prefix, folder, compiler="gcc"):
    """The program of C99, linked with the library."""
    source, program = folder / "main.c", folder / "main"
    source.write_text(code)
    (library,) = prefix.rglob("librelpos.so")
    strict = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
    paths = [f"-I{prefix / 'include'}", f"-L{library.parent}", f"-Wl,-rpath,{library.parent}"]
    run(compiler, *strict, source, *paths, "-lrelpos", "-o", program)
    return program


def test_symbols_are_those_of_the_header(prefix):
    declared = set(re.findall(r"RELPOS_API [^;]*?\b(relpos_\w+)\(", HEADER))
    listed = set(re.findall(r"^    (relpos_\w+);", (ROOT / "c/relpos.map").read_text(), re.M))
    (library,) = prefix.rglob("librelpos.so")
    shown = run("nm", "-D", "--defined-only", library).split("\n")
    symbols = {line.split()[-1] for line in shown if line}
    assert symbols == {"RELPOS_1", *(f"{name}@@RELPOS_1" for name in declared)}
    assert declared == listed
    assert len(declared) <= 12


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_example_equals_numpy(compiler, prefix, tmp_path):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    example = (ROOT / "examples/c/main.c").read_text()
    shown = run(built(example, prefix, tmp_path, compiler))

    numbers = np.arange(2 * 16 * 8)
    q, k, v, dout = (
        (numbers % n / of).astype(np.float32).reshape(1, 2, 16, 8)
        for n, of in ((7, 7), (5, 5), (3, 1), (2, 1))
    )
    table = (np.arange(64, dtype=np.float32) / 64).reshape(32, 2)
    call = {"position": "t5(heads=2)", "parameters": [table], "is_causal": True}
    out = rn.attention(q, k, v, **call)
    (dtable,) = rn.attention_backward(dout, q, k, v, **call).parameters
    assert f"last output {out.flat[-1]:.6f}," in shown
    assert f"distance 0: {dtable[0, 0]:.6f}" in shown
    assert f"relpos {relpos.__version__}: t5.relative_attention_bias.weight [32, 2]" in shown


WRONG = r"""
#include <relpos.h>
#include <stdio.h>
#include <string.h>

static void show(int status) { printf("%d %s\n", status, relpos_last_error()); }

int main(void) {
  const int64_t two[2] = {2, 2};
  const char* summary = NULL;
  size_t schemes = 0;
  double slopes[2 * 3 * 3];
  relpos_tensor out = {0};
  relpos_call* call = relpos_call_new("alibi(heads=2)");
  out.data = slopes;
  out.dtype = RELPOS_FLOAT64;
  out.rank = 3;
  out.shape[0] = 2;
  out.shape[1] = out.shape[2] = 3;
  out.strides[0] = 9;
  out.strides[1] = 3;
  out.strides[2] = 1;
  while (relpos_scheme(schemes, &summary) != NULL) ++schemes;
  printf("%d schemes\n", (int)schemes);
  printf("%d\n", relpos_dense(call, "key", 0, 3, 3, &out));
  printf("%.4f %.4f\n", slopes[3], slopes[9 + 6]);
  if (relpos_call_new("t6(heads=2)") == NULL) show(-1);
  if (relpos_call_new(NULL) == NULL) show(-1);
  show(relpos_call_set_ints(call, "casual", two, 1));
  show(relpos_call_set_ints(call, "is_causal", two, 1));
  show(relpos_call_set_ints(call, "window", two, 1));
  show(relpos_call_set_tensor(call, "attn_mask", NULL));
  show(relpos_forward(call, NULL, NULL, NULL, NULL, NULL, NULL));
  show(relpos_forward(NULL, NULL, NULL, NULL, NULL, NULL, NULL));
  relpos_call_free(call);
  relpos_call_free(NULL);
  return 0;
}
"""


WIDE = r"""
#include <relpos.h>
#include <stdio.h>

int main(void) {
  static double bias[12 * 2 * 2];
  relpos_call* call = relpos_call_new("alibi(heads=12)");
  relpos_tensor out = {0};
  out.data = bias;
  out.dtype = RELPOS_FLOAT64;
  out.rank = 3;
  out.shape[0] = 12;
  out.shape[1] = out.shape[2] = 2;
  out.strides[0] = 4;
  out.strides[1] = 2;
  out.strides[2] = 1;
  printf("%d\n", relpos_dense(call, "key", 0, 2, 2, &out));
  printf("%.17g\n", bias[8 * 4 + 2]);
  relpos_call_free(call);
  return 0;
}
"""


def test_values_that_follow_from_options_are_float64_in_float64(prefix, tmp_path):
    """The ninth of 12 slopes is the root of a half, which no float32 is."""
    status, slope = run(built(WIDE, prefix, tmp_path)).split()
    assert status == "0"
    assert abs(float(slope) + 0.5**0.5) < 1e-15


def test_errors_and_other_functions(prefix, tmp_path):
    schemes, status, slopes, *errors = run(built(WRONG, prefix, tmp_path)).splitlines()
    bias = rn.dense("alibi(heads=2)", 3, 3, 0)
    assert schemes == f"{len(relpos.schemes())} schemes"
    assert (status, slopes) == ("0", f"{bias[0, 1, 0]:.4f} {bias[1, 2, 0]:.4f}")
    for line, words in zip(
        errors,
        (
            "t5",
            "position: expected a text, got NULL",
            "1 name: there is no option casual",
            "1 is_causal: expected 0 or 1, got 2",
            "1 window: expected 2 numbers, got 1",
            "1 attn_mask: expected a tensor, got NULL",
            "1 query: expected a tensor, got NULL",
            "1 call: expected one, got NULL",
        ),
        strict=True,
    ):
        assert words in line
