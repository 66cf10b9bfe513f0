// Finds the convention that a tensor of other code follows: order of rows, rule of slopes, pair
// layout, transposed or not.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "relpos/export.h"
#include "relpos/options.h"
#include "relpos/position.h"
#include "relpos/tensor.h"

RELPOS_EXPORT_BEGIN
namespace relpos {

// The result of comparing the tensor with one convention.
struct Comparison {
  enum class Outcome { kFits, kShapeOnly, kDiffers };
  Outcome outcome = Outcome::kShapeOnly;
  std::string convention, note;
  OptionValues options;
  int64_t compared = 0;                // elements, without masked ones (-inf, the dtype's lowest)
  double largest = 0.0;                // kFits: the largest difference
  std::vector<int64_t> index;          // kDiffers: the first element that differs,
  double expected = 0.0, found = 0.0;  // what it should be and what it is
};

enum class Verdict {
  kFits,       // the values are those of exactly one convention
  kAmbiguous,  // the values are those of several: the tensor is too small or too symmetric
  kUndecided,  // the shape is right; the values are learned, and only the notes have evidence
  kNone,       // no convention of the scheme
};
const char* verdict_name(Verdict verdict) noexcept;  // "fits", "ambiguous", "undecided", "none"

struct CheckReport {
  Verdict verdict = Verdict::kNone;
  // First those that fit, then those that fit by shape only, then those that differ, of which the one whose
  // first difference comes last is first.
  std::vector<Comparison> comparisons;
};

// Compares `tensor` (floating-point or integer, any strides, no empty axes) with every convention that
// `scheme` has for such a shape and that agrees with the options in `given`. Any options may be left
// out, also required ones. `name` is the tensor's name in its file, if it has one. It takes one pass
// over the tensor for each convention that fits. Throws Error on an option that make_options would
// refuse, on learned values that are not finite, and if the scheme has no conventions.
CheckReport check(const Scheme& scheme, const OptionValues& given, const TensorView& tensor,
                  std::string_view name = "");

// Whether the tensor of this name in a checkpoint belongs to the scheme: the name, or its last parts
// between dots, is among Conventions::names.
bool is_held_as(const Scheme& scheme, std::string_view name);

// The rest of this file is for authors of src/conventions/NAME.cc.

// The tensor that is compared. Axes of size 1 are removed, unless no convention has the other axes.
struct CheckedTensor {
  std::string name;  // in its file; may be empty
  TensorView values;
  OptionMap given;  // only what the caller knows

  bool is_integer() const noexcept { return !is_floating(values.dtype); }
  // The size of an axis; a negative number counts from the end.
  int64_t size(int axis) const noexcept {
    return values.shape[static_cast<size_t>(axis < 0 ? values.rank + axis : axis)];
  }
  // Whether all given options that `options` contains have the same value there.
  bool agrees(const OptionValues& options) const;
};

// A number of a convention, and how much the rounding of other code may change it, in addition to the
// rounding of the tensor's dtype.
struct ExpectedValue {
  double value = 0.0, slack = 0.0;
};

// One convention that a tensor may follow.
struct Convention {
  std::string name;  // "slopes, the paper's rule"
  // The options with which the scheme means the same. If the given options contradict them, the
  // convention is not compared.
  OptionValues options{};
  // The expected value at an index of the tensor. Empty for learned values: only the shape is compared.
  std::function<ExpectedValue(const std::vector<int64_t>& index)> expected{};
  std::string note{};  // other evidence for it or against it, and what to do with the tensor
  // False if the scheme has no options for this convention. Then `options` are only checked against the
  // given ones and not reported, and `note` says what to do.
  bool expressible = true;
};

// The forms that a scheme's tensors have in other code.
struct Conventions {
  std::vector<std::string> names;  // the last parts of the tensors' names in checkpoints
  std::string shapes;              // the known tensors with shapes, as text: "slopes [heads]"
  // The conventions that a tensor of this shape and kind of dtype may follow.
  std::vector<Convention> (*of)(const CheckedTensor&) = nullptr;
};

// Null if there is no src/conventions/NAME.cc for the scheme's name.
const Conventions* conventions_of(const Scheme& scheme);

}  // namespace relpos
RELPOS_EXPORT_END
