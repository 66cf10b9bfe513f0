#include "schemes/common/rotary.h"

#include <cmath>
#include <numeric>

#include "schemes/common/frequencies.h"

namespace relpos::common {

void Rotary::options(OptionList& o) {
  o.required("head_dim", head_dim, "size of a query and key head");
  o.keyword_only();
  o.required("layout", layout, {"interleaved", "half"},
             "pairs (2p, 2p + 1), as GPT-J and Meta's Llama, or (p, p + rotary_dim / 2), as "
             "GPT-NeoX and Hugging Face");
  o.number("base", base, "pair p turns by base^(-2p / rotary_dim) a position");
  o.size("rotary_dim", rotary_dim, "how many dimensions of the head turn; None: all from start on",
         2);
  o.size("start", start, "the first dimension that turns", 0);
  o.choice("angle", angle, {"double", "float32"},
           "precision of frequencies and angles; float32 repeats Hugging Face's rounding");
}

Rotation Rotary::rotation(const Builder& b) const {
  b.require(base > 0, "base: expected a number above 0, got ", base);
  b.require(start < head_dim, "start: expected less than head_dim=", head_dim, ", got ", start);
  const int64_t rest = head_dim - start;
  if (!rotary_dim) {
    b.require(rest % 2 == 0, start == 0 ? "head_dim" : "head_dim - start",
              ": expected an even number, got ", rest,
              "; give an even rotary_dim to turn a part of the head");
  } else {
    b.require(
        *rotary_dim % 2 == 0 && *rotary_dim <= rest, "rotary_dim: expected an even number up to ",
        start == 0 ? "" : "head_dim - start of ", "head_dim=", head_dim, ", got ", *rotary_dim);
  }
  Rotation turn;
  turn.start = start;
  turn.dims = rotary_dim.value_or(rest);
  turn.layout = layout == "half" ? PairLayout::kHalf : PairLayout::kInterleaved;
  turn.by_position().float32_angles = angle == "float32";
  turn.by_position().frequency = frequencies(turn.dims, base);
  return turn;
}

std::vector<double> Rotary::frequencies(int64_t dims, double of_base) const {
  return angle == "float32" ? rotary_frequencies_float32(dims, of_base)
                            : rotary_frequencies(dims, of_base);
}

std::vector<int64_t> sections(const Builder& b, const std::optional<std::vector<double>>& section,
                              const std::vector<int64_t>& otherwise) {
  if (!section) return otherwise;
  const int64_t pairs = std::accumulate(otherwise.begin(), otherwise.end(), int64_t{0});
  std::vector<int64_t> whole;
  for (const double size : *section) {
    b.require(size >= 0 && size == std::floor(size) && size <= static_cast<double>(pairs),
              "section: expected whole numbers of pairs, got ", size);
    whole.push_back(static_cast<int64_t>(size));
  }
  b.require(whole.size() == otherwise.size() &&
                std::accumulate(whole.begin(), whole.end(), int64_t{0}) == pairs,
            "section: expected three numbers that add up to ", pairs, " pairs, got ", whole.size());
  return whole;
}

}  // namespace relpos::common
