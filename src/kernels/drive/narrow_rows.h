// The rows of a block in bfloat16, as a unit reads them.
#pragma once

#include "kernels/plan/plan.h"

namespace relpos::bfloat16 {

class NarrowRows {
 public:
  // Of n numbers each, `stride` apart once narrow. Takes nothing where the plan has no unit.
  NarrowRows(const Plan& plan, int64_t n, int64_t stride, Workspace& memory);

  // Rows [count, round_up(n, kLanes)], rounded to nearest even, and zero rows up to a multiple of kUnitRows.
  void set(const float* rows, int count);

  const uint16_t* rows() const noexcept { return rows_.get(); }
  // [round_up(n, kUnitRows), count rounded up to kUnitDepth], in a backward pass.
  const uint16_t* transposed() const noexcept { return transposed_.get(); }

 private:
  void transpose(const float* rows, int count);

  const Plan& plan_;
  int64_t n_, stride_;
  Buffer<uint16_t> rows_, transposed_;
  Buffer<float> columns_;  // [n, kTile]
};

}  // namespace relpos::bfloat16
