// The terms of one part outside an attention call: for dense forms, classes and rotations.
#pragma once

#include <utility>
#include <vector>

#include "binding/recipe.h"
#include "relpos/dense.h"
#include "values/token_positions.h"

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
  // The distances of all pairs; {0, -1} where there is none.
  std::pair<int64_t, int64_t> distances() const;
  // The same as one batch row of positions.
  TokenPositions tokens() const;
  // What terms may know of a call with these positions, heads aside.
  CallSizes sizes() const;

 private:
  Grid grid_;
  std::vector<int64_t> q_, k_;
};

// The initial values of a parameter as a tensor of this shape, 0 where those are random; `memory` keeps
// them. One number for all elements costs no memory of its size: strides of 0.
TensorView stand_in(const ParameterSpec& spec, const std::vector<int64_t>& shape,
                    std::vector<double>& memory);

class BoundPart {
 public:
  // Throws Error where a parameter is missing or has the wrong shape. `wants` empty: no gradient.
  BoundPart(const Part& part, const CallSizes& sizes, std::vector<bool> wants,
            const TokenPositions* positions = nullptr);
  // For questions whose answer no parameter changes (classes, shapes, rotations): a missing parameter
  // is stood in for by its initial values, 0 where those are random.
  explicit BoundPart(const Part& part, const CallSizes& sizes = {},
                     const TokenPositions* positions = nullptr);

  const Terms& terms() const { return terms_; }
  void pull_back(const TermGradients& gradients, ParameterSums& sums) const;

 private:
  void bind(const TokenPositions* positions = nullptr);

  const Part& part_;
  CallSizes sizes_;
  std::vector<TensorView> parameters_;
  std::vector<bool> wants_;
  std::vector<std::vector<double>> stand_ins_;  // memory of parameters that the caller left out
  Terms terms_;
};

}  // namespace relpos
