#!/usr/bin/env bash
# Installs what the build needs: Debian packages, then .venv with the pinned Python packages.
# Does nothing, and needs no network, when all of it is there. `setup.sh docs` adds what `make docs`
# and `make test-full` need besides: Doxygen, Sphinx, and Chromium to look at the site; `setup.sh arm`
# what `make test-arm` needs: a compiler for ARM and qemu; `setup.sh test` qemu; `setup.sh clang` what `make fuzz`,
# `make test-msan` and `make coverage` need: clang with its runtime, and GoogleTest's sources. RELPOS_LOCKED=1 installs the
# files whose hashes requirements.lock has, and no others.
set -euo pipefail
cd "$(dirname "$0")/.."

# Without the packages that they ask for: music21 for its scores, Triton for its interpreter and compiler.
ALONE=(music21==10.5.1 triton==3.9.0)
STAMP=.venv/.relpos-stamp
purpose=${1:-build}
say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$@" >&2; exit 1; }

has_header() {  # has_header INCLUDE_DIR HEADER
  printf '#if !__has_include(<%s>)\n#error\n#endif\n' "$2" |
    g++ -I"$1" -x c++ -E - >/dev/null 2>&1
}

missing_packages() {
  local python=python3 include=/nonexistent pair
  [ -x .venv/bin/python ] && python=.venv/bin/python
  command -v g++ >/dev/null || echo g++
  command -v nm >/dev/null || echo binutils
  if [ "$purpose" = docs ]; then
    command -v doxygen >/dev/null || echo doxygen
    command -v chromium >/dev/null || echo chromium
    command -v chromedriver >/dev/null || echo chromium-driver
  fi
  if [ "$purpose" = test ] || [ "$purpose" = arm ]; then
    command -v qemu-x86_64 >/dev/null || echo qemu-user  # it has all of Debian's emulated CPUs
  fi
  if [ "$purpose" = arm ]; then
    command -v aarch64-linux-gnu-g++ >/dev/null || echo g++-aarch64-linux-gnu
    [ -e /usr/src/googletest/CMakeLists.txt ] || echo libgtest-dev
  fi
  if [ "$purpose" = clang ]; then
    command -v clang++ >/dev/null || echo clang libclang-rt-dev
    command -v llvm-cov >/dev/null || echo llvm
    [ -e /usr/src/googletest/CMakeLists.txt ] || echo libgtest-dev
  fi
  for pair in hwy/highway.h=libhwy-dev gtest/gtest.h=libgtest-dev CLI/CLI.hpp=libcli11-dev \
    nlohmann/json.hpp=nlohmann-json3-dev; do
    has_header "$include" "${pair%%=*}" || echo "${pair##*=}"
  done
  command -v "$python" >/dev/null || { echo python3 python3-venv python3-dev; return; }
  "$python" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
  include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  has_header "$include" Python.h || echo python3-dev
}

install_packages() {
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo -n)
    sudo -n true 2>/dev/null || die "these Debian packages are missing, and installing them needs root:" \
      "  sudo apt-get install $*"
  fi
  command -v apt-get >/dev/null || die "these Debian packages, or your system's like, are missing: $*"
  say "installing Debian packages: $*"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "$@" >/dev/null
}

# torch without CUDA: from a local folder of wheels, else from PyTorch's index of CPU builds where
# it can be reached; the default index serves a build with gigabytes of GPU libraries.
torch_source() {
  local wheels=${RELPOS_WHEELS:-/opt/wheels} index=https://download.pytorch.org/whl/cpu
  if compgen -G "$wheels/torch-*.whl" >/dev/null; then
    echo "--find-links=$wheels"
  elif .venv/bin/python -c "import urllib.request as u; u.urlopen('$index/torch/', timeout=5)" \
    2>/dev/null; then
    echo "--extra-index-url=$index"
  fi
}

mapfile -t missing < <(missing_packages | tr ' ' '\n')
if [ "${#missing[@]}" -gt 0 ]; then
  install_packages "${missing[@]}"
  mapfile -t missing < <(missing_packages | tr ' ' '\n')
  [ "${#missing[@]}" -eq 0 ] || die "still missing after the installation: ${missing[*]}"
fi

stamp_of() { cat scripts/setup.sh "$@" | sha256sum | cut -d' ' -f1; }
lists=(requirements.txt)
[ "${RELPOS_LOCKED:-}" != 1 ] || lists+=(requirements.lock)
stamps=("$STAMP $(stamp_of "${lists[@]}")")
[ "$purpose" != docs ] || stamps+=("$STAMP-site $(stamp_of requirements.txt docs/site/requirements.txt)")
are_current() {
  local stamp
  for stamp in "${stamps[@]}"; do
    [ "$(cat "${stamp% *}" 2>/dev/null)" = "${stamp#* }" ] || return 1
  done
}
if are_current && .venv/bin/python -c '' 2>/dev/null; then
  say "up to date"
  exit 0
fi

if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "the pinned packages need Python 3.11 or newer; python3 is $(python3 --version 2>&1)"
  say "creating .venv with $(python3 --version) ($(command -v python3))"
  python3 -m venv --clear .venv
fi

say "installing the pinned Python packages into .venv (2.4 GB; a minute or two)"
pip=(.venv/bin/python -m pip --disable-pip-version-check --no-input install)
[ -t 1 ] || pip+=(--quiet)
mapfile -t source < <(torch_source)
if [ "${RELPOS_LOCKED:-}" = 1 ]; then
  "${pip[@]}" "${source[@]}" --no-deps --require-hashes -r requirements.lock
else
  "${pip[@]}" "${source[@]}" -r requirements.txt
  "${pip[@]}" --no-deps "${ALONE[@]}"
fi
if [ "$purpose" = docs ]; then
  say "installing what the site needs into .venv (100 MB)"
  "${pip[@]}" -r docs/site/requirements.txt
fi
for stamp in "${stamps[@]}"; do echo "${stamp#* }" >"${stamp% *}"; done
say "done"
