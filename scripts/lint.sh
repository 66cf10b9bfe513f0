#!/usr/bin/env bash
# lint.sh: clang-format, ruff, stubtest and clang-tidy; with --fix, formats in place instead.
set -euo pipefail
cd "$(dirname "$0")/.."

export PATH=$PWD/.venv/bin:$PATH
mapfile -t cpp < <(find include src cli c python tests examples fuzz -name '*.cc' -o -name '*.h' | sort)
if [ "${1:-}" = --fix ]; then
  clang-format -i "${cpp[@]}"
  ruff format --quiet .
  exec ruff check --fix --quiet .
fi
clang-format --dry-run -Werror "${cpp[@]}"
ruff check --quiet .
ruff format --check --quiet .

# The stubs that the build writes say what is there at run time. Again when the package or what they may leave
# out is newer than the last clean pass.
mkdir -p build/tidy
stubs=(build/release/.installed pyproject.toml tests/docs/typing/allowed.txt)
if [ -n "$(find "${stubs[@]}" -newer build/tidy/stubs.passed 2>/dev/null || echo all)" ]; then
  env -u MYPYPATH -u PYTHONPATH python -m mypy.stubtest --concise --mypy-config-file=pyproject.toml \
    --allowlist=tests/docs/typing/allowed.txt --ignore-unused-allowlist relpos
  touch build/tidy/stubs.passed
fi

# A file is looked at again when it, a header or the checks are newer than its last clean pass.
# Not the SIMD files: their templates take minutes, and clang has no copy of gcc's intrinsics here.
# How to compile each file by itself, for the build compiles many as one. Anew where .venv or the tree has moved.
database=(cmake -S . -B build/tidy -G Ninja -DRELPOS_BUILD_TESTS=OFF)
"${database[@]}" >build/tidy.log 2>&1 || "${database[@]}" --fresh >build/tidy.log 2>&1 ||
  { cat build/tidy.log; exit 1; }
newest=$(find include src cli c .clang-tidy -name '*.h' -newer build/tidy/headers -o -name .clang-tidy \
  -newer build/tidy/headers 2>/dev/null || echo all)
[ -n "$newest" ] && rm -f build/tidy/*.ok && touch build/tidy/headers
gcc_headers=$(g++ -print-file-name=include)
export gcc_headers
tidy() {
  local ok=build/tidy/${1//\//-}.ok
  [ "$ok" -nt "$1" ] && return
  clang-tidy -p build/tidy --quiet --warnings-as-errors='*' --extra-arg=-idirafter"$gcc_headers" \
    "$1" 2> >(grep -vE 'warnings? (generated|treated)|Suppressed|Use -header|Processing file' >&2) && touch "$ok"
}
export -f tidy
grep -LE '"hwy/|<hwy/|-inl\.h"' $(find src cli c -name '*.cc' ! -name '*_test.cc' | sort) |
  xargs -P "$(nproc)" -I{} bash -c 'tidy {}'
