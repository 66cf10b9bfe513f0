// Positions for their users: the registry of schemes, and schemes with options and parameters.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "relpos/export.h"
#include "relpos/options.h"
#include "relpos/tensor.h"

RELPOS_EXPORT_BEGIN
namespace relpos {

class Recipe;  // what a scheme's options decided, once

struct Scheme {
  std::string name;        // the file's name, as on the command line: "t5"
  std::string class_name;  // in Python: "T5Bias"
  std::string summary;     // one line
  std::string source;      // paper and section
  std::string note;        // whole sentences that follow the summary where it is not enough
  std::vector<OptionSpec> options;
  // Checks the options against each other (throws Error) and decides everything they decide.
  std::shared_ptr<const Recipe> (*make)(const Scheme&, const OptionMap&) = nullptr;

  std::string headline() const { return note.empty() ? summary : summary + ". " + note; }
};

// The library's own, by name. This list and the next are the same in every call.
const std::vector<Scheme>& schemes();
// One term of terms.h each, whose numbers and class map are all given with the call: "distance_bias".
const std::vector<Scheme>& term_schemes();
// Those that the program added by register_scheme (scheme.h) so far, in that order.
std::vector<const Scheme*> registered_schemes();
// A scheme of one of these lists, which stays where it is until the program ends; nullptr when none
// has that name. Any thread may ask while another registers.
const Scheme* find_scheme(std::string_view name);

struct Init {
  enum class Kind { kValues, kUniform, kNormal, kTurned };
  Kind kind = Kind::kValues;
  double low = 0.0, high = 0.0;  // kUniform
  double deviation = 0.0;        // kNormal, about 0
  // kValues: one number for all elements, or one for each. kTurned: those of one head.
  std::vector<double> values{};

  static Init constant(double value) { return {.values = {value}}; }
  static Init each(std::vector<double> values) { return {.values = std::move(values)}; }
  static Init uniform(double low, double high) { return {Kind::kUniform, low, high}; }
  static Init normal(double deviation) { return {Kind::kNormal, 0, 0, deviation}; }
  // [2, H, n] from the plane vectors [2, n] of one head: each head's are turned by a random angle.
  static Init turned(std::vector<double> vectors) {
    return {.kind = Kind::kTurned, .values = std::move(vectors)};
  }
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

// Sizes of an input that each call decides. kAny is what the tensor has, which the term that reads it
// checks.
inline constexpr int64_t kBatch = -1, kHeads = -2, kQueries = -3, kKeys = -4, kAny = -5,
                         kHeadDim = -6;

struct ParameterSpec {
  std::string name;            // dotted, as in the scheme's origin
  std::vector<int64_t> shape;  // of an input: sizes that a call decides among them
  Init init;
  bool trainable = true;  // false: a non-persistent buffer in Python
  std::string doc;
  std::vector<Origin> origins{};  // where rows stand in the same order under these options
  bool input = false;             // given with each call; inputs follow the parameters
  bool cumulative = false;  // read as its sums along the last axis: each piece needs all before
  DType integer = DType::kInt64;   // the dtype of an input of integers
  std::vector<int64_t> example{};  // the shape of an input that nobody gives; empty: `shape`

  // An input of integers, which no gradient reaches.
  bool integers() const noexcept { return input && !trainable; }
};

// The sizes of a call that inputs may have; of `fits` and `text`, 0 where one is unknown.
struct InputSizes {
  int64_t batch = 1, heads = 1, queries = 1, keys = 1, head_dim = 1;

  // A size of a spec: itself, or the one that it stands for. kAny stays.
  int64_t size(int64_t said) const noexcept {
    return said == kBatch     ? batch
           : said == kHeads   ? heads
           : said == kQueries ? queries
           : said == kKeys    ? keys
           : said == kHeadDim ? head_dim
                              : said;
  }
  std::vector<int64_t> shape(const ParameterSpec& spec) const;
  // The shape of a tensor that stands for it; 3 in the place of kAny, where the spec has no example.
  std::vector<int64_t> example(const ParameterSpec& spec) const;
  // Whether a tensor of these dims can be the parameter or input: an unknown size and kAny are any;
  // integers may have one row for all batch rows.
  bool fits(const ParameterSpec& spec, const std::vector<int64_t>& dims) const;
  // What fits, for errors: "[2, any, 64]".
  std::string text(const ParameterSpec& spec) const;
};

// "queries" of kQueries; null of a number.
const char* size_name(int64_t said) noexcept;
// "[batch, any, 4]".
std::string sizes_text(const std::vector<int64_t>& shape);

// A scheme with its options and its parameters as views; the caller owns the parameters.
struct Part {
  std::shared_ptr<const Recipe> recipe;
  std::vector<TensorView> parameters;  // in the order of specs(), inputs at the end

  // These throw Error where the part was not made by make_part. They are valid as long as `recipe` is.
  const Scheme& scheme() const;
  const OptionMap& options() const;
  const std::vector<ParameterSpec>& specs() const;
};

// Options are those of the scheme, any subset with the required ones; throws Error as make_options, and
// where the scheme refuses them. A scheme of the caller's own (make_scheme) may be gone before the part.
Part make_part(const Scheme& scheme, const OptionValues& options);

// A scheme or a sum of schemes. Empty: attention without positions.
struct Position {
  std::vector<Part> parts;
};

enum class Side { kQuery, kKey };

// Puts the positions at which the position places queries or keys in the place of their numbers.
// False: it places none, a token stands at its number.
bool place_tokens(const Position& position, Side side, std::vector<int64_t>& tokens);

// "rope(layout=half)+t5(buckets=32)". `defaults` serve required options that the text leaves out
// (heads, head_dim). Parameters are left empty. Throws Error with the nearest scheme name.
Position parse_position(std::string_view text, const OptionValues& defaults = {});
// The canonical text: parse_position(position_text(p)) equals p.
std::string position_text(const Position& position);

}  // namespace relpos
RELPOS_EXPORT_END
