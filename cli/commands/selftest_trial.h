// What selftest computes: cases, variants of a scheme for them, and the calls of one by both paths.
#pragma once

#include <cstdint>
#include <limits>
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
  Trial(const Case& c, Position& position, uint64_t seed)
      : case_(c),
        position_(position),
        random_(seed),
        query_(normal_tensor(c.dtype, {c.batch, c.heads, c.queries, c.dim}, random_)),
        key_(normal_tensor(c.dtype, {c.batch, c.key_heads, c.keys, c.dim}, random_)),
        value_(normal_tensor(c.dtype, {c.batch, c.key_heads, c.keys, c.value_dim}, random_)),
        dout_(normal_tensor(c.dtype, {c.batch, c.heads, c.queries, c.value_dim}, random_)),
        parameters_(position, "", random_.bits(), DType::kFloat32,
                    {c.batch, c.heads, c.queries, c.keys}) {
    for (const Parameter& item : parameters_.items()) {
      if (item.tensor.view().dtype == DType::kInt64) continue;
      // Some schemes start at zero: a table that does nothing would hide mistakes.
      for (int64_t n = 0; n < item.tensor.view().numel(); ++n) {
        item.tensor.view().store(n, item.tensor.view().load(n) + 0.3 * random_.normal());
      }
    }
    options_.is_causal = c.causal;
    options_.enable_gqa = c.key_heads != c.heads;
    options_.window = c.window;
    options_.q_offset = c.q_offset;
    options_.k_offset = c.k_offset;
    options_.dropout_p = c.dropout;
    options_.seed = seed;
    options_.cancel = &cancel_on_interrupt();
    if (c.row_offsets) {
      offsets_ = Tensor(DType::kInt64, {c.batch});
      for (int64_t b = 0; b < c.batch; ++b) offsets_.data<int64_t>()[b] = c.q_offset + 7 * b;
      options_.q_offset = Offset(offsets_.view());
    }
    make_mask();
  }

  // out and lse.
  std::vector<Tensor> forward(Path path, int threads) {
    options_.path = path;
    options_.threads = threads;
    const Case& c = case_;
    std::vector<Tensor> results;
    results.emplace_back(c.dtype, std::vector{c.batch, c.heads, c.queries, c.value_dim});
    results.emplace_back(DType::kFloat32, std::vector{c.batch, c.heads, c.queries});
    attention(query_.view(), key_.view(), value_.view(), position_, options_, results[0].view(),
              results[1].view());
    return results;
  }

  double largest_score() {
    const Case& c = case_;
    const Tensor dense(c.dtype, {c.batch, c.heads, c.queries, c.keys});
    options_.path = Path::kReference;
    scores(query_.view(), key_.view(), position_, options_, dense.view());
    return largest_finite(dense.view());
  }

  // The gradients at the out and lse of one forward: a 16-bit out of its own would hide the bar.
  std::vector<Tensor> backward(Path path, int threads, const std::vector<Tensor>& outputs) {
    options_.path = path;
    options_.threads = threads;
    std::vector<Tensor> results;
    const auto add = [&](const TensorView& of) {
      return results.emplace_back(of.dtype, of.dims()).view();
    };
    Gradients gradients;
    gradients.query = add(query_.view());
    gradients.key = add(key_.view());
    gradients.value = add(value_.view());
    if (case_.mask == Mask::kFloat) gradients.attn_mask = add(mask_.view());
    gradients.parameters =
        parameters_.gradients([&](const Parameter& item) { return add(item.tensor.view()); });
    attention_backward(query_.view(), key_.view(), value_.view(), outputs[0].view(),
                       outputs[1].view(), dout_.view(), {}, position_, options_, gradients);
    return results;
  }

 private:
  void make_mask() {
    const Case& c = case_;
    if (c.mask == Mask::kNone) return;
    const std::vector<int64_t> shape = c.mask == Mask::kPadding
                                           ? std::vector{c.batch, c.keys}
                                           : std::vector<int64_t>{1, c.heads, c.queries, c.keys};
    mask_ = Tensor(c.mask == Mask::kFloat ? DType::kFloat32 : DType::kBool, shape);
    for (int64_t n = 0; n < mask_.view().numel(); ++n) {
      const double u = random_.uniform();
      const double number = u < 0.2 ? -std::numeric_limits<double>::infinity() : u;
      mask_.view().store(n, c.mask == Mask::kFloat ? number : u < 0.7 ? 1.0 : 0.0);
    }
    (c.mask == Mask::kPadding ? options_.key_padding_mask : options_.attn_mask) = mask_.view();
  }

  const Case& case_;
  const Position& position_;
  Random random_;
  Tensor query_, key_, value_, dout_, mask_, offsets_;
  Parameters parameters_;
  Options options_;
};

}  // namespace relpos::cli::trials
