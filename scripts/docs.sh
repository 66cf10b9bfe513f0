#!/usr/bin/env bash
# docs.sh: the site in build/site, by Sphinx; what it reads is laid out in build/site-source. A warning is an error.
set -euo pipefail
cd "$(dirname "$0")/.."

source=build/site-source
version=$(sed -nE 's/.*RELPOS_VERSION "(.*)"/\1/p' include/relpos/version.h)
export RELPOS_DOCS_VERSION=$version
rm -rf "$source" build/site  # Sphinx keeps more of C++ with each build upon another
mkdir -p "$source"
{
  cat docs/site/Doxyfile
  echo "PROJECT_NUMBER = $version"
} | doxygen -
.venv/bin/python scripts/stage_site.py "$source/pages"
.venv/bin/python -m sphinx --fail-on-warning --keep-going --quiet --jobs auto -c docs/site -d "$source/doctrees" \
  -b html "$source/pages" build/site
echo "docs: build/site/index.html"
