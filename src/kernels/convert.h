// 16-bit floats to and from float32, a contiguous row at a time; compiled once a SIMD target.
#pragma once

#include <cstdint>
#include <vector>

namespace relpos {

// `half` need not be aligned. Rounding is to nearest even, as base/half.h does it.
struct ConvertKernels {
  const char* name;
  void (*widen_bfloat16)(const void* half, int64_t n, float* row);
  void (*widen_float16)(const void* half, int64_t n, float* row);
  void (*narrow_bfloat16)(const float* row, int64_t n, void* half);
  void (*narrow_float16)(const float* row, int64_t n, void* half);
};

// Every target that this build holds, best first, supported by this machine or not.
std::vector<ConvertKernels> compiled_convert_kernels();
const ConvertKernels& convert_kernels();  // of the target in use

}  // namespace relpos
