// The version is defined only here; CMake and pyproject.toml read this line.
#pragma once

#define RELPOS_VERSION "0.2.0"
