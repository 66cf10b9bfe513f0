// The terms of one part outside an attention call: for dense forms, classes and rotations.
#pragma once

#include <vector>

#include "recipe.h"
#include "relpos/dense.h"

namespace relpos {

// The positions of a grid: consecutive, or where the part places its tokens.
class GridPositions {
 public:
  GridPositions(const Part& part, const Grid& grid);

  int64_t delta(int64_t i, int64_t j) const { return key(j) - query(i); }
  int64_t query(int64_t i) const {
    return q_.empty() ? grid_.q_offset + i : q_[static_cast<size_t>(i)];
  }
  int64_t key(int64_t j) const { return k_.empty() ? j : k_[static_cast<size_t>(j)]; }
  // The distances of all pairs; {0, -1} if there is none.
  std::pair<int64_t, int64_t> distances() const;

 private:
  Grid grid_;
  std::vector<int64_t> q_, k_;
};

class BoundPart {
 public:
  // Throws Error where a parameter is missing or has the wrong shape. `wants` empty: no gradient.
  BoundPart(const Part& part, std::pair<int64_t, int64_t> distances, std::vector<bool> wants);
  // For results that depend on no parameter (classes, shapes, rotations): a missing parameter is
  // replaced by its initial values, or by 0 where these are random.
  explicit BoundPart(const Part& part, std::pair<int64_t, int64_t> distances = {0, 0},
                     int64_t head_dim = 0);

  const Terms& terms() const { return terms_; }
  void pull_back(const TermGradients& gradients, ParameterSums& sums) const;

 private:
  void bind();

  const Part& part_;
  CallSizes sizes_;
  std::vector<TensorView> parameters_;
  std::vector<bool> wants_;
  std::vector<std::vector<double>> stand_ins_;  // memory of parameters that the caller left out
  Terms terms_;
};

}  // namespace relpos
