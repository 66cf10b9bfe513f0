// Positions of one's own, module:Class, whose matrices Python computes.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "relpos/dense.h"

namespace relpos::cli {

// Whether a text has a colon outside of brackets, as no scheme has.
bool is_own(const std::string& text);

struct OwnRequest {
  struct Side {
    std::string text, params;  // params: a file, or empty
  };
  std::string who;  // begins messages
  std::vector<Side> sides;
  std::string what;                 // empty: the default
  std::vector<std::string> others;  // families of further sides: bias, rows or empty
  std::vector<Grid> grids;
  uint64_t seed = 0;
  int64_t length = 0;  // for required sizes
  bool show = true;    // the matrices of relpos show, else one stack [heads, queries, keys]
};

struct OwnReply {
  struct Side {
    nlohmann::ordered_json options;        // that its text says
    std::vector<std::vector<Step>> grids;  // the matrices of each
  };
  std::string what;
  std::vector<Side> sides;
};

// Throws Error on what Python refuses.
OwnReply ask_own(const OwnRequest& request);

}  // namespace relpos::cli
