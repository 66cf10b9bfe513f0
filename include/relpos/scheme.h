// For authors of schemes: a scheme is a struct of options with one function that says its terms.
//
//   struct Toy {
//     int64_t heads = 0, reach = 4;
//     void options(OptionList& o) {
//       o.required("heads", heads, "query heads");
//       o.size("reach", reach, "distances up to it have a number of their own");
//     }
//     void terms(Builder& b) const {
//       const Source table = b.parameter("table", {heads, 2 * reach + 1}, Init::constant(0), "...");
//       b.bias(ClassMap::zero_outside(-reach, reach), table);
//     }
//   };
//   RELPOS_SCHEME(toy, Toy, "Toy", "one line", "paper, section")
//
// Outside of the tree of relpos, register_scheme<Toy>("toy", "Toy", "one line", "paper, section") takes
// the place of the last line.
//
// `terms` runs once, when a position is made. The library binds what it said to the tensors of each
// call, and gives every parameter its gradient back through the view by which a term took it. Functions
// that a Builder is given are kept with the position, and any thread may call them: they hold copies,
// never `this`, and have no state. What they throw reaches the caller.
//
// Sizes: B batch, H and Hk heads of queries and of keys, Lq and Lk lengths, D head size, Dv that of
// values, M rows of a table, at least the classes of its map. What a Builder is told wrongly (another
// number of axes, integers for numbers) is an Error "scheme: term: expected ..., got ..." when the
// position is made; sizes that only a call knows are checked before that call computes anything.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "relpos/distance_formula.h"
#include "relpos/error.h"
#include "relpos/export.h"
#include "relpos/options.h"
#include "relpos/position.h"
#include "relpos/terms.h"

RELPOS_EXPORT_BEGIN
namespace relpos {

struct PartCall;  // a call as the terms of one part meet it

// Sums and doubles of sizes up to this stay exact in int64 and in double.
inline constexpr int64_t kLargestSize = int64_t{1} << 48;
// Of heads and of a head's dims: some schemes compute a number for each when they are made.
inline constexpr int64_t kLargestHeads = int64_t{1} << 20;

// A parameter or an input, and how a term reads it.
class Source {
 public:
  // These throw Error where there are too few axes.
  Source transposed() const;               // the last two axes change places
  Source rolled() const;                   // the first axis becomes the last
  Source operator[](int64_t index) const;  // one entry of the first axis, which goes
  // Read as if it were at least, or at most, this; the gradient passes as it is.
  Source at_least(double least) const;
  Source at_most(double most) const;
  // Sums along the last axis up to and with each element, in double.
  Source cumulative() const;
  Source column() const;  // an axis of size 1 is added at the end
  friend Source operator*(double factor, Source source) {
    source.multiplier_ *= factor;
    return source;
  }
  Source operator-() const { return -1.0 * *this; }

 private:
  friend class Builder;
  friend class SourceReader;
  size_t index_ = std::numeric_limits<size_t>::max();  // among the specs; at first none
  std::vector<int> axes_;  // of the parameter, in the order of the view; -1: none
  std::vector<std::pair<int, int64_t>> chosen_;  // axes that went, with the entry that stayed
  double multiplier_ = 1.0;
  double least_ = -std::numeric_limits<double>::infinity();
  double most_ = std::numeric_limits<double>::infinity();
  bool cumulative_ = false;
};

// A class map whose numbers are inputs of the call.
struct GivenMap {
  enum class Kind { kClamp, kWindow, kRuns };
  Kind kind = Kind::kClamp;
  bool reversed = false;
  // Of a clamp and a window, as ClassMap::clamp and zero_outside make them: the smallest distance,
  // int64 [1]. The table has a row for each distance from there on.
  std::optional<Source> first{};
  // Of runs, as ClassMap::thresholds takes them: int64 [N] and [N + 1].
  std::optional<Source> starts{}, classes{};
};
using AnyMap = std::variant<ClassMap, GivenMap>;

// Numbers of an entry of a table, from features of the entry: two layers with a ReLU between them.
struct Perceptron {
  Source first_weight, first_bias, second_weight;  // [hidden, width], [hidden], [H, hidden]
  std::function<void(int64_t entry, double* features)> features;  // writes `width` numbers
  double sigmoid = 0.0;  // not 0: the result is this times its sigmoid
};

// Numbers of a distance, one a head: layers of linear maps, the activation after each but the last,
// of one feature of the distance.
struct Network {
  enum class Activation { kReLU, kSiLU };
  struct Layer {
    Source weight, bias;  // [out, in], [out]
  };
  DistanceFormula feature;
  std::vector<Source> numbers;  // that the feature depends on, one number each
  std::vector<Layer> layers;
  Activation activation = Activation::kReLU;
  // Throws Error where the last query of a call stands too far for the feature to be one of the
  // distance; empty: none does.
  std::function<void(int64_t last_query, const double* numbers)> check_reach;
};

// A coordinate of the tokens, whose distance a term is read by in place of that of the positions: a
// function of the position, or one axis of inputs of the call.
struct Along {
  using Coordinate = std::function<int64_t(int64_t position)>;
  Coordinate query, key;  // of a query and of a key; empty: given
  // Integers [B, axes, Lq] and [B, axes, Lk]; with one axis, also [B, Lq] and [B, Lk].
  std::optional<Source> queries{}, keys{};
  int axis = 0;
  // From such a number and the token's position to the coordinate; empty: the number.
  using Reading = std::function<int64_t(int64_t number, int64_t position)>;
  Reading of_query{}, of_key{};

