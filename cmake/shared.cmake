# The C library: librelpos.so with the functions of include/relpos.h, whose symbol version is their
# ABI's. With BUILD_SHARED_LIBS it is the C++ library as well: the C++ functions have this release's
# symbol version, and no promise from one release to the next.
set(symbols ${PROJECT_SOURCE_DIR}/c/relpos.map)
if(BUILD_SHARED_LIBS)
  set(c_library relpos)
  target_sources(relpos PRIVATE c/relpos.cc)
  target_compile_definitions(relpos PUBLIC RELPOS_SHARED)
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag(-fno-semantic-interposition RELPOS_HAS_NO_INTERPOSITION)
  if(RELPOS_HAS_NO_INTERPOSITION)
    target_compile_options(relpos PRIVATE -fno-semantic-interposition)
  endif()
  file(READ ${symbols} text)
  set(symbols ${PROJECT_BINARY_DIR}/generated/relpos.map)
  file(CONFIGURE OUTPUT ${symbols} CONTENT
"${text}RELPOS_CXX_${PROJECT_VERSION} {
  global:
    _ZN6relpos*;
    _ZNK6relpos*;
    _ZTIN6relpos*;
    _ZTSN6relpos*;
    _ZTVN6relpos*;
};
")
else()
  set(c_library relpos_c)
  add_library(relpos_c SHARED c/relpos.cc)
  set_target_properties(relpos_c PROPERTIES OUTPUT_NAME relpos)
  if(NOT RELPOS_INSTALL)
    set_target_properties(relpos_c PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  target_link_libraries(relpos_c PRIVATE relpos relpos_options)
endif()
if(NOT APPLE)
  target_link_options(${c_library} PRIVATE -Wl,--version-script=${symbols})
  set_target_properties(${c_library} PROPERTIES LINK_DEPENDS ${symbols})
endif()

# relpos_finds_library(TARGET FOLDER): once installed, a shared library in FOLDER, as seen from its own.
function(relpos_finds_library target folder)
  set(origin "$ORIGIN")
  if(APPLE)
    set(origin "@loader_path")
  endif()
  if(BUILD_SHARED_LIBS)
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "${origin}/${folder}")
    if(APPLE AND CMAKE_CROSSCOMPILING)  # where nothing can change a path in a library that is installed
      set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON)
    endif()
  endif()
endfunction()
