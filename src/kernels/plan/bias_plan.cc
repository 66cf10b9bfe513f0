#include "kernels/plan/bias_plan.h"

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "kernels/block/log2.h"
#include "kernels/plan/plan.h"
#include "kernels/plan/table_cells.h"
#include "kernels/plan/write_out.h"

namespace relpos {
namespace {

// Slopes are expanded over every distance that occurs while those stay this close to Lq + Lk.
constexpr int64_t kExpandFactor = 4, kExpandFloor = 4096;

// The cells [kPad][width][kPad] of each head: fill(h, c, count, cells) writes `count` of them, from c on,
// which starts at -kPad.
template <typename F>
void fill_cells(const Problem& p, BiasPlan& plan, Workspace& memory, F&& fill) {
  const int64_t size = plan.row_size();
  plan.cells = memory.take<float>(p.heads * size);
  in_pieces_of_rows(p, p.heads, size, [&](int64_t h, int64_t from, int64_t to) {
    fill(h, from - kPad, to - from, plan.cells.get() + h * size + from);
  });
}

BiasPlan expand_table(const Problem& p, int64_t n, std::pair<int64_t, int64_t> range,
                      const CoordinateTiles* at, bool direct, Workspace& memory) {
  const DistanceBias& term = p.terms.biases[n];
  BiasPlan plan;
  plan.term = n;
  plan.at = at;
  plan.window = ClassWindow(*term.map, at == nullptr ? range : at->range(), memory);
  plan.by_tiles =
      direct && p.positions.consecutive && at == nullptr && plan.window.width > kSlidingCells;
  if (plan.by_tiles) return plan;
  fill_cells(p, plan, memory, [&](int64_t h, int64_t c, int64_t count, float* cells) {
    write_cells(plan.window, term.table, h, c, count, CellUnit::kLog2, cells);
  });
  return plan;
}

BiasPlan expand_slopes(const Problem& p, int64_t n, std::pair<int64_t, int64_t> range, bool direct,
                       Workspace& memory) {
  const TermData& slopes = p.terms.biases[n].slopes;
  const int64_t span = range.second - range.first + 1;
  BiasPlan plan;
  plan.term = n;
  plan.sloped = true;
  plan.ramp = direct || span > kExpandFactor * (p.queries + p.keys) + kExpandFloor;
  if (plan.ramp) return plan;
  plan.window.lo = range.first;
  plan.window.width = span;
  fill_cells(p, plan, memory, [&](int64_t h, int64_t first, int64_t count, float* cells) {
    const double past = slopes.view.at({0, h}) * slopes.multiplier;
    const double future = slopes.view.at({1, h}) * slopes.multiplier;
    for (int64_t c = 0; c < count; ++c) {
      const int64_t distance = range.first + std::clamp<int64_t>(first + c, 0, span - 1);
      const double slope = distance < 0 ? past : future;
      cells[c] = static_cast<float>(to_log2(slope * static_cast<double>(distance)));
    }
  });
  return plan;
}

}  // namespace

std::vector<BiasPlan> expand_biases(const Problem& p, std::pair<int64_t, int64_t> range,
                                    const CoordinateList& coordinates, const Shifts& shifts,
                                    bool direct, Workspace& memory) {
  std::vector<BiasPlan> plans;
  for (int64_t n = 0; n < std::ssize(p.terms.biases); ++n) {
    if (p.terms.biases[n].map) {
      const CoordinateTiles* at = coordinates.of(p.terms.biases[n]);
      plans.push_back(expand_table(p, n, range, at, direct, memory));
    }
    if (!p.terms.biases[n].slopes.view.given()) continue;
    std::pair<int64_t, int64_t> read = shifts.range();
    if (read.first > read.second) read = {0, 0};
    plans.push_back(expand_slopes(p, n, read, direct, memory));
  }
  return plans;
}

void expand_key_biases(Plan& plan, Workspace& memory) {
  const Problem& p = plan.p;
  if (p.terms.key_biases.empty()) return;
  for (const KeyBias& term : p.terms.key_biases) {
    if (term.values.view.rank == 3) plan.key_bias_rows = p.batch;
  }
  plan.key_bias = memory.zeros<double>(plan.key_bias_rows * p.heads * plan.tiles * kTile);
  const int64_t rows = plan.key_bias_rows * p.heads;
  in_pieces_of_rows(p, rows, p.keys, [&](int64_t row, int64_t from, int64_t to) {
    const int64_t b = row / p.heads, h = row % p.heads;
    double* biases = plan.key_bias.get() + row * plan.tiles * kTile;
    for (int64_t j = from; j < to; ++j) biases[j] = to_log2(plan.shifts.key_bias(b, h, j));
  });
}

bool find_peaks(const Plan& plan, std::vector<BiasPlan>& biases, Workspace& memory) {
  constexpr float kUnderflow = 126.0f;
  const Problem& p = plan.p;
  if (plan.direct || plan.rotations.decays() || !p.positions.consecutive ||
      !plan.row_tables.empty() || !plan.columns.empty() || plan.key_bias.size() > 0 ||
      p.visible.floating_mask() || !p.terms.pair_biases.empty() || !p.terms.pair_rows.empty()) {
    return false;
  }
  bool falls = false;
  for (const BiasPlan& bias : biases) {
    if (bias.ramp || bias.at != nullptr) return false;
    for (int64_t h = 0; h < p.heads; ++h) {
      check_cancelled();
      const float* row = bias.cells.get() + h * bias.row_size();
      const auto [low, high] = std::minmax_element(row, row + bias.row_size());
      falls = falls || *high - *low > kUnderflow;
    }
  }
  if (!falls) return false;
  for (BiasPlan& bias : biases) {
    const int64_t size = bias.row_size(), peaks = bias.peaks_per_head();
    bias.peaks = memory.take<float>(p.heads * peaks);
    CancelTicks tick;
    for (int64_t n = 0; n < p.heads * peaks; ++n) {
      tick(kTile);
      const float* row = bias.cells.get() + n / peaks * size;
      const int64_t first = n % peaks * kTile;
      float peak = -HUGE_VALF;
      for (int64_t c = first; c < std::min(first + kTile, size); ++c) {
        peak = std::isnan(row[c]) ? HUGE_VALF : std::max(peak, row[c]);
      }
      bias.peaks[n] = peak;
    }
  }
  return true;
}

}  // namespace relpos
