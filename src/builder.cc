// The terms that a scheme can say, each with its gradient beside it.
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "base/parallel.h"
#include "perceptron.h"
#include "projection.h"
#include "recipe.h"
#include "relpos/scheme.h"
#include "source.h"

namespace relpos {
namespace {

using Made = std::optional<SourceReader>;

Made reader(const std::optional<Source>& source) { return source ? Made(*source) : std::nullopt; }

TermData read(const Made& source, const PartCall& call) {
  return source ? source->read(call) : TermData{};
}

void add(const Made& source, const PartCall& call, const std::vector<double>& gradient,
         ParameterSums& sums) {
  if (source && source->wanted(call)) source->add_gradient(call, gradient, sums);
}

// Of a list of a part's terms, where this one is: recipes bind their terms in order.
template <typename T>
size_t count(const Recipe& recipe) {
  return static_cast<size_t>(std::count_if(
      recipe.terms.begin(), recipe.terms.end(),
      [](const auto& term) { return dynamic_cast<const T*>(term.get()) != nullptr; }));
}

class BiasKind : public RecipeTerm {};
class RowKind : public RecipeTerm {};

class TableBias : public BiasKind {
 public:
  TableBias(size_t at, const ClassMap& map, const Source& table)
      : at_(at), map_(map), table_(table) {}
  void bind(const PartCall& call, Terms& terms) const override {
    terms.biases.push_back({map_, table_.read(call), {}});
  }
  void pull_back(const PartCall& call, const TermGradients& gradients,
                 ParameterSums& sums) const override {
    add(table_, call, gradients.biases[at_].table, sums);
  }

 private:
  size_t at_;
  ClassMap map_;
  SourceReader table_;
};

// What a computed table of this call holds: one entry for each head and distance.
int64_t span_of(const PartCall& call, int64_t entries, const std::string& scheme) {
  constexpr int64_t kMost = int64_t{1} << 27;
  const CallSizes& sizes = call.sizes;
  if (sizes.first_distance > sizes.last_distance) return 1;
  const int64_t reach = sizes.last_distance - sizes.first_distance;
  check_value(reach < kMost / std::max<int64_t>(entries, 1), scheme,
              ": needs a number for each distance of a call, and those of this one reach from ",
              sizes.first_distance, " to ", sizes.last_distance,
              "; give positions that lie nearer to each other");
  return reach + 1;
}

class FormulaBias : public BiasKind {
 public:
  FormulaBias(size_t at, std::string scheme, DistanceFormula formula, int64_t heads,
              const std::vector<Source>& numbers)
      : at_(at), scheme_(std::move(scheme)), formula_(std::move(formula)), heads_(heads) {
    for (const Source& source : numbers) numbers_.emplace_back(source);
  }

  void bind(const PartCall& call, Terms& terms) const override {
    const int64_t first = call.sizes.first_distance, span = span_of(call, heads_, scheme_);
    const std::vector<double> numbers = by_head(call);
    std::vector<double> table(static_cast<size_t>(heads_ * span));
    constexpr int64_t kPiece = 1024;
    const int64_t pieces = (heads_ * span + kPiece - 1) / kPiece;
    in_parallel(call, pieces, [&](int64_t piece) {
      const int64_t end = std::min((piece + 1) * kPiece, heads_ * span);
      for (int64_t n = piece * kPiece; n < end; ++n) {
        table[static_cast<size_t>(n)] =
            formula_.value(static_cast<double>(first + n % span), of_head(numbers, n / span));
      }
    });
    DistanceBias bias;
    bias.map = ClassMap::clamp(first, first + span - 1);
    bias.table = TermData::computed(std::move(table), {heads_, span}, wanted(call));
    terms.biases.push_back(std::move(bias));
  }

