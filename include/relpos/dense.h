// The values of one part for all pairs of a grid: dense forms, classes, matrices, rotated vectors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "relpos/cancel.h"
#include "relpos/export.h"
#include "relpos/position.h"
#include "relpos/tensor.h"

RELPOS_EXPORT_BEGIN
namespace relpos {

// Queries at the tokens q_offset + i, keys at the tokens j.
struct Grid {
  int64_t queries = 0, keys = 0, q_offset = 0;
};

// One matrix that is computed between positions and terms.
struct Step {
  enum class Kind { kInteger, kReal, kBoolean };
  std::string name;
  Kind kind = Kind::kInteger;
  std::vector<int64_t> shape;
  std::vector<double> values;  // contiguous; -inf allowed
};

// The dense form of one part on a grid. `which` is "key" (the bias [H, Lq, Lk], or the rows
// [(H,) Lq, Lk, r]) or "value" (the rows). dense_shape throws if the part has no such form.
std::vector<int64_t> dense_shape(const Part& part, const Grid& grid, std::string_view which);
void dense(const Part& part, const Grid& grid, std::string_view which, const TensorView& out,
           CancelToken* cancel = nullptr);
void dense_backward(const Part& part, const Grid& grid, std::string_view which,
                    const TensorView& dout, const std::vector<TensorView>& dparameters,
                    CancelToken* cancel = nullptr);
// int64 [Lq, Lk]: the class of each pair, or -1 for none. If the part has no classes, the distance.
void indices(const Part& part, const Grid& grid, const TensorView& out,
             CancelToken* cancel = nullptr);
std::vector<Step> steps(const Part& part, const Grid& grid, CancelToken* cancel = nullptr);

// Cosines and sines of one part's rotation, [L, dims] float32 or float64, or [Hk, L, dims] where key
// heads have frequencies of their own. Each angle occurs twice, as the pair layout says.
int64_t rotary_dims(const Part& part);   // 0: the part has no rotation
int64_t rotary_heads(const Part& part);  // Hk; 0: all heads turn alike, by no parameter
void rotary_tables(const Part& part, int64_t length, int64_t offset, const TensorView& cos,
                   const TensorView& sin, CancelToken* cancel = nullptr);
// Gradients of the parameters, in views of their shapes; not given: not wanted.
void rotary_tables_backward(const Part& part, int64_t offset, const TensorView& dcos,
                            const TensorView& dsin, const std::vector<TensorView>& dparameters,
                            CancelToken* cancel = nullptr);
// out = R(positions) x for x [..., L, D] of rank 2 to 4; positions int64 [L], or offset + row where
// not given. `inverse` applies the transpose, which is the gradient. Where key heads have frequencies of
// their own, x is [..., H, L, D], H a multiple of Hk.
void rotate(const Part& part, const TensorView& x, int64_t offset, const TensorView& positions,
            bool inverse, const TensorView& out, CancelToken* cancel = nullptr);
void rotate_backward(const Part& part, const TensorView& x, int64_t offset,
                     const TensorView& positions, bool inverse, const TensorView& dout,
                     const std::vector<TensorView>& dparameters, CancelToken* cancel = nullptr);

// The offset of a grid, which must be given where Lq != Lk; the error names the two usual ones.
Grid make_grid(int64_t queries, int64_t keys, std::optional<int64_t> q_offset);

}  // namespace relpos
RELPOS_EXPORT_END
