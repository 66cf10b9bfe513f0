# The NAMEs of src/FOLDER/NAME.cc among the sources, in the variable `names`.
function(relpos_names names folder)
  set(found "")
  foreach(source IN LISTS ARGN)
    if(source MATCHES "/src/${folder}/([^/]+)\\.cc$" AND NOT CMAKE_MATCH_1 STREQUAL "common")
      list(APPEND found "${CMAKE_MATCH_1}")
    endif()
  endforeach()
  set(${names} "${found}" PARENT_SCOPE)
endfunction()

# Writes OUTPUT, which defines what the library knows by the names of files: one scheme for each
# src/schemes/NAME.cc, one term that is given with the call for each src/schemes/terms/NAME.cc, and
# the conventions and the steps that src/conventions/NAME.cc and src/notebooks/NAME.cc may have for a
# scheme.
function(relpos_registry output)
  relpos_names(schemes schemes ${ARGN})
  relpos_names(terms schemes/terms ${ARGN})
  foreach(name IN LISTS schemes terms)
    if(NOT name MATCHES "^[a-z][a-z0-9_]*$")
      message(FATAL_ERROR "${name}.cc below src/schemes: the file's name is the scheme's public name and its function's, so it must match [a-z][a-z0-9_]*")
    endif()
    string(APPEND declarations "Scheme ${name}();\n")
    if(name IN_LIST terms)
      string(APPEND term_calls "      schemes_impl::${name}(),\n")
    else()
      string(APPEND calls "      schemes_impl::${name}(),\n")
    endif()
  endforeach()
  foreach(folder IN ITEMS conventions notebooks)
    relpos_names(names ${folder} ${ARGN})
    foreach(name IN LISTS names)
      if(NOT name IN_LIST schemes)
        message(FATAL_ERROR "src/${folder}/${name}.cc: there is no src/schemes/${name}.cc of this name")
      endif()
    endforeach()
    set(${folder} "${names}")
  endforeach()
  foreach(name IN LISTS conventions)
    string(APPEND convention_declarations "Conventions ${name}();\n")
    string(APPEND convention_items "      {\"${name}\", conventions::${name}()},\n")
  endforeach()
  foreach(name IN LISTS notebooks)
    string(APPEND notebook_declarations "std::vector<Step> ${name}(const Part&, const Grid&);\n")
    string(APPEND notebook_items "      {\"${name}\", notebooks::${name}},\n")
  endforeach()
  file(CONFIGURE OUTPUT "${output}" @ONLY CONTENT [[
#include <map>
#include <string>
#include <vector>

#include "relpos/conventions.h"
#include "relpos/dense.h"
#include "relpos/scheme.h"

namespace relpos::schemes_impl {
@declarations@}

namespace relpos::conventions {
@convention_declarations@}

namespace relpos::notebooks {
@notebook_declarations@}

namespace relpos::detail {
std::vector<Scheme> all_schemes();
std::vector<Scheme> all_schemes() {
  return {
@calls@  };
}

std::vector<Scheme> all_term_schemes();
std::vector<Scheme> all_term_schemes() {
  return {
@term_calls@  };
}

std::map<std::string, Conventions> all_conventions();
std::map<std::string, Conventions> all_conventions() {
  return {
@convention_items@  };
}

using StepsOf = std::vector<Step> (*)(const Part&, const Grid&);
std::map<std::string, StepsOf> all_notebooks();
std::map<std::string, StepsOf> all_notebooks() {
  return {
@notebook_items@  };
}
}  // namespace relpos::detail
]])
endfunction()