  void pull_back(const PartCall& call, const TermGradients& gradients,
                 ParameterSums& sums) const override {
    if (!wanted(call)) return;
    const int64_t first = call.sizes.first_distance, span = span_of(call, heads_, scheme_);
    const std::vector<double> numbers = by_head(call);
    const std::vector<double>& table = gradients.biases[at_].table;
    std::vector<double> found(numbers.size(), 0.0);
    in_parallel(call, heads_, [&](int64_t h) {
      double* own = found.data() + static_cast<size_t>(h) * numbers_.size();
      for (int64_t m = 0; m < span; ++m) {
        const double upstream = table[static_cast<size_t>(h * span + m)];
        if (upstream == 0.0) continue;
        formula_.add_gradients(static_cast<double>(first + m), of_head(numbers, h), upstream, own);
      }
    });
    for (size_t n = 0; n < numbers_.size(); ++n) {
      std::vector<double> gradient;
      for (size_t h = 0; h < static_cast<size_t>(heads_); ++h) {
        gradient.push_back(found[h * numbers_.size() + n]);
      }
      numbers_[n].add_gradient_of_numbers(call, std::move(gradient), sums);
    }
  }

 private:
  bool wanted(const PartCall& call) const {
    return std::any_of(numbers_.begin(), numbers_.end(),
                       [&](const SourceReader& number) { return number.wanted(call); });
  }
  // [heads, numbers of a head].
  std::vector<double> by_head(const PartCall& call) const {
    std::vector<double> all(static_cast<size_t>(heads_) * numbers_.size());
    for (size_t n = 0; n < numbers_.size(); ++n) {
      const std::vector<double> one = numbers_[n].numbers(call);
      for (size_t h = 0; h < one.size(); ++h) all[h * numbers_.size() + n] = one[h];
    }
    return all;
  }
  const double* of_head(const std::vector<double>& numbers, int64_t h) const {
    return numbers.data() + static_cast<size_t>(h) * numbers_.size();
  }

  size_t at_;
  std::string scheme_;
  DistanceFormula formula_;
  int64_t heads_;
  std::vector<SourceReader> numbers_;
};

class PerceptronBias : public BiasKind {
 public:
  PerceptronBias(size_t at, const ClassMap& map, PerceptronTable table)
      : at_(at), map_(map), table_(std::move(table)) {}
  void bind(const PartCall& call, Terms& terms) const override {
    terms.biases.push_back({map_, table_.table(call), {}});
  }
  void pull_back(const PartCall& call, const TermGradients& gradients,
                 ParameterSums& sums) const override {
    table_.pull_back(call, gradients.biases[at_].table, sums);
  }

 private:
  size_t at_;
  ClassMap map_;
  PerceptronTable table_;
};

class Slopes : public BiasKind {
 public:
  Slopes(size_t at, std::string scheme, int64_t heads, Made past, Made future)
      : at_(at),
        scheme_(std::move(scheme)),
        heads_(heads),
        sides_{std::move(past), std::move(future)} {}

  void bind(const PartCall& call, Terms& terms) const override {
    std::vector<double> slopes;
    bool wanted = false;
    for (const Made& side : sides_) {
      const std::vector<double> own =
          side ? side->numbers(call) : std::vector<double>(static_cast<size_t>(heads_), 0.0);
      for (size_t h = 0; h < own.size(); ++h) {
        check_value(std::isfinite(own[h]), scheme_, ": slopes: expected finite numbers, got ",
                    own[h], " for head ", h);
      }
      slopes.insert(slopes.end(), own.begin(), own.end());
      wanted = wanted || (side && side->wanted(call));
    }
    DistanceBias bias;
    bias.slopes = TermData::computed(std::move(slopes), {2, heads_}, wanted);
    terms.biases.push_back(std::move(bias));
  }

  void pull_back(const PartCall& call, const TermGradients& gradients,
                 ParameterSums& sums) const override {
    const std::vector<double>& both = gradients.biases[at_].slopes;
    for (int64_t side = 0; side < 2; ++side) {
      const Made& slopes = sides_[static_cast<size_t>(side)];
      if (!slopes || !slopes->wanted(call)) continue;
      slopes->add_gradient_of_numbers(
          call, {both.begin() + side * heads_, both.begin() + (side + 1) * heads_}, sums);
    }
  }

 private:
  size_t at_;
  std::string scheme_;
  int64_t heads_;
  Made sides_[2];  // past, future
};

class Rows : public RowKind {
 public:
  Rows(size_t at, const ClassMap& map, const Source& table, const RowOptions& options)
      : at_(at),
        map_(map),
        table_(table),
        factor_(reader(options.factor)),
        added_(reader(options.added)),
        scale_(options.scale) {}
  void bind(const PartCall& call, Terms& terms) const override {
    terms.row_tables.push_back(
        {map_, table_.read(call), read(factor_, call), read(added_, call), scale_});
  }
  void pull_back(const PartCall& call, const TermGradients& gradients,
                 ParameterSums& sums) const override {
    const TermGradients::Rows& own = gradients.row_tables[at_];
    add(table_, call, own.table, sums);
    add(factor_, call, own.factor, sums);
    add(added_, call, own.added, sums);
  }

