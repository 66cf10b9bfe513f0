#include "call/dense_form.h"

#include <algorithm>
#include <string>

#include "relpos/error.h"
#include "values/term_kinds.h"
#include "values/views.h"

namespace relpos {
namespace {

std::string describe(const Terms& terms) {
  std::string text;
  for_each_kind([&](const char* name, auto list, auto) {
    const size_t count = (terms.*list).size();
    if (count == 0) return;
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + name;
    if (count > 1) text += text.back() == 's' ? "es" : "s";
  });
  return text.empty() ? "no term" : text;
}

DenseForm bias_form(const std::string& who, const Terms& terms, const Grid& grid) {
  DenseForm form;
  form.biases = &terms.biases;
  form.key_biases = &terms.key_biases;
  form.heads = -1;
  const auto agree = [&](int64_t heads) {
    check_value(form.heads == -1 || form.heads == heads, who,
                ": its biases disagree about heads: ", form.heads, " and ", heads);
    form.heads = heads;
  };
  for (const DistanceBias& bias : terms.biases) {
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
  for (const KeyBias& bias : terms.key_biases) {
    const TensorView& values = bias.values.view;
    const bool batched = values.rank == 3;
    check_value(values.shape[batched ? 2 : 1] == grid.keys && (!batched || values.shape[0] == 1),
                who, ": expected a key bias of one batch row and ", grid.keys, " keys, got ",
                values.shape_text());
    agree(values.shape[batched ? 1 : 0]);
  }
  for (const TermData& sink : terms.sinks) agree(sink.view.shape[sink.view.rank == 3 ? 1 : 0]);
  check_value(form.heads >= 0, who, ": its distance bias has neither a table nor slopes");
  return form;
}

DenseForm rows_form(const std::string& who, std::vector<ReadTable> tables) {
  DenseForm form;
  for (const ReadTable& read : tables) {
    const TensorView& view = read.table->view;
    const bool per_head = view.rank == 3;
    check_value((view.rank == 2 || per_head) && view.shape[per_head ? 1 : 0] >= read.map->classes(),
                who, ": expected a table with ", read.map->classes(), " rows, got ",
                view.shape_text());
    form.heads = std::max(form.heads, per_head ? view.shape[0] : 0);
    form.columns = view.shape[per_head ? 2 : 1];
  }
  form.tables = std::move(tables);
  return form;
}

// Tables that one query meets under one scale: their rows add up.
bool alike(const std::vector<RowTable>& tables) {
  return !tables.empty() && std::all_of(tables.begin(), tables.end(), [&](const RowTable& other) {
    const bool plain = !other.factor.view.given() && !other.added.view.given();
    return tables.size() == 1 || (plain && other.scale == tables[0].scale);
  });
}

// Sinks add 0 to every score.
bool has_key_form(const Terms& terms) {
  const bool biases = !terms.biases.empty() || !terms.key_biases.empty() || !terms.sinks.empty();
  const size_t tables = terms.row_tables.size() + terms.column_tables.size();
  return biases ? tables == 0 : alike(terms.row_tables) || tables == 1;
}

}  // namespace

DenseForm find_form(const Part& part, const Terms& terms, const Grid& grid,
                    std::string_view which) {
  const std::string& who = part.scheme().name;
  check_value(which == "key" || which == "value", who, ": which: expected 'key' or 'value', got '",
              which, "'");
  if (which == "value") {
    check_value(terms.value_tables.size() == 1, who,
                ": which='value' needs one value table; this position has ", describe(terms));
    return rows_form(who, {{&terms.value_tables[0].map, &terms.value_tables[0].table}});
  }
  check_value(has_key_form(terms), who,
              ": which='key' needs biases, sinks or one row table; this position has ",
              describe(terms));
  if (terms.row_tables.empty() && !terms.column_tables.empty()) {
    return rows_form(who, {{&terms.column_tables[0].map, &terms.column_tables[0].table}});
  }
  if (terms.row_tables.empty()) return bias_form(who, terms, grid);
  std::vector<ReadTable> tables;
  for (const RowTable& term : terms.row_tables) {
    tables.push_back({&term.map, &term.table, term.coordinates.get(), term.axis});
  }
  return rows_form(who, std::move(tables));
}

std::optional<ReadTable> first_table(const Terms& terms) {
  for (const DistanceBias& bias : terms.biases) {
    if (bias.map) return ReadTable{&*bias.map, &bias.table, bias.coordinates.get(), bias.axis};
  }
  for (const RowTable& rows : terms.row_tables) {
    return ReadTable{&rows.map, &rows.table, rows.coordinates.get(), rows.axis};
  }
  for (const ColumnTable& columns : terms.column_tables) {
    return ReadTable{&columns.map, &columns.table};
  }
  for (const ValueTable& values : terms.value_tables) {
    return ReadTable{&values.map, &values.table};
  }
  return std::nullopt;
}

}  // namespace relpos
