#include "cli/options/parameters.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <utility>

#include "cli/common.h"
#include "cli/files/files.h"
#include "cli/options/random.h"
#include "io/file.h"
#include "io/npy.h"
#include "io/safetensors.h"

namespace relpos::cli {
namespace {

constexpr int64_t kMostNumbers = int64_t{1} << 31;
constexpr size_t kMostNames = 8;  // of a file, in one line

// Init::turned.
void turn_heads(const ParameterSpec& spec, Random& random, const Tensor& tensor) {
  const auto columns = static_cast<size_t>(spec.shape[2]);
  const std::vector<double>& of = spec.init.values;
  for (int64_t h = 0; h < spec.shape[1]; ++h) {
    const double angle = 2.0 * std::numbers::pi * random.uniform();
    const double cos = std::cos(angle), sin = std::sin(angle);
    for (size_t n = 0; n < columns; ++n) {
      const TensorView& to = tensor.view();
      const auto at = static_cast<int64_t>(n);
      to.store(to.offset({0, h, at}), cos * of[n] - sin * of[columns + n]);
      to.store(to.offset({1, h, at}), sin * of[n] + cos * of[columns + n]);
    }
  }
}

Tensor initialise(const ParameterSpec& spec, DType dtype, Random random) {
  const int64_t count = checked_numel(spec.example, spec.name.c_str());
  check_value(count <= kMostNumbers, spec.name, ": shape ", shape_text(spec.example),
              " is too large to draw, at most ", kMostNumbers, " numbers");
  Tensor tensor(spec.integers() ? spec.integer : dtype, spec.example);
  const std::vector<double>& values = spec.init.values;
  if (spec.init.kind == Init::Kind::kTurned) {
    turn_heads(spec, random, tensor);
    return tensor;
  }
  for (int64_t n = 0; n < count; ++n) {
    double value = 0.0;
    switch (spec.init.kind) {
      case Init::Kind::kValues:
        value = values.empty() ? 0.0 : values[static_cast<size_t>(n) % values.size()];
        break;
      case Init::Kind::kUniform:
        value = spec.init.low + random.uniform() * (spec.init.high - spec.init.low);
        break;
      case Init::Kind::kNormal:
        value = random.normal() * spec.init.deviation;
        break;
      case Init::Kind::kTurned:
        break;
    }
    tensor.view().store(n, value);
  }
  return tensor;
}

void check_fits(const std::string& file, const std::string& name, const ParameterSpec& spec,
                const InputSizes& sizes, const TensorView& view) {
  const std::string who = file + ": tensor " + io::printable(name);
  check_value(sizes.fits(spec, view.dims()), who, ": expected shape ", sizes.text(spec), ", got ",
              view.shape_text());
  if (spec.integers() ? view.dtype != spec.integer : !is_floating(view.dtype)) {
    throw_error(ErrorKind::kType, who, ": expected ",
                spec.integers() ? dtype_name(spec.integer) : "a floating dtype", ", got ",
                dtype_name(view.dtype));
  }
  for (int64_t n = 0; n < view.numel(); ++n) {
    check_value(std::isfinite(view.load(n)), who, ": expected finite numbers, element ", n, " is ",
                view.load(n));
  }
}

std::vector<int64_t> last_two_swapped(std::vector<int64_t> shape) {
  std::swap(shape[shape.size() - 2], shape[shape.size() - 1]);
  return shape;
}

Tensor transposed(const Tensor& tensor) {
  TensorView from = tensor.view();
  const auto last = static_cast<size_t>(from.rank) - 1;
  std::swap(from.shape[last - 1], from.shape[last]);
  std::swap(from.strides[last - 1], from.strides[last]);
  Tensor out(from.dtype, from.dims());
  io::gather(from, 0, from.numel(), out.data<std::byte>());
  return out;
}

struct Found {
  const io::SafetensorsFile::Entry* entry = nullptr;
  bool turned = false;  // the last two axes are swapped
};

Found find(const io::SafetensorsFile& source, const Parameter& item) {
  const std::string own = std::to_string(item.part) + "." + item.spec.name;
  for (const std::string& name : {"parts." + own, own, item.name}) {
    if (const auto* entry = source.find(name)) return {entry, false};
  }
  if (item.name != item.spec.name) return {};  // another part has such a parameter, too
  for (const Origin& origin : item.spec.origins) {
    if (const auto* entry = source.find(origin.name)) return {entry, origin.transposed};
  }
  return {};
}

std::string held_text(const io::SafetensorsFile& source) {
  std::vector<std::string> names;
  for (const auto& entry : source.entries()) {
    if (names.size() == kMostNames) break;
    names.push_back(io::printable(entry.name) + " " + shape_text(entry.shape));
  }
  const size_t more = source.entries().size() - names.size();
  if (names.empty()) return "nothing";
  return join(names) + (more > 0 ? " and " + std::to_string(more) + " more" : "");
}

}  // namespace

Parameters::Parameters(Position& position, const std::string& file, uint64_t seed, DType dtype,
                       const InputSizes& sizes, const std::vector<std::string>& inputs)
    : file_(file), sizes_(sizes), parts_(position.parts.size()) {
  std::map<std::string, int> uses;
  for (size_t part = 0; part < position.parts.size(); ++part) {
    std::vector<ParameterSpec> specs = position.parts[part].specs();
    for (size_t index = 0; index < specs.size(); ++index) {
      ++uses[specs[index].name];
      specs[index].example = sizes.example(specs[index]);
      items_.push_back({part, index, specs[index].name, std::move(specs[index]), {}, false});
    }
  }
  for (Parameter& item : items_) {
    if (uses[item.spec.name] > 1) item.name = std::to_string(item.part) + "." + item.spec.name;
  }
  if (!file.empty()) load(file);
  if (!inputs.empty()) load_inputs(inputs);
  Random seeds(seed);
  for (Parameter& item : items_) {
    const Random random(seeds.bits());  // drawn for all, so that a file changes no other parameter
    if (!item.from_file) {
      item.spec.shape = sizes.shape(item.spec);
      item.tensor = initialise(item.spec, dtype, random);
    }
    item.spec.shape = item.tensor.view().dims();
    position.parts[item.part].parameters.push_back(item.tensor.view());
  }
}

void Parameters::load(const std::string& file) {
  check_value(!items_.empty(), file, ": the position has no parameters to load");
  if (!is_npy(file)) return load_safetensors(file);
  check_value(items_.size() == 1, file, ": a .npy file holds one parameter, the position has ",
              items_.size(), ": give .safetensors");
  items_[0].tensor = io::read_npy(file);
  check_fits(file, items_[0].name, items_[0].spec, sizes_, items_[0].tensor.view());
  items_[0].from_file = true;
}

void Parameters::load_inputs(const std::vector<std::string>& inputs) {
  const auto known = names([](const Parameter& item) { return item.spec.input; });
  for (const std::string& input : inputs) {
    const size_t equals = input.find('=');
    const std::string name = input.substr(0, equals);
    check_value(equals != std::string::npos, "--input: expected NAME=FILE.npy, got ", input);
    const auto item = std::ranges::find_if(
        items_, [&](const Parameter& p) { return p.spec.input && p.name == name; });
    check_value(item != items_.end(), "--input: the position has no input '", name, "'; ",
                known.empty() ? std::string("it has no inputs") : "it has " + join(known));
    const std::string file = input.substr(equals + 1);
    item->tensor = io::read_npy(file);
    check_fits(file, name, item->spec, sizes_, item->tensor.view());
    item->from_file = true;
  }
}

void Parameters::load_safetensors(const std::string& file) {
  check_extension(file);
  const io::SafetensorsFile source(file);
  held_ = held_text(source);
  bool any = false;
  for (Parameter& item : items_) {
    const Found found = find(source, item);
    if (found.entry == nullptr) continue;
    ParameterSpec expected = item.spec;
    if (found.turned) expected.shape = last_two_swapped(expected.shape);
    const std::string name = io::printable(found.entry->name);
    check_value(sizes_.fits(expected, found.entry->shape), file, ": tensor ", name,
                ": expected shape ", sizes_.text(expected), ", got ",
                shape_text(found.entry->shape));
    item.tensor = source.read(*found.entry);
    if (found.turned) item.tensor = transposed(item.tensor);
    check_fits(file, found.entry->name, item.spec, sizes_, item.tensor.view());
    item.from_file = any = true;
  }
  check_value(any, file, ": holds none of the position's parameters: ",
              join(names([](const Parameter&) { return true; })), "; it holds ", held_);
}

std::vector<std::vector<TensorView>> Parameters::gradients(
    const std::function<TensorView(const Parameter&)>& of) const {
  std::vector<std::vector<TensorView>> views(parts_);
  for (const Parameter& item : items_) {
    views[item.part].push_back(item.spec.trainable ? of(item) : TensorView{});
  }
  return views;
}

std::vector<std::string> Parameters::names(
    const std::function<bool(const Parameter&)>& holds) const {
  std::vector<std::string> found;
  for (const Parameter& item : items_) {
    if (holds(item)) found.push_back(item.name);
  }
  return found;
}

std::string Parameters::missing_text() const {
  const auto missing = names([](const Parameter& item) { return !item.from_file; });
  if (file_.empty() || missing.empty()) return "";
  return file_ + " has no " + join(missing) + ": drawn from the initialisation; it holds " + held_;
}

std::vector<std::string> Parameters::drawn_at_random() const {
  return names([](const Parameter& item) {
    return !item.from_file && item.spec.init.kind != Init::Kind::kValues;
  });
}

std::string Parameters::drawn_text(uint64_t seed) const {
  if (!file_.empty()) return "";
  const std::vector<std::string> drawn = drawn_at_random(),
                                 fixed = names([](const auto& item) {
                                   return item.spec.trainable &&
                                          item.spec.init.kind == Init::Kind::kValues;
                                 });
  std::vector<std::string> texts;
  if (!drawn.empty()) {
    texts.push_back(join(drawn) + " drawn at random (--seed " + std::to_string(seed) + ")");
  }
  if (!fixed.empty()) texts.push_back(join(fixed) + " as initialised");
  return texts.empty() ? "" : "no --params: " + join(texts, "; ");
}

}  // namespace relpos::cli
