#include "cli/commands/selftest_trial.h"

#include <algorithm>
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

}  // namespace relpos::cli::trials
