// The grid of queries and keys that a command draws, and its colours, as options.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "cli/options/help.h"
#include "relpos/dense.h"

namespace relpos::cli {

struct GridOptions {
  std::optional<int64_t> query, key, q_offset;

  void add_to(CLI::App& app) {
    add_number(app, "--query", query, "number of queries [--key, else 8]");
    add_number(app, "--key", key, "number of keys [--query]");
    add_number(app, "--q-offset", q_offset,
               "position of query 0; key 0 is at 0. Required where the lengths differ");
  }
  // The numbers of queries and keys. Throws Error unless there are at least so many of each.
  std::pair<int64_t, int64_t> lengths(int64_t least) const {
    const int64_t queries = query.value_or(key.value_or(8)), keys = key.value_or(queries);
    check_value(queries >= least, "--query: expected at least ", least, ", got ", queries);
    check_value(keys >= least, "--key: expected at least ", least, ", got ", keys);
    return {queries, keys};
  }
};

inline void add_color(CLI::App& app, std::string& mode) {
  add_choice(app, "--color", mode, {"auto", "always", "never"},
             "colour the numbers as a heat map [auto: on a terminal]");
}

}  // namespace relpos::cli
