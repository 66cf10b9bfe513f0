// The registry of schemes, and the check of a tensor against one.
#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "arguments.h"
#include "binding/parts.h"
#include "relpos/family.h"

namespace relpos {
namespace {

nb::object to_python(const OptionValue& value) {
  return std::visit(
      [](const auto& held) -> nb::object {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::monostate>) {
          return nb::none();
        } else {
          return nb::cast(held);
        }
      },
      value);
}

// Sizes of an input that the call decides stand by name.
nb::tuple to_python(const std::vector<int64_t>& shape) {
  nb::list sizes;
  for (int64_t size : shape) {
    if (const char* name = size_name(size); name != nullptr) {
      sizes.append(name);
    } else {
      sizes.append(size);
    }
  }
  return nb::tuple(sizes);
}

OptionValue to_option(nb::handle value) {
  if (value.is_none()) return std::monostate{};
  if (PyBool_Check(value.ptr())) return nb::cast<bool>(value);
  if (PyLong_Check(value.ptr())) {
    int overflow = 0;
    const int64_t integer = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    if (overflow == 0) return integer;
    const double number = PyLong_AsDouble(value.ptr());  // which an integer option refuses
    if (number != -1.0) return number;
    PyErr_Clear();
    return std::copysign(HUGE_VAL, overflow);
  }
  if (PyFloat_Check(value.ptr())) return nb::cast<double>(value);
  if (PyUnicode_Check(value.ptr())) return nb::cast<std::string>(value);
  return nb::cast<std::vector<double>>(value);
}

const Scheme& to_scheme(const std::string& name) {
  const Scheme* found = find_scheme(name);
  check_value(found != nullptr, "scheme: there is none named ", name);
  return *found;
}

std::vector<std::pair<std::string, OptionValue>> to_given(const nb::dict& options) {
  std::vector<std::pair<std::string, OptionValue>> given;
  for (auto [name, value] : options) {
    given.emplace_back(nb::cast<std::string>(name), to_option(value));
  }
  return given;
}

nb::dict to_python(const OptionValues& values) {
  nb::dict options;
  for (const auto& [name, value] : values) options[name.c_str()] = to_python(value);
  return options;
}

nb::list to_python(const std::vector<Scheme>& schemes) {
  nb::list list;
  for (const Scheme& scheme : schemes) {
    nb::list options;
    for (const OptionSpec& spec : scheme.options) {
      nb::dict option;
      option["name"] = spec.name;
      option["type"] = option_type_name(spec.type);
      option["default"] = to_python(spec.fallback);
      option["required"] = spec.required;
      option["positional"] = spec.positional;
      option["choices"] = nb::tuple(nb::cast(spec.choices));
      option["doc"] = spec.doc;
      option["aliases"] = nb::tuple(nb::cast(spec.aliases));
      options.append(option);
    }
    nb::dict entry;
    entry["name"] = scheme.name;
    entry["class_name"] = scheme.class_name;
    entry["summary"] = scheme.summary;
    entry["source"] = scheme.source;
    entry["headline"] = scheme.headline();
    entry["family"] = family(scheme).name;
    entry["options"] = options;
    list.append(entry);
  }
  return list;
}

// How a parameter starts, and whether it is an input of each call.
void add_initial(const ParameterSpec& spec, nb::dict& parameter) {
  const Init& init = spec.init;
  parameter["init"] = init.kind == Init::Kind::kUniform  ? "uniform"
                      : init.kind == Init::Kind::kNormal ? "normal"
                      : init.kind == Init::Kind::kTurned ? "turned"
                                                         : "values";
  parameter["values"] = nb::tuple(nb::cast(init.values));
  parameter["low"] = init.low;
  parameter["high"] = init.high;
  parameter["deviation"] = init.deviation;
  parameter["input"] = spec.input;
  parameter["cumulative"] = spec.cumulative;
  parameter["example"] = to_python(spec.example.empty() ? spec.shape : spec.example);
  parameter["integer"] = spec.integers() ? dtype_name(spec.integer) : "";
}

// The canonical text, the complete options, the parameters and the rotated size of a scheme.
nb::dict describe(const std::string& scheme, const nb::dict& given) {
  Position position;
  position.parts.push_back(make_part(to_scheme(scheme), to_given(given)));
  nb::list parameters;
  for (const ParameterSpec& spec : position.parts[0].specs()) {
    nb::dict parameter;
    parameter["name"] = spec.name;
    parameter["shape"] = to_python(spec.shape);
    add_initial(spec, parameter);
    parameter["trainable"] = spec.trainable;
    parameter["doc"] = spec.doc;
    nb::list origins;
    for (const Origin& origin : spec.origins) {
      origins.append(nb::make_tuple(origin.project, origin.name, origin.transposed));
    }
    parameter["origins"] = nb::tuple(origins);
    parameters.append(parameter);
  }
  std::vector<int64_t> no_tokens;
  nb::dict description;
  description["text"] = position_text(position);
  description["options"] = to_python(position.parts[0].options().items());
  description["parameters"] = parameters;
  description["terms"] = nb::tuple(nb::cast(term_kinds(position.parts[0])));
  description["rotary_dims"] = rotary_dims(position.parts[0]);
  description["rotary_heads"] = rotary_heads(position.parts[0]);
  description["reads_length"] = reads_length(position);
  description["reads_positions"] = reads_positions(position.parts[0]);
  description["places_tokens"] = place_tokens(position, Side::kQuery, no_tokens);
  return description;
}

// (scheme, complete options) of each part of a text; `defaults` serve required options.
nb::list parse(const std::string& text, const nb::dict& defaults) {
  nb::list parts;
  for (const Part& part : parse_position(text, to_given(defaults)).parts) {
    parts.append(nb::make_tuple(part.scheme().name, to_python(part.options().items())));
  }
  return parts;
}

nb::dict to_python(const Comparison& comparison) {
  using Outcome = Comparison::Outcome;
  nb::dict entry;
  entry["outcome"] = comparison.outcome == Outcome::kFits      ? "fits"
                     : comparison.outcome == Outcome::kDiffers ? "differs"
                                                               : "shape";
  entry["convention"] = comparison.convention;
  entry["options"] = to_python(comparison.options);
  entry["note"] = comparison.note;
  entry["compared"] = comparison.compared;
  entry["largest_difference"] = comparison.largest;
  entry["index"] = nb::tuple(nb::cast(comparison.index));
  entry["expected"] = comparison.expected;
  entry["found"] = comparison.found;
  return entry;
}

// The verdict and every comparison.
nb::tuple check_tensor(const std::string& scheme, const nb::dict& options, nb::handle tensor,
                       const std::string& name) {
  const TensorView view = to_view(tensor, "tensor");
  const CheckReport report = check(to_scheme(scheme), to_given(options), view, name);
  nb::list comparisons;
  for (const Comparison& comparison : report.comparisons) comparisons.append(to_python(comparison));
  return nb::make_tuple(verdict_name(report.verdict), comparisons);
}

}  // namespace

void bind_schemes(nb::module_& module) {
  module.def("schemes", [] { return to_python(schemes()); });
  module.def("term_schemes", [] { return to_python(term_schemes()); });
  module.def("describe", &describe);
  module.def("example_options", [](const std::string& scheme) {
    return to_python(example_options(to_scheme(scheme)));
  });
  module.def("parse", &parse);
  module.def("check", &check_tensor);
  module.def("is_held_as", [](const std::string& scheme, const std::string& name) {
    return is_held_as(to_scheme(scheme), name);
  });
}

}  // namespace relpos
