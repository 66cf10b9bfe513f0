#!/usr/bin/env bash
# sanitize.sh PRESET: builds the C++ tests under that CMake preset and runs them.
set -euo pipefail
cd "$(dirname "$0")/.."

export PATH=$PWD/.venv/bin:$PATH
[ "$1" != msan ] || scripts/setup.sh clang
mkdir -p build
cmake --preset "$1" >build/"$1".log || { cat build/"$1".log; exit 1; }
cmake --build --preset "$1" --target relpos_tests
# Without address randomisation: g++ 12's ThreadSanitizer stops on kernels that randomise widely.
run=()
[ "$1" = tsan ] && run=(setarch -R)
"${run[@]}" scripts/shards.sh "build/$1/relpos_tests"
