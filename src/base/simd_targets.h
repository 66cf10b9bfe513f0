// The SIMD targets that Highway's foreach_target compiles; include it before that header.
#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

#include "base/cpu.h"

// Three x86 targets are enough: AVX-512, AVX2 and the baseline. SVE's vectors have no size: no array can hold them.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif

// std::vector<Kernels> with what `make(name)` returns of each compiled target that this CPU runs, best first. make()
// itself is compiled for its target: g++ fills a table of pointers with AVX-512, too.
#define RELPOS_EVERY_TARGET(Kernels, make)                            \
  ::relpos::every_target<Kernels>({{"avx512", HWY_CHOOSE_AVX3(make)}, \
                                   {"avx2", HWY_CHOOSE_AVX2(make)},   \
                                   {"neon", HWY_CHOOSE_NEON(make)},   \
                                   {"baseline", HWY_CHOOSE_FALLBACK(make)}})

namespace relpos {

// The fallback repeats the target before it where that is the compiler's baseline.
template <typename Kernels>
std::vector<Kernels> every_target(
    std::initializer_list<std::pair<const char*, Kernels (*)(const char*)>> targets) {
  std::vector<Kernels> all;
  Kernels (*last)(const char*) = nullptr;
  for (const auto& [name, make] : targets) {
    if (make == nullptr || make == last) continue;
    if (runs_target(name)) all.push_back(make(name));
    last = make;
  }
  return all;
}

}  // namespace relpos
