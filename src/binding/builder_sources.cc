// Builder's parameters and inputs, and what it refuses of a scheme's author before any call: sources of
// the wrong kind or rank, and functions that are missing.
#include <algorithm>
#include <utility>

#include "binding/recipe.h"
#include "relpos/scheme.h"

namespace relpos {

const char* Builder::scheme() const { return recipe_.scheme->name.c_str(); }

void Builder::value_dim(int64_t size, const char* option) {
  recipe_.fits.push_back({&CallSizes::value_dim, option, size});
}

void Builder::kv_heads(int64_t heads, const char* option) {
  recipe_.fits.push_back({&CallSizes::kv_heads, option, heads});
}

Source Builder::declare(ParameterSpec spec) {
  const bool known = std::ranges::count(recipe_.specs, spec.name, &ParameterSpec::name) > 0;
  require(!spec.name.empty() && !known, "'", spec.name,
          "': expected a name that no other parameter or input has");
  for (const int64_t size : spec.shape) {
    require(size >= 0 || spec.input, spec.name, ": only inputs have sizes that a call decides");
  }
  require(spec.shape.size() <= static_cast<size_t>(kMaxRank), spec.name, ": expected at most ",
          kMaxRank, " axes, got ", spec.shape.size());
  const int64_t count = checked_numel(InputSizes().example(spec), scheme());
  if (spec.init.kind == Init::Kind::kValues) {
    const auto given = std::ssize(spec.init.values);
    require(given <= 1 || given == count, spec.name,
            ": init: expected one number, or one for each of ", count, ", got ", given);
  }
  require(spec.input || recipe_.specs.empty() || !recipe_.specs.back().input, spec.name,
          ": parameters are declared before inputs");
  Source source;
  source.index_ = recipe_.specs.size();
  for (size_t axis = 0; axis < spec.shape.size(); ++axis) {
    source.axes_.push_back(static_cast<int>(axis));
  }
  recipe_.specs.push_back(std::move(spec));
  return source;
}

int64_t Builder::size_of(const Source& source) const {
  int64_t size = 1;
  for (const int axis : source.axes_) {
    if (axis < 0) continue;
    const ParameterSpec& spec = recipe_.specs[source.index_];
    const int64_t own = spec.shape[static_cast<size_t>(axis)];
    require(own >= 0, spec.name, ": this term reads parameters, whose sizes no call decides");
    size *= own;
  }
  return size;
}

Source Builder::parameter(const std::string& name, const std::vector<int64_t>& shape, Init init,
                          const std::string& doc, std::vector<Origin> origins) {
  return declare({name, shape, std::move(init), true, doc, std::move(origins)});
}

Source Builder::fixed(const std::string& name, const std::vector<int64_t>& shape, Init init,
                      const std::string& doc) {
  return declare({name, shape, std::move(init), false, doc});
}

Source Builder::input(const std::string& name, const std::vector<int64_t>& shape, Init example,
                      const std::string& doc, std::vector<int64_t> sizes) {
  ParameterSpec spec{name, shape, std::move(example), true, doc, {}, true};
  spec.example = std::move(sizes);
  return declare(std::move(spec));
}

Source Builder::integers(const std::string& name, const std::vector<int64_t>& shape, int64_t most,
                         const std::string& doc, DType dtype) {
  const Init example = Init::uniform(0, static_cast<double>(most));
  ParameterSpec spec{name, shape, example, false, doc, {}, true};
  spec.integer = dtype;
  return declare(std::move(spec));
}

Source Builder::integers(const std::string& name, const std::vector<int64_t>& shape,
                         const std::vector<double>& example, const std::string& doc) {
  ParameterSpec spec{name, shape, Init::each(example), false, doc, {}, true};
  spec.example = {std::ssize(example)};
  return declare(std::move(spec));
}

void Builder::place(std::function<int64_t(int64_t)> place) {
  require(place != nullptr, "place: expected a function of a token's number");
  recipe_.place = std::move(place);
}

void Builder::place(std::function<int64_t(int64_t)> query, std::function<int64_t(int64_t)> key) {
  require(query && key, "place: expected a function for queries and one for keys");
  recipe_.place = std::move(query);
  recipe_.place_key = std::move(key);
}

void Builder::ends() { recipe_.has_reach = true; }

void Builder::check_source(const Source& source, std::initializer_list<size_t> axes,
                           const char* term, const char* expected) const {
  require(source.index_ < recipe_.specs.size(), term, ": expected ", expected,
          ", got a source that this scheme did not declare");
  const ParameterSpec& spec = recipe_.specs[source.index_];
  require(axes.size() == 0 || std::ranges::find(axes, source.axes_.size()) != axes.end(), term,
          ": expected ", expected, ", got ", spec.name, " with ", source.axes_.size(), " axes");
  for (const auto& [axis, entry] : source.chosen_) {
    const int64_t size = spec.shape[static_cast<size_t>(axis)];
    require(size >= 0, spec.name, ": an entry is one of an axis whose size no call decides");
    require(entry >= 0 && entry < size, spec.name, ": expected an entry below ", size, ", got ",
            entry);
  }
}

void Builder::check_numbers(const Source& source, std::initializer_list<size_t> axes,
                            const char* term, const char* expected) const {
  check_source(source, axes, term, expected);
  const ParameterSpec& spec = recipe_.specs[source.index_];
  require(!spec.integers(), term, ": expected ", expected, ", got the integers ", spec.name);
}

void Builder::check_integers(const std::optional<Source>& source,
                             std::initializer_list<size_t> axes, const char* term,
                             const char* expected) const {
  require(source.has_value(), term, ": expected ", expected, ", got none");
  check_source(*source, axes, term, expected);
  const ParameterSpec& spec = recipe_.specs[source->index_];
  require(spec.integers(), term, ": expected ", expected, ", got ", spec.name,
          ", which integers() did not declare");
}

void Builder::check_map(const AnyMap& map, const char* term) const {
  const auto* given = std::get_if<GivenMap>(&map);
  if (given == nullptr) return;
  recipe_.maps_are_given = true;
  if (given->kind == GivenMap::Kind::kRuns) {
    check_integers(given->starts, {1}, term, "the starts [N] of a map of runs");
    check_integers(given->classes, {1}, term, "the classes [N + 1] of a map of runs");
    require(!given->reversed, term, ": runs are not reversed; their classes say the order");
    return;
  }
  check_integers(given->first, {1}, term, "the first distance [1] of a map");
  require(size_of(*given->first) == 1, term, ": expected one first distance, got ",
          size_of(*given->first));
}

void Builder::check_along(const std::optional<Along>& along) const {
  if (!along) return;
  if (!along->queries && !along->keys) {
    require(along->query && along->key, "along: expected a function for queries and one for keys");
    return;
  }
  check_integers(along->queries, {2, 3}, "along", "coordinates of queries [B, (axes,) Lq]");
  check_integers(along->keys, {2, 3}, "along", "coordinates of keys [B, (axes,) Lk]");
  require(!along->of_query == !along->of_key, "along: expected both readings or none");
}

void Builder::check_perceptron(const Perceptron& perceptron) const {
  const auto& [first, bias, second, features, sigmoid] = perceptron;
  check_numbers(first, {2}, "perceptron", "first weights [hidden, width]");
  check_numbers(bias, {1}, "perceptron", "a first bias [hidden]");
  check_numbers(second, {2}, "perceptron", "second weights [H, hidden]");
  const std::vector<int64_t>&into = recipe_.specs[first.index_].shape,
        &out = recipe_.specs[second.index_].shape;
  require(into.size() == 2 && out.size() == 2 && size_of(bias) == into[0] && out[1] == into[0],
          "perceptron: expected weights that are parameters as they were declared, with one hidden "
          "size");
  require(features != nullptr, "perceptron: expected features of an entry");
}

void Builder::check_network(const Network& network) const {
  require(network.feature.value != nullptr, "network: expected a feature of the distance");
  for (const Source& number : network.numbers) {
    check_numbers(number, {}, "network", "numbers of the feature");
  }
  int64_t width = 1;
  for (const Network::Layer& layer : network.layers) {
    check_numbers(layer.weight, {2}, "network", "weights [out, in] of a layer");
    check_numbers(layer.bias, {1}, "network", "a bias [out] of a layer");
    const int64_t out = size_of(layer.bias);
    require(size_of(layer.weight) == out * width, "network: expected weights [", out, ", ", width,
            "] of a layer, got ", size_of(layer.weight), " numbers");
    width = out;
  }
}

}  // namespace relpos
