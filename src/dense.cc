// Dense forms of one part on a grid, written from its terms alone.
#include <algorithm>
#include <cstring>

#include "base/parallel.h"
#include "lower_part.h"
#include "make_problem.h"
#include "relpos/attention.h"

namespace relpos {
namespace {

void check_grid(const Grid& grid) {
  check_value(grid.queries >= 0 && grid.queries < kPositionLimit,
              "queries: expected 0 or more, below 2^61, got ", grid.queries);
  check_value(grid.keys >= 0 && grid.keys < kPositionLimit,
              "keys: expected 0 or more, below 2^61, got ", grid.keys);
  check_position(grid.q_offset, "q_offset");
}

// key - query of the pair (i, j).
int64_t distance(const Grid& grid, int64_t i, int64_t j) { return j - (grid.q_offset + i); }

// Pairs of one distance form a diagonal: (i, j) lies on diagonal j - i + Lq - 1.
int64_t diagonals(const Grid& grid) {
  return grid.queries == 0 || grid.keys == 0 ? 0 : grid.queries + grid.keys - 1;
}
int64_t diagonal(const Grid& grid, int64_t i, int64_t j) { return j - i + grid.queries - 1; }
int64_t diagonal_distance(const Grid& grid, int64_t n) {
  return n - (grid.queries - 1) - grid.q_offset;
}

std::string describe(const Terms& terms) {
  std::string text;
  const auto add = [&](size_t count, const char* name) {
    if (count == 0) return;
    text +=
        (text.empty() ? "" : ", ") + std::to_string(count) + " " + name + (count > 1 ? "s" : "");
  };
  add(terms.rotations.size(), "rotation");
  add(terms.biases.size(), "distance bias");
  add(terms.row_tables.size(), "row table");
  add(terms.column_tables.size(), "column table");
  add(terms.key_biases.size(), "key bias");
  add(terms.value_tables.size(), "value table");
  return text.empty() ? "no term" : text;
}

// A bias of every head and pair, or a row of every pair.
struct Form {
  const std::vector<DistanceBias>* biases = nullptr;  // null: rows
  const ClassMap* map = nullptr;                      // of rows
  const TermData* table = nullptr;                    // of rows, [M, r] or [H, M, r]
  int64_t heads = 0;                                  // 0: rows that all heads share
  int64_t columns = 0;                                // of rows

