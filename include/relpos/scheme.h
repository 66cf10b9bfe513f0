// What a scheme file exports, the registry of schemes, and positions built from them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "relpos/error.h"
#include "relpos/tensor.h"
#include "relpos/terms.h"

namespace relpos {

// None, bool, int, float, text, or a list of numbers.
using OptionValue =
    std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<double>>;

enum class OptionType { kBool, kInt, kFloat, kChoice, kChoiceOrValues };

const char* option_type_name(OptionType type) noexcept;  // "bool", "choice or values", ...

struct OptionSpec {
  std::string name;
  OptionType type;
  OptionValue fallback{};  // monostate with required == false: None is the default
  bool required = false;
  bool positional = false;  // may be given by place in Python, in the order of the specs
  std::vector<std::string> choices{};
  std::string doc;
};

// Values by name, complete and checked against the specs (make_options).
class OptionMap {
 public:
  void set(const std::string& name, OptionValue value);
  bool has(std::string_view name) const noexcept;  // present and not None
  bool flag(std::string_view name) const;
  int64_t integer(std::string_view name) const;
  double number(std::string_view name) const;  // ints widen
  const std::string& text(std::string_view name) const;
  const std::vector<double>* values(std::string_view name) const noexcept;  // null unless a list
  const std::vector<std::pair<std::string, OptionValue>>& items() const noexcept { return items_; }

 private:
  const OptionValue* find(std::string_view name) const noexcept;
  std::vector<std::pair<std::string, OptionValue>> items_;
};

struct Init {
  enum class Kind { kValues, kUniform, kNormal };
  Kind kind = Kind::kValues;
  double spread = 0.0;         // bound of the uniform, standard deviation of the normal
  std::vector<double> values;  // kValues: one number for all elements, or one for each

  static Init constant(double value) { return {Kind::kValues, 0.0, {value}}; }
  static Init each(std::vector<double> values) { return {Kind::kValues, 0.0, std::move(values)}; }
  static Init uniform(double bound) { return {Kind::kUniform, bound, {}}; }
  static Init normal(double deviation) { return {Kind::kNormal, deviation, {}}; }
  // Glorot & Bengio 2010, for a table [fan_out, fan_in].
  static Init glorot_uniform(int64_t fan_out, int64_t fan_in);
  static Init glorot_normal(int64_t fan_out, int64_t fan_in);
};

// A name under which a parameter lives in other code.
struct Origin {
  std::string project;      // whose code: "tensor2tensor"
  std::string name;         // beneath the place that the scheme takes there
  bool transposed = false;  // the last two axes stand the other way round
};

struct ParameterSpec {
  std::string name;  // dotted, as in the scheme's origin
  std::vector<int64_t> shape;
  Init init;
  bool trainable = true;  // false: a non-persistent buffer in Python
  std::string doc;
  std::vector<Origin> origins{};  // where rows stand in the same order under these options
};

// What `lower` and `pull_back` see of one call.
struct Setting {
  const OptionMap& options;
  const std::vector<TensorView>& parameters;  // in the order of Scheme::parameters
  const std::vector<bool>& wants_gradient;    // same order
  int64_t heads = 0, head_dim = 0,
          value_dim = 0;  // of the attention call; 0 where unknown (dense, indices)
};

// One matrix of the road from positions to terms, for `steps` and the command line.
struct Step {
  enum class Kind { kInteger, kReal, kBoolean };
  std::string name;
  Kind kind = Kind::kInteger;
  std::vector<int64_t> shape;
  std::vector<double> values;  // contiguous; -inf allowed
};

// Positions of a `steps` or `dense` grid: query i at q_offset + i, key j at j.
struct Grid {
  int64_t queries = 0, keys = 0, q_offset = 0;
};

struct Scheme {
  std::string name;        // the file's name, as on the command line: "t5"
  std::string class_name;  // in Python: "T5Bias"
  std::string summary;     // one line
  std::string source;      // paper and section
  std::vector<OptionSpec> options;

  // Checks the options against each other (throws Error) and names the parameters.
  std::vector<ParameterSpec> (*parameters)(const OptionMap&) = nullptr;
  void (*lower)(const Setting&, Terms&) = nullptr;
  // `gradients` is of this scheme's own terms. Adds into `parameters[n]`, contiguous in the shape of
  // parameter n, empty where not wanted. Null where a scheme has nothing to train.
  void (*pull_back)(const Setting&, const TermGradients& gradients,
                    std::vector<std::vector<double>>& parameters) = nullptr;
};

const std::vector<Scheme>& schemes();
// nullptr when there is none of that name.
const Scheme* find_scheme(std::string_view name);

// Fills defaults, checks types, choices and names; throws Error naming the option and scheme.
OptionMap make_options(const Scheme& scheme,
                       const std::vector<std::pair<std::string, OptionValue>>& given);

// A scheme with its options and its parameters as views; the caller owns the parameters.
struct Part {
  const Scheme* scheme = nullptr;
  OptionMap options;
  std::vector<TensorView> parameters;
};

// A scheme or a sum of schemes. Empty: attention without positions.
struct Position {
  std::vector<Part> parts;

  std::vector<ParameterSpec> parameter_specs(size_t part) const;
};

// "rope(layout=half)+t5(buckets=32)". `defaults` serve required options that the text leaves out
// (heads, head_dim). Parameters are left empty. Throws Error with the nearest scheme name.
Position parse_position(std::string_view text,
                        const std::vector<std::pair<std::string, OptionValue>>& defaults = {});
// The canonical text: parse_position(position_text(p)) equals p.
std::string position_text(const Position& position);

}  // namespace relpos
