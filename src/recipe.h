// What a scheme said when its position was made, and how a call is bound to it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "relpos/position.h"
#include "relpos/terms.h"

namespace relpos {

// The sizes of a call; 0 where they are unknown (dense forms know no heads).
struct CallSizes {
  int64_t batch = 0, heads = 0, queries = 0, keys = 0, head_dim = 0, value_dim = 0;
  int64_t first_distance = 0, last_distance = 0;  // of visible pairs; first > last: there is none
  bool in_double = true;                          // else computed tables may be float32
  int threads = 1;
};

// A call as the terms of one part meet it.
struct PartCall {
  const CallSizes& sizes;
  const std::vector<TensorView>& parameters;
  const std::vector<bool>& wants;  // gradients; same order
};

// Gradients of parameters, each contiguous in the parameter's shape; empty where not wanted.
using ParameterSums = std::vector<std::vector<double>>;

// One term of a recipe.
class RecipeTerm {
 public:
  RecipeTerm() = default;
  RecipeTerm(const RecipeTerm&) = delete;
  RecipeTerm& operator=(const RecipeTerm&) = delete;
  virtual ~RecipeTerm() = default;
  virtual void bind(const PartCall& call, Terms& terms) const = 0;
  // `gradients` is of the part's own terms.
  virtual void pull_back(const PartCall&, const TermGradients&, ParameterSums&) const {}
};

class Recipe {
 public:
  // A size of the call that an option said.
  struct Fit {
    int64_t CallSizes::* size;
    std::string option;
    int64_t expected;
  };

  const Scheme* scheme = nullptr;
  OptionMap options;
  std::vector<ParameterSpec> specs;
  std::vector<std::unique_ptr<RecipeTerm>> terms;
  std::vector<Fit> fits;
  bool reads_distances = false;           // a term needs the call's distances
  std::function<int64_t(int64_t)> place;  // empty: a token stands at its number

  // Throws Error where the call's sizes are not those of the options.
  Terms bind(const PartCall& call) const;
  void pull_back(const PartCall& call, const TermGradients& gradients, ParameterSums& sums) const;
};

}  // namespace relpos