  std::vector<int64_t> shape(const Grid& grid) const {
    std::vector<int64_t> dims{grid.queries, grid.keys};
    if (heads > 0 || biases != nullptr) dims.insert(dims.begin(), heads);
    if (biases == nullptr) dims.push_back(columns);
    return dims;
  }
};

Form bias_form(const std::string& who, const std::vector<DistanceBias>& biases) {
  Form form;
  form.biases = &biases;
  form.heads = -1;
  const auto agree = [&](int64_t heads) {
    check_value(form.heads == -1 || form.heads == heads, who,
                ": its distance biases disagree about heads: ", form.heads, " and ", heads);
    form.heads = heads;
  };
  for (const DistanceBias& bias : biases) {
    if (bias.map) {
      const TensorView& table = bias.table.view;
      check_value(table.rank == 2 && table.shape[1] >= bias.map->classes(), who,
                  ": expected a bias table [heads, ", bias.map->classes(), "], got ",
                  table.shape_text());
      agree(table.shape[0]);
    }
    if (bias.slopes.view.given()) {
      const TensorView& slopes = bias.slopes.view;
      check_value(slopes.rank == 2 && slopes.shape[0] == 2, who,
                  ": expected slopes [2, heads], got ", slopes.shape_text());
      agree(slopes.shape[1]);
    }
  }
  check_value(form.heads >= 0, who, ": its distance bias has neither a table nor slopes");
  return form;
}

Form rows_form(const std::string& who, const ClassMap& map, const TermData& table) {
  const TensorView& view = table.view;
  const bool per_head = view.rank == 3;
  check_value((view.rank == 2 || per_head) && view.shape[per_head ? 1 : 0] >= map.classes(), who,
              ": expected a table with ", map.classes(), " rows, got ", view.shape_text());
  Form form;
  form.map = &map;
  form.table = &table;
  form.heads = per_head ? view.shape[0] : 0;
  form.columns = view.shape[per_head ? 2 : 1];
  return form;
}

bool has_key_form(const Terms& terms) {
  return (!terms.biases.empty() && terms.row_tables.empty()) ||
         (terms.biases.empty() && terms.row_tables.size() == 1);
}

Form find_form(const Part& part, const Terms& terms, std::string_view which) {
  const std::string& who = part.scheme->name;
  check_value(which == "key" || which == "value", who, ": which: expected 'key' or 'value', got '",
              which, "'");
  if (which == "value") {
    check_value(terms.value_tables.size() == 1, who,
                ": which='value' needs one value table; this position has ", describe(terms));
    return rows_form(who, terms.value_tables[0].map, terms.value_tables[0].table);
  }
  check_value(has_key_form(terms), who,
              ": which='key' needs distance biases or one row table; this position has ",
              describe(terms));
  if (!terms.biases.empty()) return bias_form(who, terms.biases);
  return rows_form(who, terms.row_tables[0].map, terms.row_tables[0].table);
}

double bias_at(const std::vector<DistanceBias>& biases, int64_t h, int64_t delta) {
  double sum = 0.0;
  for (const DistanceBias& bias : biases) {
    const int64_t row = bias.map ? (*bias.map)(delta) : ClassMap::kNone;
    if (row != ClassMap::kNone) sum += bias.table.multiplier * bias.table.view.at({h, row});
    if (bias.slopes.view.given() && delta != 0) {
      sum += bias.slopes.multiplier * bias.slopes.view.at({delta < 0 ? 0 : 1, h}) *
             static_cast<double>(delta);
    }
  }
  return sum;
}

int64_t row_offset(const TensorView& view, int64_t h, int64_t row) {
  return view.rank == 3 ? view.offset({h, row, 0}) : view.offset({row, 0});
}

int64_t pair_offset(const TensorView& view, const Form& form, int64_t h, int64_t i, int64_t j) {
  return form.heads > 0 ? view.offset({h, i, j, 0}) : view.offset({i, j, 0});
}

void dense_bias(const Form& form, const Grid& grid, const TensorView& out) {
  std::vector<double> values(static_cast<size_t>(diagonals(grid)));
  CancelTicks tick;
  for (int64_t h = 0; h < form.heads; ++h) {
    for (size_t n = 0; n < values.size(); ++n) {
      tick();
      values[n] = bias_at(*form.biases, h, diagonal_distance(grid, static_cast<int64_t>(n)));
    }
    for (int64_t i = 0; i < grid.queries; ++i) {
      for (int64_t j = 0; j < grid.keys; ++j) {
        tick();
        out.store(out.offset({h, i, j}), values[static_cast<size_t>(diagonal(grid, i, j))]);
      }
    }
  }
}

void dense_rows(const Form& form, const Grid& grid, const TensorView& out) {
  const TensorView& table = form.table->view;
  const int64_t step = table.strides[static_cast<size_t>(table.rank - 1)];
  const int64_t out_step = out.strides[static_cast<size_t>(out.rank - 1)];
  CancelTicks tick;
  for (int64_t h = 0; h < std::max<int64_t>(form.heads, 1); ++h) {
    for (int64_t i = 0; i < grid.queries; ++i) {
      for (int64_t j = 0; j < grid.keys; ++j) {
        const int64_t row = (*form.map)(distance(grid, i, j));
        const int64_t from = row == ClassMap::kNone ? 0 : row_offset(table, h, row);
        const int64_t to = pair_offset(out, form, h, i, j);
        for (int64_t c = 0; c < form.columns; ++c) {
          tick();
          const double value =
              row == ClassMap::kNone ? 0.0 : form.table->multiplier * table.load(from + c * step);
          out.store(to + c * out_step, value);
        }
      }
    }
  }
}

void bias_backward(const Form& form, const Grid& grid, const TensorView& dout,
                   std::vector<TermGradients::Bias>& gradients) {
  std::vector<double> sums(static_cast<size_t>(diagonals(grid)));
  CancelTicks tick;
  for (int64_t h = 0; h < form.heads; ++h) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int64_t i = 0; i < grid.queries; ++i) {
      for (int64_t j = 0; j < grid.keys; ++j) {
        tick();
        sums[static_cast<size_t>(diagonal(grid, i, j))] += dout.at({h, i, j});
      }
    }
    for (size_t b = 0; b < form.biases->size(); ++b) {
      const DistanceBias& bias = (*form.biases)[b];
      std::vector<double>& table = gradients[b].table;
      std::vector<double>& slopes = gradients[b].slopes;
      for (size_t n = 0; n < sums.size(); ++n) {
        tick();
        const int64_t delta = diagonal_distance(grid, static_cast<int64_t>(n));
        const int64_t row = bias.map ? (*bias.map)(delta) : ClassMap::kNone;
        if (!table.empty() && row != ClassMap::kNone) {
          table[static_cast<size_t>(h * bias.table.view.shape[1] + row)] +=
              bias.table.multiplier * sums[n];
        }
        if (!slopes.empty() && delta != 0) {
          slopes[static_cast<size_t>((delta < 0 ? 0 : form.heads) + h)] +=
              bias.slopes.multiplier * static_cast<double>(delta) * sums[n];
        }
      }
    }
  }
}

