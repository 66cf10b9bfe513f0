#!/usr/bin/env bash
# parity.sh [ARGUMENTS of tests.peers.parity]: makes .venv-parity on top of .venv when it is missing or
# out of date, then compares in it. A package that cannot be installed makes its rows fail.
set -euo pipefail
cd "$(dirname "$0")/.."

lists=(tests/peers/parity_requirements.txt tests/peers/parity_requirements_old.txt)
stamp=.venv-parity/.stamp
want=$(cat "${lists[@]}" requirements.txt scripts/parity.sh | sha256sum | cut -d' ' -f1)
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
  echo "parity: installing the other packages into .venv-parity (200 MB)" >&2
  .venv/bin/python -m venv --clear .venv-parity
  site=$(.venv-parity/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/relpos.pth"
  pip=(.venv-parity/bin/python -m pip --disable-pip-version-check --no-input install -qq --no-deps)
  missing=()
  while read -r package; do
    "${pip[@]}" "$package" || missing+=("$package")
  done < <(grep -E '^[[:alnum:]]' "${lists[0]}")
  "${pip[@]}" --target .venv-parity/transformers4 -r "${lists[1]}" || missing+=("${lists[1]}")
  if [ "${#missing[@]}" -eq 0 ]; then
    echo "$want" >"$stamp"
  else
    echo "parity: not installed: ${missing[*]}" >&2
  fi
fi
RELPOS_PARITY=${RELPOS_PARITY-all} exec .venv-parity/bin/python -m tests.peers.parity "$@"
