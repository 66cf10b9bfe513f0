#!/usr/bin/env bash
# tritons.sh: the kernels of the GPU under the versions of Triton that CUDA builds of PyTorch bring beside that
# of .venv, each installed in a folder of its own, build/tritons/VERSION, from the network; then they are
# tested there. The interpreter of 3.6.0 does not take NumPy 2.4: with it they are compiled alone. The oldest
# and .venv's compile all rows of the table of tiles for Hopper.
set -euo pipefail
cd "$(dirname "$0")/.."
unset RELPOS_FULL  # the thin slice is enough

for version in 3.6.0 3.7.1 3.8.0; do
  folder=$PWD/build/tritons/$version
  [ -d "$folder/triton" ] ||
    .venv/bin/python -m pip install --quiet --no-deps --target "$folder" "triton==$version"
  echo "Triton $version"
  if [ "$version" != 3.6.0 ]; then
    PYTHONPATH=$folder RELPOS_GPU=interpret OMP_NUM_THREADS=1 .venv/bin/python -m pytest -q -p no:cacheprovider \
      tests/gpu -k "two_runs or packed or angles_are or (keeps_the_promise and 1)"
  fi
  PYTHONPATH=$folder .venv/bin/python -m pytest -q -p no:cacheprovider tests/gpu -k "bind_and_compile"
done
.venv/bin/python scripts/gpu_check.py --chip 90 >/dev/null
# What spills depends on the version; a row that an old one cannot compile is refused nowhere else.
PYTHONPATH=$PWD/build/tritons/3.6.0 .venv/bin/python scripts/gpu_check.py --chip 90 --compile >/dev/null
