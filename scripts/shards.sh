#!/usr/bin/env bash
# shards.sh TESTS: runs the tests of a GoogleTest program as eight processes, two at a time.
set -euo pipefail
seq 0 7 | xargs -P 2 -I{} env GTEST_TOTAL_SHARDS=8 GTEST_SHARD_INDEX={} "$1" --gtest_brief=1
