#!/usr/bin/env bash
# build_copy.sh WORK [OVERLAY [CMAKE_OPTION...]]: copies the tree to WORK/tree, lays the files of
# OVERLAY over it, and builds the copy: WORK/build/relpos, WORK/build/relpos_tests, and the package
# in WORK/site (for PYTHONPATH). Keep WORK, and only what changed is compiled again.
set -euo pipefail
mkdir -p "$1"
work=$(cd "$1" && pwd)
overlay=${2:+$(cd "$2" && pwd)}
cd "$(dirname "$0")/.."

rm -rf "$work/tree"
mkdir "$work/tree"
tar -cf - --exclude=./.git --exclude=./.venv --exclude=./build . | tar -C "$work/tree" -xf -
[ -z "$overlay" ] || cp -Rp "$overlay/." "$work/tree"

export PATH=$PWD/.venv/bin:$PATH
cmake -S "$work/tree" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DRELPOS_BUILD_PYTHON=ON -DRELPOS_QUICK=ON \
  -DPython_EXECUTABLE="$PWD/.venv/bin/python" "${@:3}" >/dev/null
cmake --build "$work/build"
rm -rf "$work/site"
mkdir "$work/site"
cp -R "$work/tree/python/relpos" "$work/site"
for component in python c; do
  cmake --install "$work/build" --prefix "$work/site/relpos" --component "$component" >/dev/null
done
