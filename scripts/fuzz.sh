#!/usr/bin/env bash
# fuzz.sh [SECONDS]: builds the targets of fuzz/ by clang, with the address and undefined-behaviour sanitizers,
# and gives each so many seconds (60), two at a time, from the corpus of fuzz/corpus. What they find on
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

# fuzzed NAME: status 1 where an input fails; for libFuzzer one of ten seconds or two gigabytes does, too.
fuzzed() {
  local found=build/fuzz/found/$1
  if [ "$1" = musicxml ]; then
    .venv/bin/python -m tests.fuzz.musicxml --seconds "$seconds"
    return
  fi
  mkdir -p "$found"
  if "build/fuzz/fuzz/fuzz_$1" "$found" "fuzz/corpus/$1" -max_total_time="$seconds" -timeout=10 \
    -rss_limit_mb=2048 -max_len=4096 -artifact_prefix="build/fuzz/$1-" -print_final_stats=1 \
    >"build/fuzz/$1.log" 2>&1; then
    awk -v name="$1" '/number_of_executed_units/ { print "fuzz: " name ": " $2 " inputs, none fails" }' \
      "build/fuzz/$1.log"
  else
    tail -30 "build/fuzz/$1.log"
    echo "fuzz: $1 FAILED: build/fuzz/$1.log"
    return 1
  fi
}
export -f fuzzed
export seconds
printf '%s\n' npy safetensors position options arguments musicxml | xargs -P 2 -I{} bash -c 'fuzzed {}'
