// What a scheme says of classes of pairs, as terms of its recipe: beside builder.cc.
#include "binding/recipe.h"
#include "binding/source.h"
#include "relpos/scheme.h"

namespace relpos {

void Builder::pair_bias(const Source& table, const Source& classes, int hidden) {
  ++recipe_.positionless;
  const SourceReader numbers(table);
  recipe_.add(
      &Terms::pair_biases, &TermGradients::pair_biases,
      [=](const PartCall& call) {
        return PairBias{numbers.read(call), {call.parameters[classes.index_], hidden, &classes}};
      },
      [=](const PartCall& call, const TermGradients::Values& own, ParameterSums& sums) {
        numbers.add_gradient(call, own.table, sums);
      });
}

void Builder::pair_rows(const Source& table, const Source& classes, const ColumnOptions& options,
                        int hidden) {
  ++recipe_.positionless;
  const SourceReader numbers(table), factor(options.factor);
  recipe_.add(
      &Terms::pair_rows, &TermGradients::pair_rows,
      [=, scale = options.scale](const PartCall& call) {
        const PairClasses bytes{call.parameters[classes.index_], hidden, &classes};
        return PairRows{numbers.read(call), factor.read(call), scale, bytes};
      },
      [=](const PartCall& call, const TermGradients::Rows& own, ParameterSums& sums) {
        numbers.add_gradient(call, own.table, sums);
        factor.add_gradient(call, own.factor, sums);
      });
}

}  // namespace relpos
