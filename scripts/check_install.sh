#!/usr/bin/env bash
# Installs build/release into a fresh prefix, then builds and runs examples/cpp against it from
# outside the tree. Then takes the tree into another project by FetchContent, which must set nothing
# there. With RELPOS_FULL=1 the example is built in that and run, too; examples/own_bias is built
# against the installed library and must train; each installed header is compiled alone; and the
# examples of C++ and C are built against one shared library. Both copies of the library have the kernels of
# one target, which takes half the time of all, and are kept in build/shared and build/parent; that taken by
# FetchContent is compiled file by file, as nothing else of the tests is. JOBS=2 is the default.
set -euo pipefail
cd "$(dirname "$0")/.."

cmake=$PWD/.venv/bin/cmake jobs=${JOBS:-2}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for component in dev tool; do
  "$cmake" --install build/release --prefix "$out/prefix" --component "$component" >/dev/null
done
# built SOURCE BUILD: against the installed library.
built() {
  "$cmake" -S "$1" -B "$2" -DCMAKE_PREFIX_PATH="$out/prefix" -DCMAKE_BUILD_TYPE=Release \
    >"$out/log" 2>&1 && "$cmake" --build "$2" >>"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
}
cp -r examples/cpp "$out/source"
built "$out/source" "$out/build"
"$out/build/relpos_example"
"$out/prefix/bin/relpos" --version
if command -v pkg-config >/dev/null; then
  pc=$(dirname "$(find "$out/prefix" -name relpos.pc)")
  read -ra flags < <(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs relpos)
  g++ -O2 "$out"/source/*.cc "${flags[@]}" -o "$out/by_pkg_config" && "$out/by_pkg_config" >/dev/null
  echo "found by pkg-config"
fi

if [ -n "${RELPOS_FULL:-}" ]; then
  cp -r examples/own_bias "$out/own_bias"
  built "$out/own_bias" "$out/build_own_bias"
  "$out/build_own_bias/relpos_own_bias" | tee "$out/losses"
  awk 'NR == 1 { first = $NF } { last = $NF } END { exit !(NR > 1 && last < first / 10) }' \
    "$out/losses" || { echo "examples/own_bias: expected a loss that falls to a tenth"; exit 1; }
  for header in "$out"/prefix/include/relpos/*.h; do
    g++ -std=c++20 -Wall -Wextra -Wshadow -Werror -fsyntax-only -I"$out/prefix/include" \
      -include "$header" -x c++ /dev/null
  done

  # Compiled apart, for what is shared shows its names to others.
  "$cmake" -S . -B build/shared -G Ninja -DBUILD_SHARED_LIBS=ON -DRELPOS_BUILD_CLI=ON -DRELPOS_ONE_TARGET=ON \
    -DRELPOS_QUICK=ON "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG" >"$out/log" 2>&1 &&
    "$cmake" --build build/shared --parallel "$jobs" >>"$out/log" 2>&1 || { tail -40 "$out/log"; exit 1; }
  for component in dev c tool; do
    "$cmake" --install build/shared --prefix "$out/shared" --component "$component" >/dev/null
  done
  "$cmake" -S examples/cpp -B "$out/build_shared" -DCMAKE_PREFIX_PATH="$out/shared" >"$out/log" 2>&1 &&
    "$cmake" --build "$out/build_shared" >>"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
  lowest=$(.venv/bin/python -c 'import relpos; print(relpos.show_config()["targets available"].split()[-1])')
  cmp <(RELPOS_TARGET=$lowest "$out/build/relpos_example") <("$out/build_shared/relpos_example")
  cmp <("$out/prefix/bin/relpos" list) <("$out/shared/bin/relpos" list)
  gcc -std=c99 -pedantic -Werror examples/c/main.c -I"$out/shared/include" -L"$out/shared/lib" -lrelpos \
    -Wl,-rpath,"$out/shared/lib" -o "$out/c_shared" && "$out/c_shared" >/dev/null
  PKG_CONFIG_PATH=$out/shared/lib/pkgconfig
  export PKG_CONFIG_PATH
  read -ra flags < <(pkg-config --cflags --libs relpos)
  g++ -O2 examples/cpp/main.cc "${flags[@]}" -o "$out/by_pkg_config" &&
    LD_LIBRARY_PATH=$out/shared/lib "$out/by_pkg_config" >/dev/null
  echo "BUILD_SHARED_LIBS: C++, C and the tool use one librelpos.so"
fi

sed "s|find_package(relpos .*|include(FetchContent)\nFetchContent_Declare(relpos SOURCE_DIR $PWD)\nFetchContent_MakeAvailable(relpos)|" \
  examples/cpp/CMakeLists.txt >"$out/source/CMakeLists.txt"
cat >>"$out/source/CMakeLists.txt" <<'EOF'
foreach(forced CMAKE_BUILD_TYPE CMAKE_CXX_STANDARD CMAKE_CXX_VISIBILITY_PRESET CMAKE_POSITION_INDEPENDENT_CODE
        CMAKE_EXPORT_COMPILE_COMMANDS CMAKE_RUNTIME_OUTPUT_DIRECTORY BUILD_TESTING BUILD_SHARED_LIBS)
  if(NOT "${${forced}}" STREQUAL "")
    message(FATAL_ERROR "relpos sets ${forced} of the project that takes it")
  endif()
endforeach()
EOF
"$cmake" -S "$out/source" -B "$out/parent" >"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
parent=$out/parent
if [ -n "${RELPOS_FULL:-}" ]; then
  parent=build/parent/build
  mkdir -p build/parent
  cp -r "$out/source" build/parent/
  "$cmake" -S build/parent/source -B "$parent" -G Ninja -DRELPOS_ONE_TARGET=ON >"$out/log" 2>&1 &&
    "$cmake" --build "$parent" --parallel "$jobs" >"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
  "$parent/relpos_example"
fi
DESTDIR=$out/nothing "$cmake" --install "$parent" >"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
if [ -e "$out/nothing" ]; then
  echo "relpos installs into the project that takes it:" && cat "$out/log" && exit 1
fi
echo "taken by FetchContent, relpos sets and installs nothing"
