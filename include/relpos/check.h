// Which convention a tensor of other code follows: row order, slopes rule, pair layout, transposed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "relpos/scheme.h"
#include "relpos/tensor.h"

namespace relpos {

// How one reading compared with the tensor.
struct Comparison {
  enum class Outcome { kFits, kShapeOnly, kDiffers };
  Outcome outcome = Outcome::kShapeOnly;
  std::string convention, note;
  std::vector<std::pair<std::string, OptionValue>> options;
  int64_t compared = 0;                // elements; masked ones (-inf, the dtype's lowest) are not
  double largest = 0.0;                // difference, kFits
  std::vector<int64_t> index;          // kDiffers: the first element that differs,
  double expected = 0.0, found = 0.0;  // what it should be and what it is
};

enum class Verdict {
  kFits,       // the values are those of exactly one convention
  kAmbiguous,  // of several: the tensor is too small or too symmetric to tell
  kUndecided,  // learned values: the shape is right, only notes speak for one reading or another
  kNone,       // no convention of the scheme
};
const char* verdict_name(Verdict verdict) noexcept;  // "fits", "ambiguous", "undecided", "none"

struct CheckReport {
  Verdict verdict = Verdict::kNone;
  // Those that fit, then those by shape alone, then those that differ, latest difference first.
  std::vector<Comparison> comparisons;
};

// Compares `tensor` (floating or integer, any strides, empty axes excepted) with every convention
// that `scheme` knows for such a shape and that agrees with the options in `given` (any subset;
// required ones may be missing). `name` is the tensor's name in its file, if it has one. Time: one
// pass over the tensor for each convention that fits. Throws Error on an option that make_options
// would refuse, and where the scheme has no conventions to compare with.
CheckReport check(const Scheme& scheme,
                  const std::vector<std::pair<std::string, OptionValue>>& given,
                  const TensorView& tensor, std::string_view name = "");

// Whether a tensor of this name in a checkpoint is one of the scheme's: the name or its last dotted
// parts are among scheme.recognition.names.
bool is_held_as(const Scheme& scheme, std::string_view name);

}  // namespace relpos
