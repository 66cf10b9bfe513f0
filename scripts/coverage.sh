#!/usr/bin/env bash
# coverage.sh: builds the C++ tests and the tool with clang's counters, for AVX2 alone of the SIMD targets and on
# std::thread, runs them, the tool by tests/cli, and says which lines and branches of src/ they run.
set -euo pipefail
cd "$(dirname "$0")/.."

export PATH=$PWD/.venv/bin:$PATH
scripts/setup.sh clang
mkdir -p build
cmake --preset coverage >build/coverage.log || { cat build/coverage.log; exit 1; }
cmake --build --preset coverage --target relpos_tests relpos_tool
programs=(build/coverage/relpos_tests build/coverage/relpos)
counts=build/coverage/counts
rm -rf "$counts"
export LLVM_PROFILE_FILE=$PWD/$counts/%p.profraw
scripts/shards.sh "${programs[0]}"
RELPOS_TOOL=$PWD/${programs[1]} python -m pytest -q -p no:cacheprovider tests/cli --ignore-glob='*test_lab*'
llvm-profdata merge -sparse -o "$counts.profdata" "$counts"
python scripts/coverage.py "$counts.profdata" "${programs[@]}"
