// Which convention a tensor of other code follows: row order, slopes rule, pair layout, transposed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "relpos/options.h"
#include "relpos/position.h"
#include "relpos/tensor.h"

namespace relpos {

// How one convention compared with the tensor.
struct Comparison {
  enum class Outcome { kFits, kShapeOnly, kDiffers };
  Outcome outcome = Outcome::kShapeOnly;
  std::string convention, note;
  OptionValues options;
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
CheckReport check(const Scheme& scheme, const OptionValues& given, const TensorView& tensor,
                  std::string_view name = "");

// Whether a tensor of this name in a checkpoint is one of the scheme's: the name or its last dotted
// parts are among Conventions::names.
bool is_held_as(const Scheme& scheme, std::string_view name);

// What follows is for authors of src/conventions/NAME.cc.

// The tensor under question. Its axes of size 1 are gone, unless no convention has what is left.
struct CheckedTensor {
  std::string name;  // in its file; may be empty
  TensorView values;
  OptionMap given;  // only what the caller knows

  bool is_integer() const noexcept { return !is_floating(values.dtype); }
  // The size of an axis, from the last one on where negative.
  int64_t size(int axis) const noexcept {
    return values.shape[static_cast<size_t>(axis < 0 ? values.rank + axis : axis)];
  }
  // Whether no given option has another value than in `options`.
  bool agrees(const OptionValues& options) const;
};

// A number of a convention, and how far from it the rounding of other code may be, beyond that of the
// tensor's dtype.
struct ExpectedValue {
  double value = 0.0, slack = 0.0;
};

// One convention that a tensor may follow.
struct Convention {
  std::string name;  // "slopes, the paper's rule"
  // With these the scheme means the same. Where given options contradict them, the convention is left
  // out.
  OptionValues options{};
  // At an index of the tensor. Empty: learned values, of which the shape alone speaks.
  std::function<ExpectedValue(const std::vector<int64_t>& index)> expected{};
  std::string note{};  // what else speaks for it or against it, and what to do with the tensor
  // False: the scheme has no option for it. `options` then narrow and are not reported, and `note`
  // says what to do.
  bool expressible = true;
};

// What `check` can tell about a scheme's tensors in other code.
struct Conventions {
  std::vector<std::string> names;  // last parts of the names that they have in checkpoints
  std::string shapes;              // of what is known, for a reader: "slopes [heads]"
  // Those that a tensor of this shape and kind of dtype may follow.
  std::vector<Convention> (*of)(const CheckedTensor&) = nullptr;
};

// nullptr where there is no src/conventions/NAME.cc for the scheme's name.
const Conventions* conventions_of(const Scheme& scheme);

}  // namespace relpos
