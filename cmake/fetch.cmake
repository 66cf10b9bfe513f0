# relpos_fetch(NAME TITLE PACKAGE URL SHA256 [options of FetchContent_Declare]): headers that are not
# installed are downloaded where RELPOS_FETCH allows it; else an error says what to do.
include(FetchContent)

macro(relpos_fetch name title package url sha256)
  if(NOT RELPOS_FETCH)
    message(FATAL_ERROR "${title}'s headers are missing: install ${package}, or set -DRELPOS_FETCH=ON to download them")
  endif()
  FetchContent_Declare(${name} URL ${url} URL_HASH SHA256=${sha256} DOWNLOAD_EXTRACT_TIMESTAMP ON ${ARGN})
  FetchContent_MakeAvailable(${name})
endmacro()
