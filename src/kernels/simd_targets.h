// The SIMD targets that Highway's foreach_target compiles; include it before that header.
#pragma once

// Three x86 targets are enough: AVX-512, AVX2 and the compiler's own baseline.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
