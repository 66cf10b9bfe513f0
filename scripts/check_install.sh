#!/usr/bin/env bash
# Installs build/release into a fresh prefix, then builds and runs examples/cpp against it from
# outside the tree. Then takes the tree into another project by FetchContent, which must set nothing
# there; with RELPOS_FULL=1 the example is built in it and run, too.
set -euo pipefail
cd "$(dirname "$0")/.."

cmake=$PWD/.venv/bin/cmake
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for component in dev tool; do
  "$cmake" --install build/release --prefix "$out/prefix" --component "$component" >/dev/null
done
cp -r examples/cpp "$out/source"
"$cmake" -S "$out/source" -B "$out/build" -DCMAKE_PREFIX_PATH="$out/prefix" \
  -DCMAKE_BUILD_TYPE=Release >"$out/log" 2>&1 &&
  "$cmake" --build "$out/build" >>"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
"$out/build/relpos_example"
"$out/prefix/bin/relpos" --version

sed "s|find_package(relpos .*|include(FetchContent)\nFetchContent_Declare(relpos SOURCE_DIR $PWD)\nFetchContent_MakeAvailable(relpos)|" \
  examples/cpp/CMakeLists.txt >"$out/source/CMakeLists.txt"
cat >>"$out/source/CMakeLists.txt" <<'EOF'
foreach(forced CMAKE_BUILD_TYPE CMAKE_CXX_STANDARD CMAKE_CXX_VISIBILITY_PRESET CMAKE_POSITION_INDEPENDENT_CODE
        CMAKE_EXPORT_COMPILE_COMMANDS CMAKE_RUNTIME_OUTPUT_DIRECTORY BUILD_TESTING)
  if(NOT "${${forced}}" STREQUAL "")
    message(FATAL_ERROR "relpos sets ${forced} of the project that takes it")
  endif()
endforeach()
EOF
"$cmake" -S "$out/source" -B "$out/parent" >"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
if [ -n "${RELPOS_FULL:-}" ]; then
  "$cmake" --build "$out/parent" -j >"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
  "$out/parent/relpos_example"
fi
DESTDIR=$out/nothing "$cmake" --install "$out/parent" >"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
if [ -e "$out/nothing" ]; then
  echo "relpos installs into the project that takes it:" && cat "$out/log" && exit 1
fi
echo "taken by FetchContent, relpos sets and installs nothing"