 private:
  size_t at_;
  ClassMap map_;
  SourceReader table_;
  Made factor_, added_;
  std::optional<double> scale_;
};

class ProjectedRows : public RowKind {
 public:
  ProjectedRows(size_t at, std::string scheme, int64_t heads, const Source& weight,
                const std::vector<int64_t>& shape, Builder::Features features, Made added)
      : at_(at),
        scheme_(std::move(scheme)),
        heads_(heads),
        weight_(weight),
        rows_(shape.at(0)),
        width_(shape.at(1)),
        features_(std::move(features)),
        added_(std::move(added)) {}

  void bind(const PartCall& call, Terms& terms) const override {
    const Projection projection = of(call);
    RowTable rows;
    rows.map = ClassMap::clamp(projection.first, projection.first + projection.span - 1);
    rows.table = projection.table(weight_.numbers(call));
    rows.table.wants_gradient = weight_.wanted(call);
    rows.added = read(added_, call);
    terms.row_tables.push_back(std::move(rows));
  }
  void pull_back(const PartCall& call, const TermGradients& gradients,
                 ParameterSums& sums) const override {
    const TermGradients::Rows& own = gradients.row_tables[at_];
    if (weight_.wanted(call)) {
      weight_.add_gradient_of_numbers(call, of(call).weight_gradient(own.table), sums);
    }
    add(added_, call, own.added, sums);
  }

 private:
  Projection of(const PartCall& call) const {
    const CallSizes& sizes = call.sizes;
    return {heads_,
            rows_ / heads_,
            width_,
            sizes.first_distance,
            span_of(call, rows_ + width_, scheme_),
            sizes.in_double,
            sizes.threads,
            features_};
  }

  size_t at_;
  std::string scheme_;
  int64_t heads_;
  SourceReader weight_;
  int64_t rows_, width_;
  Builder::Features features_;
  Made added_;
};

class Columns : public RecipeTerm {
 public:
  Columns(size_t at, const ClassMap& map, const Source& table, const RowOptions& options)
      : at_(at), map_(map), table_(table), factor_(reader(options.factor)), scale_(options.scale) {}
  void bind(const PartCall& call, Terms& terms) const override {
    terms.column_tables.push_back({map_, table_.read(call), read(factor_, call), scale_});
  }
  void pull_back(const PartCall& call, const TermGradients& gradients,
                 ParameterSums& sums) const override {
    const TermGradients::Rows& own = gradients.column_tables[at_];
    add(table_, call, own.table, sums);
    add(factor_, call, own.factor, sums);
  }

 private:
  size_t at_;
  ClassMap map_;
  SourceReader table_;
  Made factor_;
  std::optional<double> scale_;
};

class QueryAdded : public RecipeTerm {
 public:
  QueryAdded(size_t at, const Source& added) : at_(at), added_(added) {}
  void bind(const PartCall& call, Terms& terms) const override {
    terms.query_added.push_back(added_.read(call));
  }
  void pull_back(const PartCall& call, const TermGradients& gradients,
                 ParameterSums& sums) const override {
    add(added_, call, gradients.query_added[at_], sums);
  }

 private:
  size_t at_;
  SourceReader added_;
};

class Values : public RecipeTerm {
 public:
  Values(size_t at, const ClassMap& map, const Source& table) : at_(at), map_(map), table_(table) {}
  void bind(const PartCall& call, Terms& terms) const override {
    terms.value_tables.push_back({map_, table_.read(call)});
  }
  void pull_back(const PartCall& call, const TermGradients& gradients,
                 ParameterSums& sums) const override {
    add(table_, call, gradients.value_tables[at_].table, sums);
  }

 private:
  size_t at_;
  ClassMap map_;
  SourceReader table_;
};

class KeyBiases : public RecipeTerm {
 public:
  KeyBiases(size_t at, const Source& values) : at_(at), values_(values) {}
  void bind(const PartCall& call, Terms& terms) const override {
    terms.key_biases.push_back({values_.read(call)});
  }
  void pull_back(const PartCall& call, const TermGradients& gradients,
                 ParameterSums& sums) const override {
    add(values_, call, gradients.key_biases[at_].table, sums);
  }

