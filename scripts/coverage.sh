#!/usr/bin/env bash
# coverage.sh: builds the C++ tests with gcov, runs them, and says which lines and branches of src/ they run.
set -euo pipefail
cd "$(dirname "$0")/.."

export PATH=$PWD/.venv/bin:$PATH
mkdir -p build
cmake --preset coverage >build/coverage.log || { cat build/coverage.log; exit 1; }
cmake --build --preset coverage --target relpos_tests
find build/coverage -name '*.gcda' -delete
scripts/shards.sh build/coverage/relpos_tests
python scripts/coverage.py
