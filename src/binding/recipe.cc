#include "binding/recipe.h"

#include <cmath>
#include <string>

#include "binding/registry.h"
#include "relpos/error.h"
#include "relpos/scheme.h"

namespace relpos {

namespace {

double glorot_spread(int64_t fan_out, int64_t fan_in) {
  check_value(fan_out > 0 && fan_in > 0, "glorot: expected a table with elements, got [", fan_out,
              ", ", fan_in, "]");
  return static_cast<double>(fan_in) + static_cast<double>(fan_out);
}

const Recipe& recipe_of(const Part& part) {
  check_value(part.recipe != nullptr, "part: has no scheme; make it with make_part");
  return *part.recipe;
}

}  // namespace

Init Init::glorot_uniform(int64_t fan_out, int64_t fan_in) {
  const double bound = std::sqrt(6.0 / glorot_spread(fan_out, fan_in));
  return uniform(-bound, bound);
}

Init Init::glorot_normal(int64_t fan_out, int64_t fan_in) {
  return normal(std::sqrt(2.0 / glorot_spread(fan_out, fan_in)));
}

std::vector<int64_t> InputSizes::shape(const ParameterSpec& spec) const {
  std::vector<int64_t> sizes;
  for (const int64_t said : spec.shape) sizes.push_back(size(said));
  return sizes;
}

std::vector<int64_t> InputSizes::example(const ParameterSpec& spec) const {
  constexpr int64_t kSome = 3;
  std::vector<int64_t> sizes;
  for (const int64_t said : spec.example.empty() ? spec.shape : spec.example) {
    sizes.push_back(said == kAny ? kSome : size(said));
  }
  return sizes;
}

const char* size_name(int64_t said) noexcept {
  return said == kBatch     ? "batch"
         : said == kHeads   ? "heads"
         : said == kQueries ? "queries"
         : said == kKeys    ? "keys"
         : said == kAny     ? "any"
         : said == kHeadDim ? "head_dim"
                            : nullptr;
}

std::string sizes_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t said : shape) {
    const char* name = size_name(said);
    text += (text.empty() ? "[" : ", ") + (name == nullptr ? std::to_string(said) : name);
  }
  return text.empty() ? "[]" : text + "]";
}

bool InputSizes::fits(const ParameterSpec& spec, const std::vector<int64_t>& dims) const {
  if (dims.size() != spec.shape.size()) return false;
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    const int64_t said = spec.shape[axis], expected = size(said);
    const bool any = said == kAny || (said < 0 && expected == 0);
    const bool shared = said == kBatch && spec.integers() && dims[axis] == 1;
    if (!any && !shared && dims[axis] != expected) return false;
  }
  return true;
}

std::string InputSizes::text(const ParameterSpec& spec) const {
  std::vector<int64_t> sizes = shape(spec);
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    if (spec.shape[axis] < 0 && sizes[axis] == 0) sizes[axis] = kAny;
  }
  return sizes_text(sizes);
}

const Scheme& Part::scheme() const { return *recipe_of(*this).scheme; }
const OptionMap& Part::options() const { return recipe_of(*this).options; }
const std::vector<ParameterSpec>& Part::specs() const { return recipe_of(*this).specs; }

Part make_part(const Scheme& scheme, const OptionValues& options) {
  return {scheme.make(scheme, make_options(scheme, options)), {}};
}

std::vector<int64_t> table_shape(const std::optional<int64_t>& heads, int64_t rows,
                                 int64_t columns) {
  if (heads) return {*heads, rows, columns};
  return {rows, columns};
}

std::shared_ptr<const Recipe> make_recipe(const Scheme& scheme, const OptionMap& options,
                                          const std::function<void(Builder&)>& terms) {
  const auto recipe = std::make_shared<Recipe>();
  recipe->scheme = kept(scheme);
  recipe->options = options;
  for (const auto& [option, size] :
       {std::pair{"heads", &CallSizes::heads}, std::pair{"head_dim", &CallSizes::head_dim}}) {
    if (options.has(option)) recipe->fits.push_back({size, option, options.integer(option)});
  }
  Builder builder(*recipe);
  terms(builder);
  return recipe;
}

Terms Recipe::bind(const PartCall& call) const {
  for (const Fit& fit : fits) {
    const int64_t has = call.sizes.*fit.size;
    check_value(has == 0 || has == fit.expected, scheme->name, ": ", fit.option,
                ": this position was made with ", fit.option, "=", fit.expected, ", the call has ",
                has, "; make the position with ", fit.option, "=", has);
  }
  Terms bound;
  for (const RecipeTerm& term : terms) term.bind(call, bound);
  return bound;
}

void Recipe::pull_back(const PartCall& call, const TermGradients& gradients,
                       ParameterSums& sums) const {
  for (const RecipeTerm& term : terms) term.pull_back(call, gradients, sums);
}

}  // namespace relpos
