# Builds with the clang of a ziglang package, for a system that need not be this one:
#   -DRELPOS_ZIG=.../ziglang/zig -DRELPOS_ZIG_TARGET=x86_64-linux-gnu.2.28
# Headers of Highway, nlohmann/json and CLI11 are taken from HEADERS (/usr/include) by links, for the
# rest of that folder belongs to this system's C library.
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES RELPOS_ZIG RELPOS_ZIG_TARGET RELPOS_ZIG_HEADERS)
if(NOT RELPOS_ZIG_HEADERS)
  set(RELPOS_ZIG_HEADERS /usr/include)
endif()
if(NOT RELPOS_ZIG OR NOT RELPOS_ZIG_TARGET MATCHES "^([a-z0-9_]+)-([a-z]+)")
  message(FATAL_ERROR "cmake/zig.cmake: expected RELPOS_ZIG and RELPOS_ZIG_TARGET, got '${RELPOS_ZIG}' and '${RELPOS_ZIG_TARGET}'")
endif()
set(CMAKE_SYSTEM_PROCESSOR ${CMAKE_MATCH_1})
if(CMAKE_MATCH_2 STREQUAL "macos")
  set(CMAKE_SYSTEM_NAME Darwin)
else()
  set(CMAKE_SYSTEM_NAME Linux)
endif()

get_filename_component(zig_folder ${CMAKE_CURRENT_LIST_DIR}/../build/wheels/zig/${RELPOS_ZIG_TARGET} ABSOLUTE)
foreach(tool cc c++)
  file(CONFIGURE OUTPUT ${zig_folder}/${tool} @ONLY
    CONTENT "#!/bin/sh\nexec '@RELPOS_ZIG@' @tool@ -target @RELPOS_ZIG_TARGET@ \"$@\"\n")
  file(CHMOD ${zig_folder}/${tool} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endforeach()
foreach(tool ar ranlib)
  file(CONFIGURE OUTPUT ${zig_folder}/${tool} @ONLY
    CONTENT "#!/bin/sh\nexec '@RELPOS_ZIG@' @tool@ \"$@\"\n")
  file(CHMOD ${zig_folder}/${tool} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endforeach()
set(RELPOS_LINKED_HEADERS ${zig_folder}/headers)
set(RELPOS_HEADERS ${RELPOS_ZIG_HEADERS})
include(${CMAKE_CURRENT_LIST_DIR}/linked_headers.cmake)

set(CMAKE_C_COMPILER ${zig_folder}/cc)
set(CMAKE_CXX_COMPILER ${zig_folder}/c++)
set(CMAKE_AR ${zig_folder}/ar)
set(CMAKE_RANLIB ${zig_folder}/ranlib)
# zig adds debug information unless it is told otherwise.
set(CMAKE_CXX_FLAGS_INIT "-g0")
set(CMAKE_C_FLAGS_INIT "-g0")
if(CMAKE_SYSTEM_NAME STREQUAL "Darwin")
  set(CMAKE_CXX_FLAGS_INIT "-g0 -include float.h")  # its <cmath> before <cfloat> hides FLT_MAX
else()
  foreach(kind EXE SHARED MODULE)
    set(CMAKE_${kind}_LINKER_FLAGS_INIT "-s")
  endforeach()
endif()