  static Along coordinate(const Coordinate& both) { return {both, both}; }
  static Along given(const Source& queries, const Source& keys, int axis) {
    return {{}, {}, queries, keys, axis};
  }
  static Along read(const Source& queries, const Source& keys, const Reading& of_query,
                    const Reading& of_key) {
    return {{}, {}, queries, keys, 0, of_query, of_key};
  }
};

// What the pairs of a rotation turn by where it is not the position times their frequencies.
struct TurnBy {
  using CoordinateOf = std::function<int64_t(int axis, int64_t position)>;

  // Coordinate axis[p] of a token, which follows from the position, times the frequency of pair p.
  struct Coordinates {
    std::vector<int> axis;
    CoordinateOf coordinate;
  };
  // Coordinates that are inputs of the call: integers [B, axes, Lq] and [B, axes, Lk].
  struct GivenCoordinates {
    std::vector<int> axis;
    Source queries, keys;
  };
  // Frequencies [axes, Hk or 1, dims / 2] times such coordinates: Rotation::ByHead.
  struct HeadFrequencies {
    Source frequency;
    CoordinateOf coordinate;
  };
  // Cosines and sines, inputs [B, Lq, dims / 2] and [B, Lk, dims / 2] for all heads, or with an axis
  // of Hk or 1 behind the batch.
  struct Tables {
    Source q_cos, q_sin, k_cos, k_sin;
  };
  // The position times frequencies that depend on a length; where it is not given, on that of the
  // call: one more than its last position.
  struct Length {
    std::function<std::vector<double>(int64_t length)> frequency;
    std::optional<int64_t> length;
  };
  using Any =
      std::variant<std::monostate, Coordinates, GivenCoordinates, HeadFrequencies, Tables, Length>;
};

// Of a row table, and of a column table and rows by classes of pairs: terms.h.
struct RowOptions {
  std::optional<Source> factor{}, added{};
  std::optional<double> scale{};
  std::optional<Along> along{};
};
struct ColumnOptions {
  std::optional<Source> factor{};
  std::optional<double> scale{};
};

class Builder {
 public:
  explicit Builder(Recipe& recipe) : recipe_(recipe) {}

  const char* scheme() const;  // for errors
  // Throws Error "scheme: parts..." unless it holds.
  template <typename... Parts>
  void require(bool holds, const Parts&... parts) const {
    check_value(holds, scheme(), ": ", parts...);
  }
  // Throws unless value heads of the call have this size, which `option` said.
  void value_dim(int64_t size, const char* option);
  // Throws unless the call has so many key heads.
  void kv_heads(int64_t heads, const char* option);

  // A trained parameter. Names are unique in a scheme; parameters come before inputs.
  Source parameter(const std::string& name, const std::vector<int64_t>& shape, Init init,
                   const std::string& doc, std::vector<Origin> origins = {});
  // A parameter that is not trained: its numbers follow from the options.
  Source fixed(const std::string& name, const std::vector<int64_t>& shape, Init init,
               const std::string& doc);
  // A tensor of each call; the shape may hold sizes that the call decides. Where nobody gives one, for
  // pictures and self-tests, `example` is drawn, of the shape `sizes` if that is not `shape`.
  Source input(const std::string& name, const std::vector<int64_t>& shape, Init example,
               const std::string& doc, std::vector<int64_t> sizes = {});
  // An input of int64 or uint8. Examples of it are drawn from 0 to most.
  Source integers(const std::string& name, const std::vector<int64_t>& shape, int64_t most,
                  const std::string& doc, DType dtype = DType::kInt64);
  // An input of int64 whose example has these values.
  Source integers(const std::string& name, const std::vector<int64_t>& shape,
                  const std::vector<double>& example, const std::string& doc);

