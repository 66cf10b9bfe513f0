#!/usr/bin/env bash
# bench.sh [ARGUMENTS of bench/bench.py]: makes .venv-bench on top of .venv when it is missing or
# out of date, builds its timer, then runs the bench in it. Peers that cannot be installed become rows that say so.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv-bench/.stamp
want=$(cat bench/requirements.txt requirements.txt scripts/bench.sh | sha256sum | cut -d' ' -f1)
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
  echo "bench: installing the peers into .venv-bench (150 MB)" >&2
  .venv/bin/python -m venv --clear .venv-bench
  site=$(.venv-bench/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/relpos.pth"
  missing=()
  while read -r package; do
    .venv-bench/bin/python -m pip --disable-pip-version-check --no-input install -qq --no-deps "$package" ||
      missing+=("$package")
  done < <(grep -E '^[[:alnum:]]' bench/requirements.txt)
  if [ "${#missing[@]}" -eq 0 ]; then
    echo "$want" >"$stamp"
  else
    echo "bench: not installed, their rows will say so: ${missing[*]}" >&2
  fi
fi
scripts/build.sh bench_timer >&2
exec .venv-bench/bin/python bench/bench.py "$@"
