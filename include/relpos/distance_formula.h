// A bias that is a formula of the distance: the formula, and its derivatives by dual numbers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <utility>

#include "relpos/dual.h"
#include "relpos/export.h"

RELPOS_EXPORT_BEGIN
namespace relpos {

// A number for each head and distance, from a formula and the head's numbers.
struct DistanceFormula {
  std::function<double(double delta, const double* numbers)> value;
  // Not empty: `delta` of the others is this number, computed once for all heads.
  std::function<double(int64_t delta)> shared{};
  // Adds upstream * (derivatives of value) to `gradients`.
  std::function<void(double delta, const double* numbers, double upstream, double* gradients)>
      add_gradients;
};

// Each of the numbers as a Dual with a slope of 1 along its own axis.
template <size_t N, size_t... I>
std::array<Dual<N>, N> duals(const double* numbers, std::index_sequence<I...>) {
  std::array<Dual<N>, N> all{Dual<N>(numbers[I])...};
  ((all[I].slope[I] = 1.0), ...);
  return all;
}

// Of a lambda (double delta, auto... N numbers) that works on double and Dual alike.
template <size_t N, typename F>
DistanceFormula distance_formula(F formula) {
  DistanceFormula made;
  made.value = [formula](double delta, const double* numbers) {
    return [&]<size_t... I>(std::index_sequence<I...>) -> double {
      return formula(delta, numbers[I]...);
    }(std::make_index_sequence<N>());
  };
  made.add_gradients = [formula](double delta, const double* numbers, double upstream,
                                 double* gradients) {
    const auto with_slopes = duals<N>(numbers, std::make_index_sequence<N>());
    const Dual<N> result = std::apply(
        [&](const auto&... number) -> Dual<N> { return formula(delta, number...); }, with_slopes);
    for (size_t n = 0; n < N; ++n) gradients[n] += upstream * result.slope[n];
  };
  return made;
}

}  // namespace relpos
RELPOS_EXPORT_END
