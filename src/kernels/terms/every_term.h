// The list of the kinds of terms that the fused path computes, in the order in which a block attaches
// them and sends their gradients on.
#pragma once

#include <tuple>

#include "kernels/terms/biases.h"
#include "kernels/terms/columns.h"
#include "kernels/terms/key_biases.h"
#include "kernels/terms/pair_biases.h"
#include "kernels/terms/pair_rows.h"
#include "kernels/terms/query_added.h"
#include "kernels/terms/rotation_angles.h"
#include "kernels/terms/row_tables.h"
#include "kernels/terms/sinks.h"
#include "kernels/terms/value_tables.h"

namespace relpos {

template <typename... Kinds>
struct KindList {
  // Calls f<Kind>() for each.
  template <typename F>
  static void for_each(F&& f) {
    (f.template operator()<Kinds>(), ...);
  }
  // An Of<Kind> of each, made of the same arguments.
  template <template <typename> typename Of>
  class One {
   public:
    template <typename... Args>
    explicit One(Args&... args) : all_{Of<Kinds>(args...)...} {}

    template <typename Kind>
    const Of<Kind>& of() const noexcept {
      return std::get<Of<Kind>>(all_);
    }
    // Calls f.operator()<Kind>(own) for each.
    template <typename F>
    void for_each(F&& f) {
      (f.template operator()<Kinds>(std::get<Of<Kinds>>(all_)), ...);
    }

   private:
    std::tuple<Of<Kinds>...> all_;
  };
};

using EveryTerm = KindList<Biases, KeyBiases, PairBiases, RotationAngles, QueryAdded, RowTables,
                           PairRowTables, ColumnTables, ValueTables, Sinks>;

// One worker's terms.
template <typename Kind>
using Own = Kind;
using WorkerTerms = EveryTerm::One<Own>;

}  // namespace relpos
