#include "cli/commands/selftest_trial.h"

#include <algorithm>
#include <limits>
#include <string>

#include "cli/common.h"
#include "cli/options/scheme_options.h"
#include "relpos/error.h"

namespace relpos::cli::trials {

const std::vector<Case>& cases() {
  static const std::vector<Case> list{
      {1, 2, 2, 1, 1, 8, 8},
      {2, 4, 4, 37, 37, 16, 16, DType::kFloat32, true},
      {1, 4, 2, 33, 65, 24, 24, DType::kFloat32, true, {}, 32},
      {2, 2, 2, 17, 129, 40, 24, DType::kFloat32, false, {{9, 3}}, 40},
      {1, 4, 1, 1, 300, 64, 64, DType::kFloat32, true, {}, 299},
      {3, 2, 2, 64, 64, 64, 64, DType::kFloat32, false, {}, 0, false, Mask::kPadding},
      {2, 2, 2, 19, 70, 12, 6, DType::kFloat32, true, {}, 21, true, Mask::kFloat},
      {1, 2, 2, 130, 131, 32, 32, DType::kFloat32, false, {{70, -1}}, 1, false, Mask::kBool},
      {1, 2, 2, 9, 12, 8, 8, DType::kFloat32, true, {{2, -1}}, -4},  // rows without any key
      {1, 2, 1, 67, 67, 16, 16, DType::kFloat32, true, {}, 0, false, Mask::kNone, 0.3},
      {1, 2, 2, 5, 7, 4, 1, DType::kFloat32, false, {}, 1000003, false, Mask::kNone, 0, 1000000},
      {2, 2, 2, 45, 45, 64, 64, DType::kBFloat16, true},
      {1, 2, 2, 45, 50, 32, 32, DType::kFloat16, false, {}, 5},
      {1, 2, 2, 0, 4, 8, 8, DType::kFloat32, true, {}, 4},
      {1, 2, 2, 4, 0, 8, 8, DType::kFloat32, true, {}, -4},
  };
  return list;
}

double largest_finite(const TensorView& view) {
  Range range;
  for (int64_t n = 0; n < view.numel(); ++n) range.add(view.load(n));
  return range.largest();
}

Part make_variant(const Scheme& scheme, const Case& c, size_t n) {
  GivenOptions required, varied;
  size_t turn = n;
  for (const OptionSpec& spec : scheme.options) {
    const bool choice = !spec.choices.empty();
    if (spec.name == "heads" && (spec.required || n % 2 == 1)) {
      (spec.required ? required : varied).emplace_back(spec.name, c.heads);
    } else if (spec.name == "head_dim") {
      required.emplace_back(spec.name, c.dim);
    } else if (spec.name == "kv_heads" && c.key_heads != c.heads) {
      required.emplace_back(spec.name, c.key_heads);
    } else if (spec.name == "value_dim") {
      required.emplace_back(spec.name, c.value_dim);
    } else if (choice) {
      (spec.required ? required : varied)
          .emplace_back(spec.name, spec.choices[turn++ % spec.choices.size()]);
    } else if (spec.type == OptionType::kBool) {
      varied.emplace_back(spec.name, turn++ % 2 == 1);
    } else if (spec.required && spec.type == OptionType::kInt) {
      // Even, for widths; every second variant has a table shorter than the sequence.
      const int64_t longer = (std::max(c.queries, c.keys) + 2) / 2 * 2;
      required.emplace_back(spec.name, n % 2 == 0 ? longer : int64_t{6});
    } else if (spec.required && spec.type == OptionType::kValues) {
      required.emplace_back(spec.name, std::vector<double>{3.0, 4.0});
    }
  }
  varied.insert(varied.end(), required.begin(), required.end());
  for (const GivenOptions& given : {varied, required}) {
    try {
      return make_part(scheme, given);
    } catch (const Error&) {
      if (&given == &required || given.size() == required.size()) throw;
    }
  }
  throw_error(ErrorKind::kValue, scheme.name, ": no options fit");
}

Trial::Trial(const Case& c, Position& position, uint64_t seed)
    : case_(c),
      position_(position),
      random_(seed),
      query_(normal_tensor(c.dtype, {c.batch, c.heads, c.queries, c.dim}, random_)),
      key_(normal_tensor(c.dtype, {c.batch, c.key_heads, c.keys, c.dim}, random_)),
      value_(normal_tensor(c.dtype, {c.batch, c.key_heads, c.keys, c.value_dim}, random_)),
      dout_(normal_tensor(c.dtype, {c.batch, c.heads, c.queries, c.value_dim}, random_)),
      parameters_(position, "", random_.bits(), DType::kFloat32,
                  {c.batch, c.heads, c.queries, c.keys, c.dim}) {
  for (const Parameter& item : parameters_.items()) {
    if (item.spec.integers()) continue;
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

std::vector<Tensor> Trial::forward(Path path, int threads) {
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

double Trial::largest_score() {
  const Case& c = case_;
  const Tensor dense(c.dtype, {c.batch, c.heads, c.queries, c.keys});
  options_.path = Path::kReference;
  scores(query_.view(), key_.view(), position_, options_, dense.view());
  return largest_finite(dense.view());
}

std::vector<Tensor> Trial::backward(Path path, int threads, const std::vector<Tensor>& outputs) {
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

void Trial::make_mask() {
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

}  // namespace relpos::cli::trials
