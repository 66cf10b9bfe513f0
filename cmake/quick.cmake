# relpos_quick(TARGET HEADERS... FILES...): what most files include is compiled once, and FILES as one for each
# folder, schemes for each first letter. Two files of a folder may then have no name of their own in common.
function(relpos_quick target)
  cmake_parse_arguments(PARSE_ARGV 1 given "" "" "HEADERS;FILES")
  target_precompile_headers(${target} PRIVATE <algorithm> <array> <cmath> <cstdint> <functional> <map> <memory>
    <optional> <span> <string> <utility> <variant> <vector> ${given_HEADERS})
  # With precompiled headers g++ 12 finds bounds of strings that are none.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds>)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  foreach(file ${given_FILES})
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${file})
    string(REGEX MATCH "^src/schemes/[a-z]|^.*/" group ${path})
    string(REPLACE "/" "_" group ${group})
    set_source_files_properties(${file} PROPERTIES UNITY_GROUP ${group})
  endforeach()
endfunction()
