// Dense forms of one part on a grid, written from its terms alone.
#include "relpos/dense.h"

#include <algorithm>
#include <cstring>

#include "base/parallel.h"
#include "binding/bound_part.h"
#include "binding/parts.h"
#include "call/dense_form.h"
#include "call/make_problem.h"
#include "kernels/reference/reference.h"
#include "relpos/error.h"
#include "values/views.h"

namespace relpos {
namespace {

void check_grid(const Grid& grid) {
  check_value(grid.queries >= 0 && grid.queries < kPositionLimit,
              "queries: expected 0 or more, below 2^61, got ", grid.queries);
  check_value(grid.keys >= 0 && grid.keys < kPositionLimit,
              "keys: expected 0 or more, below 2^61, got ", grid.keys);
  check_position(grid.q_offset, "q_offset");
}

int64_t row_offset(const TensorView& view, int64_t h, int64_t row) {
  return view.rank == 3 ? view.offset({h, row, 0}) : view.offset({row, 0});
}

int64_t pair_offset(const TensorView& view, const DenseForm& form, int64_t h, int64_t i,
                    int64_t j) {
  return form.heads > 0 ? view.offset({h, i, j, 0}) : view.offset({i, j, 0});
}

// Biases as scores of the reference path: those of queries and keys that are 0, one number each.
class BiasScores {
 public:
  BiasScores(const DenseForm& form, const TokenPositions& at, CancelToken* cancel) {
    p_.batch = 1;
    p_.heads = p_.kv_heads = form.heads;
    p_.queries = p_.visible.queries = at.queries;
    p_.keys = p_.visible.keys = at.keys;
    p_.head_dim = 1;
    p_.positions = at;
    p_.terms.biases = *form.biases;
    p_.terms.key_biases = *form.key_biases;
    p_.cancel = cancel;
    p_.query = {&zero_, DType::kFloat64, {1, p_.heads, at.queries, 1}, {0, 0, 0, 0}};
    p_.key = {&zero_, DType::kFloat64, {1, p_.heads, at.keys, 1}, {0, 0, 0, 0}};
  }

  // out [heads, queries, keys].
  void write(const TensorView& out) const { reference_scores(p_, in_a_batch(out)); }
  void pull_back(const TensorView& dout, TermGradients& to) const {
    ProblemGradients gradients;
    gradients.terms = &to;
    reference_scores_backward(p_, in_a_batch(dout), gradients);
  }

 private:
  static TensorView in_a_batch(const TensorView& x) {
    return {x.data,
            x.dtype,
            {1, x.shape[0], x.shape[1], x.shape[2]},
            {0, x.strides[0], x.strides[1], x.strides[2]}};
  }

