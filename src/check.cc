#include "relpos/check.h"

#include <algorithm>
#include <cmath>

#include "relpos/error.h"

namespace relpos {

namespace {

using Given = std::vector<std::pair<std::string, OptionValue>>;

// The given options alone, checked as make_options checks them.
OptionMap checked_subset(const Scheme& scheme, const Given& given) {
  Given complete = given;
  const auto named = [&](const Given& options, const std::string& name) {
    return std::any_of(options.begin(), options.end(),
                       [&](const auto& item) { return item.first == name; });
  };
  for (const OptionSpec& spec : scheme.options) {
    if (!spec.required || named(given, spec.name)) continue;
    OptionValue stand_in = int64_t{1};
    if (spec.type == OptionType::kBool) stand_in = false;
    if (!spec.choices.empty()) stand_in = spec.choices.front();
    complete.emplace_back(spec.name, std::move(stand_in));
  }
  const OptionMap options = make_options(scheme, complete);
  OptionMap subset;
  for (const auto& [name, value] : options.items()) {
    if (named(given, name)) subset.set(name, value);
  }
  return subset;
}

// Half a unit in the last place of the dtype, relative.
double rounding(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 0x1p-24;
    case DType::kFloat64:
      return 0x1p-53;
    case DType::kBFloat16:
      return 0x1p-9;
    case DType::kFloat16:
      return 0x1p-12;
    default:
      return 0.0;
  }
}

// -inf, or the lowest number of a dtype (bfloat16's is the -3.39e38 of float32).
bool is_hidden(DType dtype, double value) {
  return is_floating(dtype) && value <= (dtype == DType::kFloat16 ? -65504.0 : -3.38e38);
}

// Kept axes of a tensor, and the way back to its indices.
struct Squeezed {
  TensorView view;
  std::vector<size_t> axes;
};

Squeezed squeezed(const TensorView& tensor, bool drop_ones) {
  Squeezed kept;
  std::vector<int64_t> shape, strides;
  for (size_t axis = 0; axis < static_cast<size_t>(tensor.rank); ++axis) {
    if (drop_ones && tensor.shape[axis] == 1) continue;
    kept.axes.push_back(axis);
    shape.push_back(tensor.shape[axis]);
    strides.push_back(tensor.strides[axis]);
  }
  kept.view = TensorView(tensor.data, tensor.dtype, shape, strides);
  return kept;
}

bool next(std::vector<int64_t>& index, const TensorView& view) {
  for (size_t axis = index.size(); axis-- > 0;) {
    if (++index[axis] < view.shape[axis]) return true;
    index[axis] = 0;
  }
  return false;
}

Comparison compared(const Reading& reading, const Squeezed& tensor, int rank) {
  Comparison comparison;
  comparison.convention = reading.convention;
  comparison.note = reading.note;
  comparison.options = reading.options;
  if (!reading.expected) return comparison;
  const TensorView& view = tensor.view;
  const double unit = 4 * rounding(view.dtype);
  std::vector<int64_t> index(tensor.axes.size(), 0);
  comparison.outcome = Comparison::Outcome::kFits;
  do {
    int64_t offset = 0;
    for (size_t axis = 0; axis < index.size(); ++axis) offset += index[axis] * view.strides[axis];
    const double found = view.load(offset);
    if (is_hidden(view.dtype, found)) continue;
    const Golden golden = reading.expected(index);
    ++comparison.compared;
    const double difference = std::abs(found - golden.value);
    if (difference <= golden.slack + unit * std::abs(golden.value)) {
      comparison.largest = std::max(comparison.largest, difference);
      continue;
    }
    comparison.outcome = Comparison::Outcome::kDiffers;
    comparison.expected = golden.value;
    comparison.found = found;
    comparison.index.assign(static_cast<size_t>(rank), 0);
    for (size_t axis = 0; axis < index.size(); ++axis) {
      comparison.index[tensor.axes[axis]] = index[axis];
    }
    return comparison;
  } while (next(index, view));
  if (comparison.compared == 0) comparison.outcome = Comparison::Outcome::kShapeOnly;
  return comparison;
}

Verdict verdict_of(const std::vector<Comparison>& comparisons) {
  const auto count = [&](Comparison::Outcome outcome) {
    return std::count_if(comparisons.begin(), comparisons.end(),
                         [&](const Comparison& c) { return c.outcome == outcome; });
  };
  const auto fits = count(Comparison::Outcome::kFits);
  if (fits > 0) return fits == 1 ? Verdict::kFits : Verdict::kAmbiguous;
  return count(Comparison::Outcome::kShapeOnly) > 0 ? Verdict::kUndecided : Verdict::kNone;
}

}  // namespace

const char* verdict_name(Verdict verdict) noexcept {
  switch (verdict) {
    case Verdict::kFits:
      return "fits";
    case Verdict::kAmbiguous:
      return "ambiguous";
    case Verdict::kUndecided:
      return "undecided";
    case Verdict::kNone:
      break;
  }
  return "none";
}

CheckReport check(const Scheme& scheme, const Given& given, const TensorView& tensor,
                  std::string_view name) {
  check_value(scheme.recognition.readings != nullptr, scheme.name,
              ": has no conventions to compare with");
  check_value(tensor.given(), "tensor: expected one, got none");
  check_value(tensor.numel() > 0, "tensor: expected elements, got shape ", tensor.shape_text());
  if (tensor.dtype == DType::kBool) {
    throw_error(ErrorKind::kType, "tensor: expected floating or integer numbers, got bool");
  }
  Specimen specimen{std::string(name), {}, checked_subset(scheme, given)};
  CheckReport report;
  for (const bool drop_ones : {true, false}) {
    const Squeezed view = squeezed(tensor, drop_ones);
    specimen.values = view.view;
    for (const Reading& reading : scheme.recognition.readings(specimen)) {
      report.comparisons.push_back(compared(reading, view, tensor.rank));
    }
    if (!report.comparisons.empty()) break;
  }
  std::stable_sort(report.comparisons.begin(), report.comparisons.end(),
                   [](const Comparison& a, const Comparison& b) {
                     if (a.outcome != b.outcome) return a.outcome < b.outcome;
                     return a.outcome == Comparison::Outcome::kDiffers && a.compared > b.compared;
                   });
  report.verdict = verdict_of(report.comparisons);
  return report;
}

bool is_held_as(const Scheme& scheme, std::string_view name) {
  return std::any_of(scheme.recognition.names.begin(), scheme.recognition.names.end(),
                     [&](const std::string& known) {
                       if (!name.ends_with(known)) return false;
                       if (name.size() == known.size()) return true;
                       const char before = name[name.size() - known.size() - 1];
                       return before == '.' || before == '/';
                     });
}

}  // namespace relpos
