// The work of selftest: cases, variants of a scheme for them, and the calls of one by both paths.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cli/files/signals.h"
#include "cli/options/parameters.h"
#include "cli/options/random.h"
#include "relpos/attention.h"

namespace relpos::cli::trials {

enum class Mask { kNone, kPadding, kBool, kFloat };

struct Case {
  int64_t batch, heads, key_heads, queries, keys, dim, value_dim;
  DType dtype = DType::kFloat32;
  bool causal = false;
  std::optional<std::pair<int64_t, int64_t>> window = {};
  int64_t q_offset = 0;
  bool row_offsets = false;  // one for each batch row, from q_offset up
  Mask mask = Mask::kNone;
  double dropout = 0.0;
  int64_t k_offset = 0;
};

const std::vector<Case>& cases();

// The largest finite size of the numbers of a tensor.
double largest_finite(const TensorView& view);

// The options of variant `n`: bools, choices and optional head counts take turns; a combination
// that the scheme refuses falls back to its defaults.
Part make_variant(const Scheme& scheme, const Case& c, size_t n);

// Inputs and results of one call.
class Trial {
 public:
  Trial(const Case& c, Position& position, uint64_t seed);

  std::vector<Tensor> forward(Path path, int threads);  // out and lse
  double largest_score();
  // The gradients at the out and lse of one forward: a 16-bit out of its own would hide the bar.
  std::vector<Tensor> backward(Path path, int threads, const std::vector<Tensor>& outputs);

 private:
  void make_mask();

  const Case& case_;
  const Position& position_;
  Random random_;
  Tensor query_, key_, value_, dout_, mask_, offsets_;
  Parameters parameters_;
  Options options_;
};

}  // namespace relpos::cli::trials
