# Builds for Linux on ARM by Debian's g++-aarch64-linux-gnu; qemu runs what is built.
# GoogleTest is compiled from the sources that libgtest-dev brings.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CXX_FLAGS_INIT -Wno-psabi)  # else g++ tells which calls g++ 10 passed in another way
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)

get_filename_component(RELPOS_LINKED_HEADERS ${CMAKE_CURRENT_LIST_DIR}/../build/arm/headers ABSOLUTE)
set(RELPOS_HEADERS /usr/include)
include(${CMAKE_CURRENT_LIST_DIR}/linked_headers.cmake)
file(CONFIGURE OUTPUT ${RELPOS_LINKED_HEADERS}/GTestConfig.cmake @ONLY CONTENT
"if(NOT TARGET GTest::gtest_main)
  set(BUILD_GMOCK OFF)
  set(INSTALL_GTEST OFF)
  add_subdirectory(/usr/src/googletest \${CMAKE_BINARY_DIR}/googletest EXCLUDE_FROM_ALL SYSTEM)
endif()
")
set(GTest_DIR ${RELPOS_LINKED_HEADERS})
