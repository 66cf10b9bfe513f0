// Matrices as text: rows in brackets for pipes and files, heat maps for terminals.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "relpos/dense.h"

namespace relpos::cli {

struct Style {
  enum class Color { kNone, k256, kTrue };
  Color color = Color::kNone;
  int width = 80, height = 24;  // of the terminal, where there is one; heat maps are cut to it
  bool terminal = false;
};

// `mode` is auto, always or never. Auto colours a terminal unless NO_COLOR is set or TERM is dumb.
Style stdout_style(const std::string& mode);

// Any rank; ends in a newline. Without colour: nested brackets, one line a row, nothing cut,
// integers as integers, reals with 4 decimals. With colour: a heat map, cut with "..." where the
// terminal ends.
std::string matrix_text(const Step& matrix, const Style& style);

// {"name", "kind", "shape", "values": nested lists}.
nlohmann::ordered_json matrix_json(const Step& matrix);

}  // namespace relpos::cli
