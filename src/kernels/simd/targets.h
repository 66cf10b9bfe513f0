// Which SIMD target runs: the best of this machine, or the one that RELPOS_TARGET names.
#pragma once

#include <string>
#include <vector>

namespace relpos {

struct Target {
  // "avx512", "avx2", "baseline", "neon"; "amx" and "avx512_bf16" multiply bfloat16 numbers
  std::string name;
  std::string of_float32;              // of calls whose inputs are not all bfloat16
  std::vector<std::string> available;  // compiled and supported here, best first
  std::string forced;                  // RELPOS_TARGET as given; empty when not set
};

// Decided once, at first use. Throws Error for an unknown or unavailable RELPOS_TARGET.
const Target& current_target();

}  // namespace relpos
