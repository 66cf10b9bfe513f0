#!/usr/bin/env bash
# docs.sh: the API reference in build/docs, python by pdoc and cpp by Doxygen. A warning is an error.
set -euo pipefail
cd "$(dirname "$0")/.."

rm -rf build/docs
mkdir -p build/docs
.venv/bin/python -W error::UserWarning -W error::RuntimeWarning -m pdoc --output-directory build/docs/python \
  relpos '!relpos.lab' '!relpos.hf.adapters'
version=$(sed -nE 's/.*RELPOS_VERSION "(.*)"/\1/p' include/relpos/version.h)
{
  cat docs/reference/Doxyfile
  echo "PROJECT_NUMBER = $version"
} | doxygen -
echo "docs: build/docs/python/relpos.html and build/docs/cpp/index.html"