void rows_backward(const Form& form, const Grid& grid, const TensorView& dout,
                   std::vector<double>& gradient) {
  if (gradient.empty()) return;
  const TensorView& table = form.table->view;
  const int64_t rows = table.shape[static_cast<size_t>(table.rank - 2)];
  const int64_t step = dout.strides[static_cast<size_t>(dout.rank - 1)];
  CancelTicks tick;
  for (int64_t h = 0; h < std::max<int64_t>(form.heads, 1); ++h) {
    for (int64_t i = 0; i < grid.queries; ++i) {
      for (int64_t j = 0; j < grid.keys; ++j) {
        tick();
        const int64_t row = (*form.map)(distance(grid, i, j));
        if (row == ClassMap::kNone) continue;
        const int64_t from = pair_offset(dout, form, h, i, j);
        double* to = gradient.data() + (h * rows + row) * form.columns;
        for (int64_t c = 0; c < form.columns; ++c) {
          tick();
          to[c] += form.table->multiplier * dout.load(from + c * step);
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

const ClassMap* first_map(const Terms& terms) {
  for (const DistanceBias& bias : terms.biases) {
    if (bias.map) return &*bias.map;
  }
  if (!terms.row_tables.empty()) return &terms.row_tables[0].map;
  if (!terms.column_tables.empty()) return &terms.column_tables[0].map;
  if (!terms.value_tables.empty()) return &terms.value_tables[0].map;
  return nullptr;
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
  const LoweredPart lowered = lower_structure(part);
  std::vector<int64_t> shape = find_form(part, lowered.terms, which).shape(grid);
  checked_numel(shape, "dense");
  return shape;
}

void dense(const Part& part, const Grid& grid, std::string_view which, const TensorView& out,
           CancelToken* cancel) {
  const CallScope scope(cancel);
  check_grid(grid);
  const LoweredPart lowered = lower_part(part);
  const Form form = find_form(part, lowered.terms, which);
  check_floating(out, form.shape(grid), "out");
  check_output(out, form.shape(grid), out.dtype, "out");
  if (out.numel() == 0) return;
  if (form.biases != nullptr) {
    dense_bias(form, grid, out);
  } else {
    dense_rows(form, grid, out);
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
  const LoweredPart lowered = lower_part(part, wants);
  const Form form = find_form(part, lowered.terms, which);
  check_floating(dout, form.shape(grid), "dout");
  std::vector<std::vector<double>> pulled(wants.size());
  for (size_t p = 0; p < wants.size(); ++p) {
    if (!wants[p]) continue;
    check_output(dparameters[p], part.parameters[p].dims(), part.parameters[p].dtype,
                 "dparameters");
    pulled[p].assign(static_cast<size_t>(part.parameters[p].numel()), 0.0);
  }
  TermGradients gradients = TermGradients::zeros(lowered.terms);
  if (dout.numel() > 0) {
    if (form.biases != nullptr) {
      bias_backward(form, grid, dout, gradients.biases);
    } else {
      rows_backward(
          form, grid, dout,
          which == "value" ? gradients.value_tables[0].table : gradients.row_tables[0].table);
    }
  }
  if (part.scheme->pull_back != nullptr) {
    part.scheme->pull_back(lowered.setting(), gradients, pulled);
  }
  for (size_t p = 0; p < wants.size(); ++p) {
    if (wants[p]) write_values(pulled[p], dparameters[p]);
  }
}

void indices(const Part& part, const Grid& grid, const TensorView& out, CancelToken* cancel) {
  const CallScope scope(cancel);
  check_grid(grid);
  check_output(out, {grid.queries, grid.keys}, DType::kInt64, "out");
  const LoweredPart lowered = lower_structure(part);
  const ClassMap* map = first_map(lowered.terms);
  CancelTicks tick;
  for (int64_t i = 0; i < grid.queries; ++i) {
    for (int64_t j = 0; j < grid.keys; ++j) {
      tick();
      const int64_t delta = distance(grid, i, j);
      const int64_t value = map == nullptr ? delta : (*map)(delta);
      std::memcpy(
          static_cast<char*>(out.data) + out.offset({i, j}) * static_cast<int64_t>(sizeof value),
          &value, sizeof value);
    }
  }
}

}  // namespace relpos
