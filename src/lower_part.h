// The terms of one part outside an attention call: for dense forms, indices, steps and rotations.
#pragma once

#include <vector>

#include "relpos/scheme.h"

namespace relpos {

struct LoweredPart {
  const Part* part = nullptr;
  std::vector<TensorView> parameters;
  std::vector<bool> wants;
  std::vector<std::vector<double>> stand_ins;  // memory of parameters that the caller left out
  Terms terms;

  int64_t head_dim = 0;  // 0: unknown, as heads and value_dim are

  // Refers to this object and to the part.
  Setting setting() const { return {part->options, parameters, wants, 0, head_dim, 0}; }
};

// `wants` empty: no gradient is wanted. Throws Error where a parameter is missing or has the wrong
// shape.
LoweredPart lower_part(const Part& part, std::vector<bool> wants = {});

// The same for questions whose answer no parameter changes (classes, shapes, rotations): a missing
// parameter is stood in for by its initial values, 0 where those are random.
LoweredPart lower_structure(const Part& part, int64_t head_dim = 0);

}  // namespace relpos