  Problem p_;
  double zero_ = 0.0;
};

// Whether a pair's biases are a function of its distance.
bool by_distance(const DenseForm& form) {
  return form.key_biases->empty() &&
         std::all_of(form.biases->begin(), form.biases->end(),
                     [](const DistanceBias& bias) { return bias.coordinates == nullptr; });
}

// One query that meets every distance of a grid once.
TokenPositions every_distance(const GridPositions& at) {
  const auto [first, last] = at.distances();
  return {.q = {0}, .k = {first}, .queries = 1, .keys = last - first + 1};
}

// Calls f(head, n, offset in `dense`) for all pairs, where they meet distance n of every_distance().
template <typename F>
void for_each_distance(const TensorView& dense, const GridPositions& at, F&& f) {
  const int64_t first = at.distances().first;
  CancelTicks tick;
  for (int64_t h = 0; h < dense.shape[0]; ++h) {
    for (int64_t i = 0; i < dense.shape[1]; ++i) {
      for (int64_t j = 0; j < dense.shape[2]; ++j) {
        tick();
        f(h, at.delta(i, j) - first, dense.offset({h, i, j}));
      }
    }
  }
}

void dense_bias(const DenseForm& form, const GridPositions& at, const TensorView& out,
                CancelToken* cancel) {
  if (!by_distance(form)) return BiasScores(form, at.tokens(), cancel).write(out);
  const TokenPositions distances = every_distance(at);
  const Tensor values(DType::kFloat64, {form.heads, 1, distances.keys});
  BiasScores(form, distances, cancel).write(values.view());
  for_each_distance(out, at, [&](int64_t h, int64_t n, int64_t to) {
    out.store(to, values.data<double>()[h * distances.keys + n]);
  });
}

void bias_backward(const DenseForm& form, const GridPositions& at, const TensorView& dout,
                   TermGradients& gradients, CancelToken* cancel) {
  if (!by_distance(form)) return BiasScores(form, at.tokens(), cancel).pull_back(dout, gradients);
  const TokenPositions distances = every_distance(at);
  const Tensor sums(DType::kFloat64, {form.heads, 1, distances.keys});
  for_each_distance(dout, at, [&](int64_t h, int64_t n, int64_t from) {
    sums.data<double>()[h * distances.keys + n] += dout.load(from);
  });
  BiasScores(form, distances, cancel).pull_back(sums.view(), gradients);
}

void dense_rows(const DenseForm& form, const Grid& grid, const GridPositions& at,
                const TensorView& out) {
  const int64_t out_step = out.strides[static_cast<size_t>(out.rank - 1)];
  std::vector<double> sum(static_cast<size_t>(form.columns));
  CancelTicks tick;
  for (int64_t h = 0; h < std::max<int64_t>(form.heads, 1); ++h) {
    for (int64_t i = 0; i < grid.queries; ++i) {
      for (int64_t j = 0; j < grid.keys; ++j) {
        tick(form.columns);
        std::fill(sum.begin(), sum.end(), 0.0);
        for (const ReadTable& read : form.tables) {
          const TensorView& table = read.table->view;
          const int64_t row = (*read.map)(delta_of(read, at, i, j));
          if (row == ClassMap::kNone) continue;
          const int64_t from = row_offset(table, h, row), step = table.strides[table.rank - 1];
          for (int64_t c = 0; c < form.columns; ++c) {
            sum[static_cast<size_t>(c)] += read.table->multiplier * table.load(from + c * step);
          }
        }
        const int64_t to = pair_offset(out, form, h, i, j);
        for (int64_t c = 0; c < form.columns; ++c) {
          out.store(to + c * out_step, sum[static_cast<size_t>(c)]);
        }
      }
    }
  }
}

void rows_backward(const DenseForm& form, const ReadTable& read, const Grid& grid,
                   const GridPositions& at, const TensorView& dout, std::vector<double>& gradient) {
  if (gradient.empty()) return;
  const TensorView& table = read.table->view;
  const int64_t rows = table.shape[static_cast<size_t>(table.rank - 2)];
  const int64_t step = dout.strides[static_cast<size_t>(dout.rank - 1)];
  CancelTicks tick;
  for (int64_t h = 0; h < std::max<int64_t>(form.heads, 1); ++h) {
    for (int64_t i = 0; i < grid.queries; ++i) {
      for (int64_t j = 0; j < grid.keys; ++j) {
        tick(form.columns);
        const int64_t row = (*read.map)(delta_of(read, at, i, j));
        if (row == ClassMap::kNone) continue;
        const int64_t from = pair_offset(dout, form, h, i, j);
        double* to = gradient.data() + (h * rows + row) * form.columns;
        for (int64_t c = 0; c < form.columns; ++c) {
          to[c] += read.table->multiplier * dout.load(from + c * step);
        }
      }
    }
  }
}

void check_floating(const TensorView& view, const std::vector<int64_t>& shape, const char* name) {
  check_input(view, shape, name);
  if (!is_floating(view.dtype)) {
    throw_error(ErrorKind::kType, name, ": expected a floating dtype, got ",
                dtype_name(view.dtype));
  }
}

}  // namespace

Grid make_grid(int64_t queries, int64_t keys, std::optional<int64_t> q_offset) {
  const Grid grid{queries, keys, q_offset.value_or(0)};
  check_grid(grid);
  if (!q_offset && queries != keys) {
    refuse_to_guess("Lq = " + std::to_string(queries) +
                    " differs from Lk = " + std::to_string(keys));
  }
  return grid;
}

std::vector<int64_t> dense_shape(const Part& part, const Grid& grid, std::string_view which) {
  check_grid(grid);
  const BoundPart bound(part);
  std::vector<int64_t> shape = find_form(part, bound.terms(), grid, which).shape(grid);
  checked_numel(shape, "dense");
  return shape;
}

void dense(const Part& part, const Grid& grid, std::string_view which, const TensorView& out,
           CancelToken* cancel) {
  const CallScope scope(cancel);
  check_grid(grid);
  const GridPositions at(part, grid);
  const TokenPositions tokens = at.tokens();
  const BoundPart bound(part, at.sizes(), std::vector<bool>(), &tokens);
  const DenseForm form = find_form(part, bound.terms(), grid, which);
  check_floating(out, form.shape(grid), "out");
  check_output(out, form.shape(grid), out.dtype, "out");
  if (out.numel() == 0) return;
  if (form.biases != nullptr) {
    dense_bias(form, at, out, cancel);
  } else {
    dense_rows(form, grid, at, out);
  }
}

void dense_backward(const Part& part, const Grid& grid, std::string_view which,
                    const TensorView& dout, const std::vector<TensorView>& dparameters,
                    CancelToken* cancel) {
  const CallScope scope(cancel);
  check_grid(grid);
  check_value(dparameters.size() == part.parameters.size(), "dparameters: expected ",
              part.parameters.size(), " views, got ", dparameters.size());
  std::vector<bool> wants;
  for (const TensorView& view : dparameters) wants.push_back(view.given());
  const GridPositions at(part, grid);
  const TokenPositions tokens = at.tokens();
  const BoundPart bound(part, at.sizes(), wants, &tokens);
  const DenseForm form = find_form(part, bound.terms(), grid, which);
  check_floating(dout, form.shape(grid), "dout");
  for (size_t p = 0; p < wants.size(); ++p) {
    if (!wants[p]) continue;
    check_output(dparameters[p], part.parameters[p].dims(), part.parameters[p].dtype,
                 "dparameters");
  }
  TermGradients gradients = TermGradients::zeros(bound.terms());
  if (dout.numel() > 0) {
    if (form.biases != nullptr) {
      bias_backward(form, at, dout, gradients, cancel);
    } else {
      for (size_t n = 0; n < form.tables.size(); ++n) {
        rows_backward(form, form.tables[n], grid, at, dout,
                      which == "value"               ? gradients.value_tables[n].table
                      : gradients.row_tables.empty() ? gradients.column_tables[n].table
                                                     : gradients.row_tables[n].table);
      }
    }
  }
  ParameterSums sums = zero_sums(part, wants);
  bound.pull_back(gradients, sums);
  for (size_t p = 0; p < wants.size(); ++p) {
    if (wants[p]) write_values(sums[p], dparameters[p]);
  }
}

void indices(const Part& part, const Grid& grid, const TensorView& out, CancelToken* cancel) {
  const CallScope scope(cancel);
  check_grid(grid);
  check_output(out, {grid.queries, grid.keys}, DType::kInt64, "out");
  const GridPositions at(part, grid);
  const TokenPositions tokens = at.tokens();
  const BoundPart bound(part, {}, &tokens);
  const std::optional<ReadTable> first =
      part.recipe->reads_distances ? std::nullopt : first_table(bound.terms());
  CancelTicks tick;
  for (int64_t i = 0; i < grid.queries; ++i) {
    for (int64_t j = 0; j < grid.keys; ++j) {
      tick();
      const int64_t value = first ? (*first->map)(delta_of(*first, at, i, j)) : at.delta(i, j);
      std::memcpy(
          static_cast<char*>(out.data) + out.offset({i, j}) * static_cast<int64_t>(sizeof value),
          &value, sizeof value);
    }
  }
}

}  // namespace relpos
