#!/usr/bin/env bash
# tritons.sh: the kernels of the GPU under the versions of Triton that CUDA builds of PyTorch bring beside that
# of .venv, each installed in a folder of its own, build/tritons/VERSION, from the network; then they are
# tested there, two versions at a time. The interpreter of 3.6.0 does not take NumPy 2.4: with it they are
# compiled alone. The oldest and .venv's compile all rows of the table of tiles for Hopper.
set -euo pipefail
cd "$(dirname "$0")/.."
unset RELPOS_FULL  # a part of the cases is enough

# tested VERSION: what pytest says of it, once it has ended.
tested() {
  local folder=$PWD/build/tritons/$1 log=build/tritons/$1.log
  [ -d "$folder/triton" ] || .venv/bin/python -m pip install --quiet --no-deps --target "$folder" "triton==$1" || return
  {
    [ "$1" = 3.6.0 ] ||
      PYTHONPATH=$folder RELPOS_GPU=interpret OMP_NUM_THREADS=1 .venv/bin/python -m pytest -q -p no:cacheprovider \
        tests/gpu -k "two_runs or packed or angles_are or keeps_the_promise"
  } >"$log" 2>&1 && PYTHONPATH=$folder .venv/bin/python -m pytest -q -p no:cacheprovider tests/gpu \
    -k "bind_and_compile" >>"$log" 2>&1
  local status=$?
  echo "Triton $1" && cat "$log"
  return $status
}
export -f tested
mkdir -p build/tritons
printf '%s\n' 3.7.1 3.8.0 3.6.0 | xargs -P 2 -I{} bash -c 'tested {}'
.venv/bin/python scripts/gpu_check.py --chip 90 >/dev/null
# What spills depends on the version; a row that an old one cannot compile is refused nowhere else.
PYTHONPATH=$PWD/build/tritons/3.6.0 .venv/bin/python scripts/gpu_check.py --chip 90 --compile >/dev/null
