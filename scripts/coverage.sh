#!/usr/bin/env bash
# coverage.sh: builds the C++ tests, the tool and the Python extension with clang's counters, for AVX2 alone of the
# SIMD targets and on std::thread, runs the C++ tests and those of the command line, and says which lines and
# branches of src/ they run. tests/cli/test_bench.py is left out, which asks for other SIMD targets.
set -euo pipefail
cd "$(dirname "$0")/.."

export PATH=$PWD/.venv/bin:$PATH
scripts/setup.sh clang
build=build/coverage
mkdir -p build
cmake --preset coverage >$build.log || { cat $build.log; exit 1; }
cmake --build --preset coverage --target relpos_tests relpos_tool _core
mkdir -p $build/package/relpos
ln -sfn "$PWD"/python/relpos/* "$PWD"/$build/_core*.so $build/package/relpos
rm -rf $build/counts
# Two files for each program, into which its processes add what they counted.
export LLVM_PROFILE_FILE=$PWD/$build/counts/%2m.profraw
scripts/shards.sh $build/relpos_tests
RELPOS_TOOL=$PWD/$build/relpos PYTHONPATH=$PWD/$build/package \
  python -m pytest -q -p no:cacheprovider tests/cli --ignore-glob='*test_lab*' --ignore-glob='*test_bench*'
llvm-profdata merge -sparse -o $build/counts.profdata $build/counts
python scripts/coverage.py $build/counts.profdata $build/relpos_tests $build/relpos $build/_core*.so
