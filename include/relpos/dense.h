// One part written out: dense forms, classes, matrices, rotated vectors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "relpos/cancel.h"
#include "relpos/position.h"
#include "relpos/tensor.h"

namespace relpos {

// Queries at the tokens q_offset + i, keys at the tokens j.
struct Grid {
  int64_t queries = 0, keys = 0, q_offset = 0;
};

// One matrix on the way from positions to terms.
struct Step {
  enum class Kind { kInteger, kReal, kBoolean };
  std::string name;
  Kind kind = Kind::kInteger;
  std::vector<int64_t> shape;
  std::vector<double> values;  // contiguous; -inf allowed
};

// Dense forms of one part on a grid. `which`: "key" (bias [H, Lq, Lk], or rows [(H,) Lq, Lk, r]) or
// "value" (rows). dense_shape throws where a part has no such form.
std::vector<int64_t> dense_shape(const Part& part, const Grid& grid, std::string_view which);
void dense(const Part& part, const Grid& grid, std::string_view which, const TensorView& out,
           CancelToken* cancel = nullptr);
void dense_backward(const Part& part, const Grid& grid, std::string_view which,
                    const TensorView& dout, const std::vector<TensorView>& dparameters,
                    CancelToken* cancel = nullptr);
// [Lq, Lk] int64: the class of each pair, -1 for none; the distance where the part has no classes.
void indices(const Part& part, const Grid& grid, const TensorView& out,
             CancelToken* cancel = nullptr);
std::vector<Step> steps(const Part& part, const Grid& grid, CancelToken* cancel = nullptr);

// Rotations of one part. cos, sin [L, dims] float32 or float64, each angle twice in the pair layout.
int64_t rotary_dims(const Part& part);  // 0: the part has no rotation
void rotary_tables(const Part& part, int64_t length, int64_t offset, const TensorView& cos,
                   const TensorView& sin, CancelToken* cancel = nullptr);
// out = R(positions) x for x [..., L, D] of rank 2 to 4; positions int64 [L], or offset + row where
// not given. `inverse` applies the transpose, which is the gradient.
void rotate(const Part& part, const TensorView& x, int64_t offset, const TensorView& positions,
            bool inverse, const TensorView& out, CancelToken* cancel = nullptr);

// The grid rule of design: an offset must be said where Lq != Lk. Throws the error that names both
// usual answers.
Grid make_grid(int64_t queries, int64_t keys, std::optional<int64_t> q_offset);

}  // namespace relpos
