#!/usr/bin/env bash
# build.sh [TARGET...]: builds library, tool and extension in build/release and the wheel in build/wheel, and installs
# that into .venv; the tool is build/relpos. Then builds each TARGET (relpos_tests, bench_timer) in build/release.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p build
exec 9>build/.lock
flock 9  # one build at a time

more_targets() {
  [ $# -eq 0 ] || .venv/bin/cmake --build build/release --target "$@"
}

stamp=build/release/.installed
inputs=(CMakeLists.txt cmake pyproject.toml requirements.txt scripts/build.sh include src cli c python)
for input in "${!inputs[@]}"; do
  [ -e "${inputs[input]}" ] || unset "inputs[input]"
done
if [ -e "$stamp" ] && [ -x build/relpos ] && compgen -G 'build/wheel/*.whl' >/dev/null &&
  .venv/bin/python -m pip show -q relpos 2>/dev/null &&
  [ -z "$(find "${inputs[@]}" -name __pycache__ -prune -o -newer "$stamp" -print -quit)" ]; then
  echo "build: up to date"
  more_targets "$@"
  exit
fi

echo "build: compiling in build/release and installing into .venv (log: build/build.log)"
started=build/.started.$$
: >"$started"
trap 'rm -f "$started"' EXIT
pip=(.venv/bin/python -m pip --disable-pip-version-check)
rm -rf build/wheel
"${pip[@]}" wheel -v --no-build-isolation --no-deps --wheel-dir=build/wheel \
  --config-settings=build-dir=build/release \
  --config-settings=cmake.define.RELPOS_BUILD_TESTS=ON . 2>&1 |
  tee build/build.log |
  sed -nu -E 's/^ *(\[[0-9]+\/[0-9]+\].*)/\1/p; /(error|warning|Error): /p' || {
  echo "build: failed; the end of build/build.log:" >&2
  tail -40 build/build.log >&2
  exit 1
}
"${pip[@]}" install -q --no-index --no-deps --force-reinstall build/wheel/relpos-*.whl
ln -sf release/relpos build/relpos
mv "$started" "$stamp"
more_targets "$@"
