#!/usr/bin/env bash
# Cross-builds core, tool and C++ tests for ARM in build/arm and runs them here, under qemu and with NEON: the
# selftest, what pytest has for ARM (the compiled kernels' registers; the wheel of dist/ on Debian's Python for
# ARM), and the C++ tests except those in scripts/arm_left_out.txt. The last line counts the C++ tests.
set -euo pipefail
cd "$(dirname "$0")/.."
unset RELPOS_FULL
export RELPOS_FEW=1  # an eighth of the random cases: all take 25 minutes

build=build/arm tests=build/arm/relpos_tests left_out=scripts/arm_left_out.txt
qemu=(qemu-aarch64 -L /usr/aarch64-linux-gnu)
say() { printf 'test-arm: %s\n' "$*"; }
failed=()

scripts/setup.sh arm
say "$(aarch64-linux-gnu-g++ --version | head -1); $(qemu-aarch64 --version | head -1)"
export PATH=$PWD/.venv/bin:$PATH OMP_WAIT_POLICY=passive
mkdir -p "$build"
cmake -G Ninja -S . -B "$build" -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake -DRELPOS_WERROR=ON -DRELPOS_QUICK=ON \
  >"$build/cmake.log" 2>&1 || { cat "$build/cmake.log"; exit 1; }
nice -n "${NICE:-5}" cmake --build "$build" --parallel "${JOBS:-2}" --target relpos_tests relpos_tool

say "selftest; beside it the registers of the kernels and a wheel"
"${qemu[@]}" "$build/relpos" selftest >"$build/selftest.log" 2>&1 &
selftest=$!
trap 'kill "$selftest" 2>/dev/null || true' EXIT
RELPOS_ARM=1 python -m pytest -q -rs tests/call/test_disassembly.py tests/call/test_arm_wheel.py || failed+=(pytest)
wait "$selftest" || { failed+=(selftest); cat "$build/selftest.log"; }
tail -1 "$build/selftest.log"

# Names in full, sorted: "Suite." and then its tests, indented.
all=$("${qemu[@]}" "$tests" --gtest_list_tests |
  awk '/^[^ ].*\.$/ { suite = $1 } /^  / { print suite $1 }' | sort)
out=$(sed '/^#/d; s/ .*//' "$left_out" | sort)
unknown=$(comm -13 <(echo "$all") <(echo "$out"))
[ -z "$unknown" ] || { say "$left_out names no test:" $unknown; exit 1; }
say "C++ tests, left out:"
grep -v '^#' "$left_out"
results=$build/results
rm -rf "$results"
RESULTS=$results GTEST_FILTER="*-$(paste -sd: <<<"$out")" nice -n "${NICE:-5}" \
  scripts/shards.sh "${qemu[@]}" "$tests" || failed+=("C++ tests")

read -r run skipped bad < <(python - "$results" <<'EOF'
import pathlib
import sys
import xml.etree.ElementTree as tree

cases = [case for file in pathlib.Path(sys.argv[1]).glob("*.xml") for case in tree.parse(file).iter("testcase")]
results = [case.get("result") for case in cases]
print(results.count("completed"), results.count("skipped"), sum(case.find("failure") is not None for case in cases))
EOF
)
wanted=$(comm -23 <(echo "$all") <(echo "$out") | wc -l)
[ $((run + skipped)) -eq "$wanted" ] || failed+=("$((wanted - run - skipped)) C++ tests that did not end")
for each in "${failed[@]}"; do say "FAILED: $each"; done
say "C++ tests on emulated ARM: $run run, $((run - bad)) passed, $bad failed, $skipped skipped themselves," \
  "$(wc -l <<<"$out") left out"
[ ${#failed[@]} -eq 0 ]
