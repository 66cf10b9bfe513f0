// Every kind of term, said once: its list, its name, and the numbers of a term with their gradients and
// the axis on which heads stand. What joins, counts, cuts or sums terms of all kinds goes through here.
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <variant>

#include "relpos/terms.h"

namespace relpos {

// Calls f(name, list in Terms, list in TermGradients) for each kind.
template <typename F>
constexpr void for_each_kind(F&& f) {
  f("rotation", &Terms::rotations, &TermGradients::rotations);
  f("distance bias", &Terms::biases, &TermGradients::biases);
  f("row table", &Terms::row_tables, &TermGradients::row_tables);
  f("column table", &Terms::column_tables, &TermGradients::column_tables);
  f("key bias", &Terms::key_biases, &TermGradients::key_biases);
  f("pair bias", &Terms::pair_biases, &TermGradients::pair_biases);
  f("pair rows", &Terms::pair_rows, &TermGradients::pair_rows);
  f("value table", &Terms::value_tables, &TermGradients::value_tables);
  f("vector added to the query", &Terms::query_added, &TermGradients::query_added);
  f("sink", &Terms::sinks, &TermGradients::sinks);
}

inline constexpr size_t kTermKinds = [] {
  size_t kinds = 0;
  for_each_kind([&](const char*, auto, auto) { ++kinds; });
  return kinds;
}();

// How many terms there are of each kind.
class TermCounts {
 public:
  template <typename T>
  size_t& operator[](std::vector<T> Terms::* list) {
    size_t kind = 0, found = 0;
    for_each_kind([&](const char*, auto own, auto) {
      if constexpr (std::same_as<decltype(own), std::vector<T> Terms::*>) {
        if (own == list) found = kind;
      }
      ++kind;
    });
    return counts_[found];
  }
  template <typename T>
  size_t operator[](std::vector<T> Terms::* list) const {
    return TermCounts(*this)[list];
  }

 private:
  size_t counts_[kTermKinds] = {};
};

// Where the heads of a term's numbers stand.
struct HeadAxis {
  int axis = -1;  // -1: they are shared by heads, or given for those of one call
  bool of_keys = false;
};

namespace detail {

template <typename T, typename Of>
concept Is = std::same_as<std::remove_const_t<T>, Of>;

inline HeadAxis of_table(const TermData& table) { return {table.view.rank == 3 ? 0 : -1}; }
inline HeadAxis of_batch(const TermData& values) { return {values.view.rank == 3 ? 1 : 0}; }

template <Is<Rotation> T, typename G, typename F>
void numbers_of(const char*, T& term, G& gradient, F&& f) {
  if (auto* heads = std::get_if<Rotation::ByHead>(&term.angles)) {
    f("head frequency", heads->frequency, gradient.head_frequency, HeadAxis{1, true});
  } else if (auto* tables = std::get_if<Rotation::Tables>(&term.angles)) {
    f("query cosines", tables->q_cos, gradient.q_cos, HeadAxis{});
    f("query sines", tables->q_sin, gradient.q_sin, HeadAxis{});
    f("key cosines", tables->k_cos, gradient.k_cos, HeadAxis{});
    f("key sines", tables->k_sin, gradient.k_sin, HeadAxis{});
  }
}
template <Is<DistanceBias> T, typename G, typename F>
void numbers_of(const char*, T& term, G& gradient, F&& f) {
  f("bias table", term.table, gradient.table, HeadAxis{0});
  f("slopes", term.slopes, gradient.slopes, HeadAxis{1});
}
template <Is<RowTable> T, typename G, typename F>
void numbers_of(const char*, T& term, G& gradient, F&& f) {
  f("row table", term.table, gradient.table, of_table(term.table));
  f("row factor", term.factor, gradient.factor, HeadAxis{1});
  f("row added", term.added, gradient.added, HeadAxis{0});
}
template <Is<ColumnTable> T, typename G, typename F>
void numbers_of(const char*, T& term, G& gradient, F&& f) {
  f("column table", term.table, gradient.table, of_table(term.table));
  f("column factor", term.factor, gradient.factor, HeadAxis{});
}
template <Is<KeyBias> T, typename G, typename F>
void numbers_of(const char* kind, T& term, G& gradient, F&& f) {
  f(kind, term.values, gradient.table, of_batch(term.values));
}
template <Is<PairBias> T, typename G, typename F>
void numbers_of(const char* kind, T& term, G& gradient, F&& f) {
  f(kind, term.table, gradient.table, HeadAxis{0});
}
template <Is<PairRows> T, typename G, typename F>
void numbers_of(const char* kind, T& term, G& gradient, F&& f) {
  f(kind, term.table, gradient.table, of_table(term.table));
  f("pair factor", term.factor, gradient.factor, HeadAxis{1});
}
template <Is<ValueTable> T, typename G, typename F>
void numbers_of(const char* kind, T& term, G& gradient, F&& f) {
  f(kind, term.table, gradient.table, of_table(term.table));
}
template <Is<TermData> T, typename G, typename F>
void numbers_of(const char* kind, T& term, G& gradient, F&& f) {
  f(kind, term, gradient, of_batch(term));
}

}  // namespace detail

// Calls f(name, TermData, its gradient, HeadAxis) for all numbers of all terms, given or not.
// `gradients` has the lists of zeros(terms).
template <typename AnyTerms, typename Gradients, typename F>
void for_each_number(AnyTerms& terms, Gradients& gradients, F&& f) {
  for_each_kind([&](const char* kind, auto list, auto sums) {
    for (size_t n = 0; n < (terms.*list).size(); ++n) {
      detail::numbers_of(kind, (terms.*list)[n], (gradients.*sums)[n], f);
    }
  });
}

}  // namespace relpos
