#!/usr/bin/env bash
# Installs build/release into a fresh prefix, then builds and runs examples/cpp against it from
# outside the tree.
set -euo pipefail
cd "$(dirname "$0")/.."

cmake=$PWD/.venv/bin/cmake
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for component in dev tool; do
  "$cmake" --install build/release --prefix "$out/prefix" --component "$component" >/dev/null
done
cp -r examples/cpp "$out/source"
"$cmake" -S "$out/source" -B "$out/build" -DCMAKE_PREFIX_PATH="$out/prefix" \
  -DCMAKE_BUILD_TYPE=Release >"$out/log" 2>&1 &&
  "$cmake" --build "$out/build" >>"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
"$out/build/relpos_example"
"$out/prefix/bin/relpos" --version
