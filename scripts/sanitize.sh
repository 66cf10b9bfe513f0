#!/usr/bin/env bash
# sanitize.sh PRESET: builds the C++ tests under that CMake preset and runs them, or those of GTEST_FILTER, with an
# eighth of the random cases; asan has all of those of make test with RELPOS_FULL=1.
set -euo pipefail
cd "$(dirname "$0")/.."
# Races are of threads and not of sizes, and MemorySanitizer watches emulated vectors, a hundred times as long.
[ "$1" = asan ] && [ -n "${RELPOS_FULL:-}" ] || export RELPOS_FEW=1
unset RELPOS_FULL

export PATH=$PWD/.venv/bin:$PATH
[ "$1" != msan ] || scripts/setup.sh clang
mkdir -p build
cmake --preset "$1" >build/"$1".log || { cat build/"$1".log; exit 1; }
cmake --build --preset "$1" --target relpos_tests
# Without address randomisation: g++ 12's ThreadSanitizer stops on kernels that randomise widely.
run=()
[ "$1" = tsan ] && run=(setarch -R)
if [ "$1" = msan ]; then
  # Strings and names of files come out of libstdc++'s compiled part, where the sanitizer does not see them written:
  # so the first line leaves tests out. Those of the next two take minutes each on emulated vectors, and those
  # of the last multiply rows that nobody wrote, whose products nobody reads.
  export MSAN_OPTIONS=intercept_memcmp=0:intercept_strlen=0:intercept_strcmp=0:intercept_strchr=0
  left_out=*Npy*:*afetensors*:*Outputs*:*Files*:*NeverCrashesOnDamagedText:*DoublesComeBackBitForBit:*ThrowToTheCaller*
  left_out+=:Allocations.OfACall*:ShortBackward.IsOne*:MaskOrder.EndsWithTheCall:MaskOrder.IsTheSame*:Skip.ChangesNoBit
  left_out+=:Skip.ReadsATileThat*:Callers.*:*BitsOfManyThreads:Edges.CellsOfWideRow*
  left_out+=:Units.*
  export GTEST_FILTER=${GTEST_FILTER:--$left_out}
fi
"${run[@]}" scripts/shards.sh "build/$1/relpos_tests"
