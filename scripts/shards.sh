#!/usr/bin/env bash
# shards.sh COMMAND...: runs the tests of a GoogleTest program as eight processes, two at a time. With
# RESULTS=FOLDER each writes what became of its tests into FOLDER/NUMBER.xml.
set -euo pipefail
output=()
[ -z "${RESULTS:-}" ] || output=("GTEST_OUTPUT=xml:$RESULTS/{}.xml")
seq 0 7 | xargs -P 2 -I{} env GTEST_TOTAL_SHARDS=8 GTEST_SHARD_INDEX={} "${output[@]}" "$@" --gtest_brief=1
