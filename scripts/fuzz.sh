#!/usr/bin/env bash
# fuzz.sh [SECONDS]: builds the targets of fuzz/ by clang, with the address and undefined-behaviour sanitizers,
# and gives each so many seconds (60), one after the other, from the corpus of fuzz/corpus. What they find on
# the way stays in build/fuzz/found; an input that fails is build/fuzz/NAME-HASH, and
# `build/fuzz/fuzz/fuzz_NAME FILE` repeats it. The reader of MusicXML is Python: tests.fuzz.musicxml.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}

export PATH=$PWD/.venv/bin:$PATH
scripts/setup.sh clang
mkdir -p build
cmake --preset fuzz >build/fuzz.log || { cat build/fuzz.log; exit 1; }
cmake --build --preset fuzz >>build/fuzz.log || { tail -40 build/fuzz.log; exit 1; }

failed=0
for name in npy safetensors position options arguments; do
  found=build/fuzz/found/$name
  mkdir -p "$found"
  # An input of a second or a gigabyte is a failure, too.
  if "build/fuzz/fuzz/fuzz_$name" "$found" "fuzz/corpus/$name" -max_total_time="$seconds" -timeout=10 \
    -rss_limit_mb=2048 -max_len=4096 -artifact_prefix="build/fuzz/$name-" -print_final_stats=1 \
    >"build/fuzz/$name.log" 2>&1; then
    awk -v name="$name" '/number_of_executed_units/ { print "fuzz: " name ": " $2 " inputs, none fails" }' \
      "build/fuzz/$name.log"
  else
    tail -30 "build/fuzz/$name.log"
    echo "fuzz: $name FAILED: build/fuzz/$name.log"
    failed=1
  fi
done
.venv/bin/python -m tests.fuzz.musicxml --seconds "$seconds" || failed=1
exit "$failed"
