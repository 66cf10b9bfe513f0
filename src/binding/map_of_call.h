// The class map of a term in a call: decided when the position was made, or given with the call.
#pragma once

#include "binding/recipe.h"
#include "relpos/scheme.h"

namespace relpos {

class MapOfCall {
 public:
  explicit MapOfCall(AnyMap map) : map_(std::move(map)) {}

  // `rows`: those of the term's table. Throws Error where given numbers make no map.
  ClassMap map(const PartCall& call, int64_t rows) const;

 private:
  AnyMap map_;
};

}  // namespace relpos
