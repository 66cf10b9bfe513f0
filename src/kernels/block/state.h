// What a block carries from tile to tile: in the forward pass its softmax and output, in the backward
// pass where its gradients go.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/block/sizes.h"
#include "relpos/tensor.h"

namespace relpos {

// The running softmax of a block's rows.
struct ForwardState {
  float* m = nullptr;  // [kRows], the reference exponent; -inf: nothing seen
  float* l = nullptr;  // [kRows, kLanes], partial sums
  float* o = nullptr;  // [kRows, Dvp], unnormalised output
};

// What the backward pass knows of a block's rows, and where their gradients go. A weight is
// exp2(score - reference) / sum with the sum in [1, 2): dout and delta come divided by it, so that the
// kernels work with exp2(score - reference) alone. Where a unit multiplies, dout is a number of bfloat16
// and stays one, delta is not divided either, and weights are. All rows are of one head.
struct BackwardState {
  const float* dout = nullptr;  // [kRows, Dvp], divided by the row's sum
  float reference[kRows];       // an integer, log2 units; -inf: the row saw nothing
  float inverse[kRows];         // of the row's sum (a unit's)
  float delta[kRows];           // (<dout, out> - dlse) / sum
  bool rows_finite = true;      // q and dout hold no NaN or Inf
  bool bounded = false;         // a score may exceed its reference: weights are at most 2^127
  bool all_weigh = false;       // the rows fill whole groups, and none saw nothing
  // A unit's: [kRows, Dvq], zero rows beyond the last, and transposed [Dvp, unit_rows()].
  const uint16_t *narrow_dout = nullptr, *narrow_dout_t = nullptr;
  float* dq = nullptr;  // [kRows, Dp], of the rotated query before the scale
  // Of a tile [kTile, Dp] and [kTile, Dvp], tile after tile; a unit's transposed, [Dp, kTile]. dk is
  // what Plan::key_gradient_scale() makes the true gradient.
  float *dk = nullptr, *dv = nullptr;
  float* p = nullptr;         // [kRows, kTile] scratch
  float* ds = nullptr;        // [kRows, kTile] scratch
  float* key_bias = nullptr;  // [tiles * kTile], takes dscore; null: not wanted
  // Called once before anything is added to dk, dv and key_bias of tile t; false: nothing may be.
  bool (*take_turn)(void* sums, int64_t t) = nullptr;
  void* sums = nullptr;  // its first argument
  std::vector<double>* mask_gradient = nullptr;
  const TensorView* mask_index = nullptr;
  float* mask_ds = nullptr;  // [kRows, kTile], what it takes: ds, or a copy from before a softcap
  const TensorView* mask_rows = nullptr;  // in place of the three; null: not wanted
};

}  // namespace relpos