 private:
  size_t at_;
  SourceReader values_;
};

class Turns : public RecipeTerm {
 public:
  explicit Turns(Rotation rotation) : rotation_(std::move(rotation)) {}
  void bind(const PartCall&, Terms& terms) const override { terms.rotations.push_back(rotation_); }

 private:
  Rotation rotation_;
};

}  // namespace

Source Builder::declare(ParameterSpec spec) {
  for (const int64_t size : spec.shape) {
    require(size >= 0 || spec.input, spec.name, ": only inputs have sizes that a call decides");
  }
  if (!spec.input) checked_numel(spec.shape, scheme());
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
    size *= recipe_.specs[source.index_].shape[static_cast<size_t>(axis)];
  }
  return size;
}

const char* Builder::scheme() const { return recipe_.scheme->name.c_str(); }

void Builder::value_dim(int64_t size, const char* option) {
  recipe_.fits.push_back({&CallSizes::value_dim, option, size});
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
                      const std::string& doc) {
  return declare({name, shape, std::move(example), true, doc, {}, true});
}

void Builder::bias(const ClassMap& map, const Source& table) {
  recipe_.terms.push_back(std::make_unique<TableBias>(count<BiasKind>(recipe_), map, table));
}

void Builder::bias(const ClassMap& map, const Perceptron& perceptron) {
  const std::vector<int64_t>& first = recipe_.specs[perceptron.first_weight.index_].shape;
  const std::vector<int64_t>& second = recipe_.specs[perceptron.second_weight.index_].shape;
  recipe_.terms.push_back(std::make_unique<PerceptronBias>(
      count<BiasKind>(recipe_), map,
      PerceptronTable(perceptron, first.at(1), first.at(0), second.at(0), map.classes())));
}

void Builder::formula_bias(DistanceFormula formula, std::vector<Source> numbers) {
  const int64_t heads = size_of(numbers.at(0));
  for (const Source& source : numbers) {
    require(size_of(source) == heads, "a formula's parameters have one number for each head");
  }
  recipe_.terms.push_back(std::make_unique<FormulaBias>(count<BiasKind>(recipe_), scheme(),
                                                        std::move(formula), heads, numbers));
  recipe_.reads_distances = true;
}

void Builder::slopes(const std::optional<Source>& past, const std::optional<Source>& future) {
  require(past || future, "slopes: expected one side or both");
  const Source& any = past ? *past : *future;
  recipe_.terms.push_back(std::make_unique<Slopes>(count<BiasKind>(recipe_), scheme(),
                                                   recipe_.specs[any.index_].shape.at(0),
                                                   reader(past), reader(future)));
}

void Builder::rows(const ClassMap& map, const Source& table, const RowOptions& options) {
  recipe_.terms.push_back(std::make_unique<Rows>(count<RowKind>(recipe_), map, table, options));
}

void Builder::projected_rows(int64_t heads, const Source& weight, Features features,
                             const std::optional<Source>& added) {
  recipe_.terms.push_back(std::make_unique<ProjectedRows>(
      count<RowKind>(recipe_), scheme(), heads, weight, recipe_.specs[weight.index_].shape,
      std::move(features), reader(added)));
  recipe_.reads_distances = true;
}

void Builder::columns(const ClassMap& map, const Source& table, const RowOptions& options) {
  recipe_.terms.push_back(std::make_unique<Columns>(count<Columns>(recipe_), map, table, options));
}

void Builder::query_added(const Source& added) {
  recipe_.terms.push_back(std::make_unique<QueryAdded>(count<QueryAdded>(recipe_), added));
}

void Builder::values(const ClassMap& map, const Source& table) {
  recipe_.terms.push_back(std::make_unique<Values>(count<Values>(recipe_), map, table));
}

void Builder::key_bias(const Source& values) {
  recipe_.terms.push_back(std::make_unique<KeyBiases>(count<KeyBiases>(recipe_), values));
}

void Builder::rotation(Rotation rotation) {
  recipe_.terms.push_back(std::make_unique<Turns>(std::move(rotation)));
}

void Builder::place(std::function<int64_t(int64_t)> place) { recipe_.place = std::move(place); }

}  // namespace relpos