  // b[h, m(delta)] of a table [H, M], or of [1, M] for all heads.
  void bias(const ClassMap& map, const Source& table) { table_bias(map, table, {}); }
  void bias(const ClassMap& map, const Source& table, const Along& along) {
    table_bias(map, table, along);
  }
  void bias(const GivenMap& map, const Source& table, const std::optional<Along>& along = {}) {
    table_bias(map, table, along);
  }
  // b[h, delta] = formula(delta, numbers of head h...), each of `numbers` parameters with one number a
  // head. The formula takes (double, auto...) and works on double and Dual alike (dual.h). A call whose
  // distances are too far apart for a table of them is an Error.
  template <typename F, std::same_as<Source>... Sources>
  void bias(F formula, const Sources&... numbers) {
    formula_bias(distance_formula<sizeof...(Sources)>(std::move(formula)), {numbers...});
  }
  // b[h, delta] = formula(shared(delta), numbers of head h...).
  template <typename F, std::same_as<Source>... Sources>
  void bias_of(std::function<double(int64_t delta)> shared, F formula, const Sources&... numbers) {
    DistanceFormula made = distance_formula<sizeof...(Sources)>(std::move(formula));
    made.shared = std::move(shared);
    formula_bias(std::move(made), {numbers...});
  }
  // The same for a sum of so many formulas: each of `numbers` is [H, count], formula n reads column n.
  template <typename F, std::same_as<Source>... Sources>
  void bias_sum(int64_t count, F formula, const Sources&... numbers) {
    std::vector<Source> all;
    for (int64_t n = 0; n < count; ++n) (all.push_back(numbers.transposed()[n]), ...);
    formula_bias(
        sum_of(distance_formula<sizeof...(Sources)>(std::move(formula)), count, sizeof...(Sources)),
        all);
  }
  // b[h, m(delta)] of a table [H, M] that a perceptron computes.
  void bias(const ClassMap& map, const Perceptron& perceptron);
  // b[h, delta] of a network.
  void bias(int64_t heads, Network network);
  // past[h] min(delta, 0) + future[h] max(delta, 0), [H] each; a side that is not given adds nothing.
  void slopes(const std::optional<Source>& past, const std::optional<Source>& future);
  // scale <a_i, r[m(delta)]> of a table [M, r] or [H, M, r]: terms.h. r is D, or that of a factor
  // [B, H, Lq, r]; `added` is [H, r].
  void rows(const AnyMap& map, const Source& table, const RowOptions& options = {});
  // scale <c_j, r'[m(delta)]>: terms.h. r is D, or that of a factor [B, Hk, Lk, r].
  void columns(const AnyMap& map, const Source& table, const ColumnOptions& options = {});
  // scale <q_i + added, weight features(delta)> for all distances of the call: weight [H D, width] or
  // [H, D, width], and `features` writes `width` numbers.
  using Features = std::function<void(int64_t delta, double* features)>;
  void projected_rows(int64_t heads, const Source& weight, const Features& features,
                      const std::optional<Source>& added = {});
  // Features [count, width] of consecutive distances, which cost less than one by one.
  using FeatureRows = std::function<void(int64_t first, int64_t count, double* features)>;
  void projected_rows(int64_t heads, const Source& weight, const FeatureRows& features,
                      const std::optional<Source>& added = {});
  // Features that depend on a length, too; where it is not given, on that of the call: one more than
  // its last position.
  using FeaturesOf = std::function<Features(int64_t length)>;
  void projected_rows(int64_t heads, const Source& weight, const FeaturesOf& features,
                      const std::optional<int64_t>& length,
                      const std::optional<Source>& added = {});
  // scale <R added[h], R k_j> joins the scores: [H, D].
  void query_added(const Source& added);
  // t[m(delta)] joins v_j: [M, Dv] or [H, M, Dv].
  void values(const AnyMap& map, const Source& table);
  // values [H, Lk] or [B, H, Lk]; `up_to_query` as in KeyBias of terms.h.
  void key_bias(const Source& values, bool up_to_query = false);
  // By classes of pairs, bytes; those of class `hidden` are not seen: terms.h.
  void pair_bias(const Source& table, const Source& classes, int hidden = -1);
  void pair_rows(const Source& table, const Source& classes, const ColumnOptions& options = {},
                 int hidden = -1);
  // scores [H] or [B, H, Lq], without values, that join the softmax of each row.
  void sink(const Source& scores);
  // R of the scores. `rotation` turns by positions, whose frequencies `by` may replace or multiply by
  // something else. Error where its dims are not within D, or other than two a frequency.
  void rotation(const Rotation& rotation, const TurnBy::Any& by = {});
  // From the number of a token, its offset included, to its position, where a call gives none.
  void place(std::function<int64_t(int64_t token)> place);
  // The same where a key of a number stands elsewhere than a query of that number.
  void place(std::function<int64_t(int64_t token)> query,
             std::function<int64_t(int64_t token)> key);
  // The terms refuse positions that are far from 0.
  void ends();

