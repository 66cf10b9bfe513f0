# Writes OUTPUT, which defines relpos::detail::all_schemes(): one scheme for each src/schemes/NAME.cc.
function(relpos_registry output)
  set(declarations "")
  set(calls "")
  foreach(source IN LISTS ARGN)
    if(NOT source MATCHES "/src/schemes/([^/]+)\\.cc$")
      continue()
    endif()
    set(name "${CMAKE_MATCH_1}")
    if(NOT name MATCHES "^[a-z][a-z0-9_]*$")
      message(FATAL_ERROR "${source}: the file's name is the scheme's public name and its function's, so it must match [a-z][a-z0-9_]*")
    endif()
    string(APPEND declarations "Scheme ${name}();\n")
    string(APPEND calls "      schemes_impl::${name}(),\n")
  endforeach()
  file(CONFIGURE OUTPUT "${output}" @ONLY CONTENT [[
#include <vector>

#include "relpos/scheme.h"

namespace relpos::schemes_impl {
@declarations@}

namespace relpos::detail {
std::vector<Scheme> all_schemes();
std::vector<Scheme> all_schemes() {
  return {
@calls@  };
}
}  // namespace relpos::detail
]])
endfunction()
