// Rows that need a process of their own: one SIMD target or one peak of memory each.
#pragma once

#include <string>
#include <vector>

namespace relpos::cli {

// What the running program prints when started again with these arguments; throws Error where it
// fails. Its stderr is ours.
std::string run_self(std::vector<std::string> arguments);

}  // namespace relpos::cli
