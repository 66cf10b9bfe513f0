#include "binding/head_slice.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/zeros.h"
#include "values/term_kinds.h"

namespace relpos {
namespace {

// Numbers of a term, their gradient, and where their heads stand.
struct Headed {
  TermData* data;
  std::vector<double>* gradient;
  HeadAxis heads;
};

std::vector<Headed> headed(Terms& terms, TermGradients& gradients) {
  std::vector<Headed> found;
  for_each_number(terms, gradients,
                  [&](const char*, TermData& data, std::vector<double>& gradient, HeadAxis heads) {
                    if (heads.axis >= 0) found.push_back({&data, &gradient, heads});
                  });
  return found;
}

bool is_cut(const HeadSlice& slice, const Headed& term) {
  const TensorView& view = term.data->view;
  if (!view.given()) return false;
  const int64_t heads = view.shape[term.heads.axis];
  return term.heads.of_keys ? heads > 1 && slice.all % heads == 0 : heads == slice.all;
}

// The first of the heads that a term keeps, and how many they are. Several slices may share a key head.
std::pair<int64_t, int64_t> kept(const HeadSlice& slice, const Headed& term) {
  if (!term.heads.of_keys) return {slice.first, slice.own};
  const int64_t group = slice.all / term.data->view.shape[term.heads.axis];
  const int64_t first = slice.first / group;
  return {first, (slice.first + slice.own + group - 1) / group - first};
}

}  // namespace

Terms HeadSlice::cut(Terms terms) const {
  if (whole()) return terms;
  TermGradients none = TermGradients::like(terms);
  for (const Headed& term : headed(terms, none)) {
    if (!is_cut(*this, term)) continue;
    const auto [from, count] = kept(*this, term);
    const int axis = term.heads.axis;
    TensorView& view = term.data->view;
    auto* bytes = static_cast<char*>(view.data);
    if (bytes != nullptr) bytes += from * view.strides[axis] * item_size(view.dtype);
    view.data = bytes;
    view.shape[axis] = count;
  }
  return terms;
}

TermGradients HeadSlice::spread(Terms terms, TermGradients gradients) const {
  if (whole()) return gradients;
  for (const Headed& term : headed(terms, gradients)) {
    if (term.gradient->empty() || !is_cut(*this, term)) continue;
    const TensorView& view = term.data->view;
    const auto [from, count] = kept(*this, term);
    const int64_t heads = view.shape[term.heads.axis];
    int64_t outer = 1, inner = 1;
    for (int axis = 0; axis < view.rank; ++axis) {
      if (axis != term.heads.axis) (axis < term.heads.axis ? outer : inner) *= view.shape[axis];
    }
    std::vector<double> spread = zeros(outer * heads * inner);
    for (int64_t at = 0; at < outer; ++at) {
      const double* own_sums = term.gradient->data() + at * count * inner;
      double* to = spread.data() + (at * heads + from) * inner;
      in_pieces(count * inner, [&](int64_t begin, int64_t end) {
        std::copy(own_sums + begin, own_sums + end, to + begin);
      });
    }
    *term.gradient = std::move(spread);
  }
  return gradients;
}

}  // namespace relpos
