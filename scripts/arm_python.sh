#!/usr/bin/env bash
# Fills build/arm/python with Debian's Python 3.11 for ARM and the index's NumPy, for qemu to run. The system's own
# list of architectures stays as it is: apt keeps the lists and packages of ARM in a folder of its own.
set -euo pipefail
cd "$(dirname "$0")/.."

PACKAGES=(python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libgcc-s1 libstdc++6 zlib1g
  libexpat1 libssl3 libffi8 libbz2-1.0 liblzma5 libuuid1 libcrypt1)
NUMPY=$(.venv/bin/python -c 'import numpy; print(numpy.__version__)')
to=$PWD/build/arm/python
[ "$(cat "$to/.numpy" 2>/dev/null)" = "$NUMPY" ] && exit 0

echo "arm: fetching Debian's Python 3.11 for arm64 and NumPy $NUMPY into build/arm/python (30 MB)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,cache/archives/partial,debs}
apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State::lists="$work/lists"
  -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root)
: >"$work/status"
"${apt[@]}" update
(cd "$work/debs" && "${apt[@]}" download "${PACKAGES[@]}")
rm -rf "$to"
for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$to"; done
.venv/bin/python -m pip --disable-pip-version-check -q download --no-deps --only-binary :all: \
  --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 \
  --platform manylinux2014_aarch64 --python-version 3.11 -d "$work" "numpy==$NUMPY"
mkdir "$to/site"
.venv/bin/python -m zipfile -e "$work"/numpy-*.whl "$to/site"
qemu-aarch64 -L "$to" "$to/usr/bin/python3.11" -c '
import sys
sys.path.insert(0, sys.argv[1])
import numpy, platform
print("arm: Python", platform.python_version(), "and NumPy", numpy.__version__, "run on", platform.machine())' "$to/site"
echo "$NUMPY" >"$to/.numpy"
