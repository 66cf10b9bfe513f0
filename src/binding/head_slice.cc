#include "binding/head_slice.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/zeros.h"

namespace relpos {
namespace {

// Numbers of a term and the axis on which heads stand.
struct Headed {
  TermData* data;
  int axis;
  bool of_keys = false;  // key heads
};

int table_axis(const TermData& table) { return table.view.rank == 3 ? 0 : -1; }

std::vector<Headed> headed(Terms& terms) {
  std::vector<Headed> found;
  for (Rotation& term : terms.rotations) found.push_back({&term.head_frequency, 1, true});
  for (DistanceBias& term : terms.biases) {
    found.push_back({&term.table, 0});
    found.push_back({&term.slopes, 1});
  }
  for (RowTable& term : terms.row_tables) {
    found.push_back({&term.table, table_axis(term.table)});
    found.push_back({&term.factor, 1});
    found.push_back({&term.added, 0});
  }
  for (ColumnTable& term : terms.column_tables) {
    found.push_back({&term.table, table_axis(term.table)});
  }
  for (KeyBias& term : terms.key_biases) {
    found.push_back({&term.values, term.values.view.rank == 3 ? 1 : 0});
  }
  for (ValueTable& term : terms.value_tables) {
    found.push_back({&term.table, table_axis(term.table)});
  }
  for (TermData& term : terms.query_added) found.push_back({&term, 0});
  for (TermData& term : terms.sinks) found.push_back({&term, term.view.rank == 3 ? 1 : 0});
  return found;
}

// In the order of headed().
std::vector<std::vector<double>*> listed(TermGradients& gradients) {
  std::vector<std::vector<double>*> found;
  for (auto& term : gradients.rotations) found.push_back(&term.head_frequency);
  for (auto& term : gradients.biases) {
    found.push_back(&term.table);
    found.push_back(&term.slopes);
  }
  for (auto& term : gradients.row_tables) {
    found.push_back(&term.table);
    found.push_back(&term.factor);
    found.push_back(&term.added);
  }
  for (auto& term : gradients.column_tables) found.push_back(&term.table);
  for (auto& term : gradients.key_biases) found.push_back(&term.table);
  for (auto& term : gradients.value_tables) found.push_back(&term.table);
  for (auto& term : gradients.query_added) found.push_back(&term);
  for (auto& term : gradients.sinks) found.push_back(&term);
  return found;
}

bool is_cut(const HeadSlice& slice, const Headed& term) {
  const TensorView& view = term.data->view;
  if (!view.given() || term.axis < 0) return false;
  const int64_t heads = view.shape[term.axis];
  return term.of_keys ? heads > 1 && slice.all % heads == 0 : heads == slice.all;
}

// The first of the heads that a term keeps, and how many they are. Several slices may share a key head.
std::pair<int64_t, int64_t> kept(const HeadSlice& slice, const Headed& term) {
  if (!term.of_keys) return {slice.first, slice.own};
  const int64_t group = slice.all / term.data->view.shape[term.axis];
  const int64_t first = slice.first / group;
  return {first, (slice.first + slice.own + group - 1) / group - first};
}

}  // namespace

Terms HeadSlice::cut(Terms terms) const {
  if (whole()) return terms;
  for (const Headed& term : headed(terms)) {
    if (!is_cut(*this, term)) continue;
    const auto [from, count] = kept(*this, term);
    TensorView& view = term.data->view;
    auto* bytes = static_cast<char*>(view.data);
    if (bytes != nullptr) bytes += from * view.strides[term.axis] * item_size(view.dtype);
    view.data = bytes;
    view.shape[term.axis] = count;
  }
  return terms;
}

TermGradients HeadSlice::spread(Terms terms, TermGradients gradients) const {
  if (whole()) return gradients;
  const std::vector<Headed> places = headed(terms);
  const std::vector<std::vector<double>*> sums = listed(gradients);
  for (size_t n = 0; n < places.size(); ++n) {
    if (sums[n]->empty() || !is_cut(*this, places[n])) continue;
    const TensorView& view = places[n].data->view;
    const auto [from, count] = kept(*this, places[n]);
    const int64_t heads = view.shape[places[n].axis];
    int64_t outer = 1, inner = 1;
    for (int axis = 0; axis < view.rank; ++axis) {
      if (axis != places[n].axis) (axis < places[n].axis ? outer : inner) *= view.shape[axis];
    }
    std::vector<double> spread = zeros(outer * heads * inner);
    for (int64_t at = 0; at < outer; ++at) {
      const double* own_sums = sums[n]->data() + at * count * inner;
      double* to = spread.data() + (at * heads + from) * inner;
      in_pieces(count * inner, [&](int64_t begin, int64_t end) {
        std::copy(own_sums + begin, own_sums + end, to + begin);
      });
    }
    *sums[n] = std::move(spread);
  }
  return gradients;
}

}  // namespace relpos
