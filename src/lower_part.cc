#include "lower_part.h"

#include <algorithm>

#include "make_problem.h"

namespace relpos {
namespace {

// One number for all elements costs no memory of its size: strides of 0.
TensorView stand_in(const ParameterSpec& spec, std::vector<double>& memory) {
  const int64_t count = checked_numel(spec.shape, spec.name.c_str());
  const std::vector<double>& values = spec.init.values;
  const bool each = spec.init.kind == Init::Kind::kValues && values.size() > 1;
  if (each && static_cast<int64_t>(values.size()) == count) {
    memory = values;
    return TensorView(memory.data(), DType::kFloat64, spec.shape);
  }
  memory.assign(1, values.empty() ? 0.0 : values[0]);
  return TensorView(memory.data(), DType::kFloat64, spec.shape,
                    std::vector<int64_t>(spec.shape.size(), 0));
}

}  // namespace

LoweredPart lower_part(const Part& part, std::vector<bool> wants) {
  check_value(part.scheme != nullptr, "part: has no scheme");
  check_parameters(part);
  LoweredPart lowered;
  lowered.part = &part;
  lowered.parameters = part.parameters;
  lowered.wants = std::move(wants);
  lowered.wants.resize(part.parameters.size(), false);
  part.scheme->lower(lowered.setting(), lowered.terms);
  return lowered;
}

LoweredPart lower_structure(const Part& part, int64_t head_dim) {
  check_value(part.scheme != nullptr, "part: has no scheme");
  const bool complete =
      std::all_of(part.parameters.begin(), part.parameters.end(), [](const TensorView& view) {
        return view.given() && (view.data != nullptr || view.numel() == 0);
      });
  const std::vector<ParameterSpec> specs = part.scheme->parameters(part.options);
  LoweredPart lowered;
  lowered.part = &part;
  lowered.head_dim = head_dim;
  if (complete && part.parameters.size() == specs.size()) {
    check_parameters(part);
    lowered.parameters = part.parameters;
  } else {
    lowered.stand_ins.resize(specs.size());
    for (size_t n = 0; n < specs.size(); ++n) {
      lowered.parameters.push_back(stand_in(specs[n], lowered.stand_ins[n]));
    }
  }
  lowered.wants.resize(specs.size(), false);
  part.scheme->lower(lowered.setting(), lowered.terms);
  return lowered;
}

}  // namespace relpos