 private:
  static DistanceFormula sum_of(DistanceFormula one, int64_t count, size_t numbers);
  void table_bias(const AnyMap& map, const Source& table, const std::optional<Along>& along);
  void formula_bias(DistanceFormula formula, const std::vector<Source>& numbers);
  void project_rows(int64_t heads, const Source& weight,
                    const std::function<FeatureRows(int64_t length)>& features,
                    const std::optional<Source>& added);
  int64_t width_of(const Source& weight) const;  // features that the weights multiply
  using Seen = std::pair<std::shared_ptr<const Coordinates>, int>;  // with the axis
  std::function<Seen(const PartCall& call)> coordinates_of(const std::optional<Along>& along) const;
  Source declare(ParameterSpec spec);
  int64_t size_of(const Source& source) const;  // elements of what a term reads
  // Throw Error "scheme: term: expected ..., got ..." unless a source has one of these numbers of axes
  // (none: any) and the kind of numbers.
  void check_source(const Source& source, std::initializer_list<size_t> axes, const char* term,
                    const char* expected) const;
  void check_numbers(const Source& source, std::initializer_list<size_t> axes, const char* term,
                     const char* expected) const;
  void check_integers(const std::optional<Source>& source, std::initializer_list<size_t> axes,
                      const char* term, const char* expected) const;
  void check_map(const AnyMap& map, const char* term) const;
  void check_along(const std::optional<Along>& along) const;
  void check_perceptron(const Perceptron& perceptron) const;
  void check_network(const Network& network) const;
  void check_turn(const TurnBy::Any& by) const;

  Recipe& recipe_;
};

// A shape [rows, columns], or [heads, rows, columns] where heads are given.
std::vector<int64_t> table_shape(const std::optional<int64_t>& heads, int64_t rows,
                                 int64_t columns);

std::shared_ptr<const Recipe> make_recipe(const Scheme& scheme, const OptionMap& options,
                                          const std::function<void(Builder&)>& terms);

template <typename T>
std::vector<OptionSpec> list_options() {
  OptionList list;
  T defaults;
  defaults.options(list);
  return std::move(list.specs_);
}

template <typename T>
T read_options(const Scheme& scheme, const OptionMap& values) {
  OptionList list;
  list.scheme_ = scheme.name.c_str();
  list.values_ = &values;
  T made;
  made.options(list);
  return made;
}

template <typename T>
Scheme make_scheme(std::string name, std::string class_name, std::string summary,
                   std::string source, std::string note = "") {
  return {std::move(name),
          std::move(class_name),
          std::move(summary),
          std::move(source),
          std::move(note),
          list_options<T>(),
          [](const Scheme& scheme, const OptionMap& values) {
            const T made = read_options<T>(scheme, values);
            return make_recipe(scheme, values, [&](Builder& b) { made.terms(b); });
          }};
}

// Adds a scheme to those that find_scheme, parse_position and make_part know, until the program ends;
// schemes() stays as it is, registered_schemes() lists it. Any thread may register. Throws Error where
// the name does not match [a-z][a-z0-9_]*, or where there is a scheme of that name already.
const Scheme& register_scheme(Scheme scheme);
// The same of make_scheme: register_scheme<Toy>("toy", "Toy", "one line", "paper, section").
template <typename T>
const Scheme& register_scheme(std::string name, std::string class_name, std::string summary,
                              std::string source, std::string note = "") {
  return register_scheme(make_scheme<T>(std::move(name), std::move(class_name), std::move(summary),
                                        std::move(source), std::move(note)));
}

// For schemes in the tree of relpos, which are found by the names of their files: NAME is the file's
// name, TYPE the struct above it; the rest is CLASS_NAME, SUMMARY, SOURCE and, where a call needs to
// know more than the summary says, NOTE.
#define RELPOS_SCHEME(NAME, TYPE, ...)                            \
  namespace schemes_impl {                                        \
  Scheme NAME() { return make_scheme<TYPE>(#NAME, __VA_ARGS__); } \
  }

}  // namespace relpos
RELPOS_EXPORT_END
