// What a scheme said when its position was made, and how a call is bound to it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "relpos/position.h"
#include "relpos/scheme.h"
#include "relpos/terms.h"
#include "values/term_kinds.h"

namespace relpos {

struct TokenPositions;

// The sizes of a call; 0 where they are unknown (dense forms know no heads).
struct CallSizes {
  int64_t batch = 0, heads = 0, queries = 0, keys = 0, head_dim = 0, value_dim = 0;
  int64_t first_distance = 0, last_distance = 0;  // of visible pairs; first > last: there is none
  int64_t length = 0;                             // one more than the last position; 0: none
  int64_t last_query = 0;                         // its position
  bool in_double = true;                          // else computed tables may be float32
  int threads = 1;
  int64_t own_heads = 0;  // of `heads`, those that the call has, and its inputs
  int64_t kv_heads = 0;   // 0, too, where the call has some of the heads
  int64_t own_kv_heads = 0;
  bool shapes_only = false;  // no number of a table is read, so that those may be anything
};

// A call as the terms of one part meet it.
struct PartCall {
  const CallSizes& sizes;
  const std::vector<TensorView>& parameters;
  const std::vector<bool>& wants;             // gradients; same order
  const TokenPositions* positions = nullptr;  // null: of no token
};

// Gradients of parameters, each contiguous in the parameter's shape; empty where not wanted.
using ParameterSums = std::vector<std::vector<double>>;

// One term of a recipe, and beside it the way of its gradients. `gradients` is of the part's own terms.
struct RecipeTerm {
  std::function<void(const PartCall& call, Terms& terms)> bind;
  std::function<void(const PartCall& call, const TermGradients& gradients, ParameterSums& sums)>
      pull_back;
};

class Recipe {
 public:
  // A size of the call that an option said.
  struct Fit {
    int64_t CallSizes::* size;
    std::string option;
    int64_t expected;
  };

  std::shared_ptr<const Scheme> scheme;  // never null
  OptionMap options;
  std::vector<ParameterSpec> specs;
  std::vector<RecipeTerm> terms;
  TermCounts counts;  // of `terms`
  // What each bias with slopes reads for the past and for the future, and each key bias.
  using Slopes = std::pair<std::optional<Source>, std::optional<Source>>;
  std::vector<Slopes> slopes;
  std::vector<Source> key_biases;
  bool maps_are_given = false;  // the class map of a term is an input of the call
  std::vector<Fit> fits;
  size_t positionless = 0;                    // of `terms`, those that read no position of a token
  bool reads_distances = false;               // a term needs the call's distances
  bool reads_length = false;                  // a term depends on the call's length
  bool has_reach = false;                     // a term ends before some far positions
  std::function<int64_t(int64_t)> place;      // empty: a token stands at its number
  std::function<int64_t(int64_t)> place_key;  // empty: where a query of the same number stands

  // Adds a term of the kind of these lists: make(call) returns it, and pull_back(call, own, sums) gives
  // parameters what its own gradients are.
  template <typename Term, typename Own, typename Make, typename PullBack>
  void add(std::vector<Term> Terms::* list, std::vector<Own> TermGradients::* sums_of,
           const Make& make, const PullBack& pull_back) {
    terms.push_back({[=](const PartCall& call, Terms& to) { (to.*list).push_back(make(call)); },
                     [=, at = counts[list]++](const PartCall& call, const TermGradients& gradients,
                                              ParameterSums& sums) {
                       pull_back(call, (gradients.*sums_of)[at], sums);
                     }});
  }
  // Throws Error where the call's sizes are not those of the options.
  Terms bind(const PartCall& call) const;
  void pull_back(const PartCall& call, const TermGradients& gradients, ParameterSums& sums) const;
};

}  // namespace relpos
