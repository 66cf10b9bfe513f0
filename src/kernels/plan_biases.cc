// Biases of a plan: tables and slopes expanded over the distances that occur, key biases over keys.
#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "kernels/plan.h"

namespace relpos {
namespace {

// Slopes are expanded over every distance that occurs while those stay this close to Lq + Lk.
constexpr int64_t kExpandFactor = 4, kExpandFloor = 4096;

// Cells [kPad][width][kPad] of a row, each of value(c), c from -kPad on.
template <typename F>
void fill_cells(float* row, int64_t width, F&& value) {
  CancelTicks tick;
  for (int64_t c = -kPad; c < width + kPad; ++c) {
    tick();
    row[kPad + c] = static_cast<float>(to_log2(value(c)));
  }
}

BiasPlan expand_table(const Problem& p, size_t n, std::pair<int64_t, int64_t> range) {
  const DistanceBias& term = p.terms.biases[n];
  BiasPlan plan;
  plan.term = n;
  plan.window = Window(*term.map, range);
  plan.cells = Buffer<float>(p.heads * plan.row_size());
  const Window& w = plan.window;
  for (int64_t h = 0; h < p.heads; ++h) {
    fill_cells(plan.cells.get() + h * plan.row_size(), w.width, [&](int64_t c) {
      const int64_t row = w.class_of(c);
      return row == ClassMap::kNone ? 0.0 : term.table.view.at({h, row}) * term.table.multiplier;
    });
  }
  return plan;
}

BiasPlan expand_slopes(const Problem& p, size_t n, std::pair<int64_t, int64_t> range, bool direct) {
  const TermData& slopes = p.terms.biases[n].slopes;
  const int64_t span = range.second - range.first + 1;
  BiasPlan plan;
  plan.term = n;
  plan.sloped = true;
  plan.ramp = direct || span > kExpandFactor * (p.queries + p.keys) + kExpandFloor;
  if (plan.ramp) return plan;
  plan.window.lo = range.first;
  plan.window.width = span;
  plan.cells = Buffer<float>(p.heads * plan.row_size());
  for (int64_t h = 0; h < p.heads; ++h) {
    const double past = slopes.view.at({0, h}) * slopes.multiplier;
    const double future = slopes.view.at({1, h}) * slopes.multiplier;
    fill_cells(plan.cells.get() + h * plan.row_size(), span, [&](int64_t c) {
      const int64_t distance = plan.window.lo + std::clamp<int64_t>(c, 0, span - 1);
      return (distance < 0 ? past : future) * static_cast<double>(distance);
    });
  }
  return plan;
}

}  // namespace

void Plan::expand_bias(size_t n) {
  const DistanceBias& term = p.terms.biases[n];
  if (term.map) biases.push_back(expand_table(p, n, range));
  if (!term.slopes.view.given()) return;
  std::pair<int64_t, int64_t> read = shifts.range();
  if (read.first > read.second) read = {0, 0};
  biases.push_back(expand_slopes(p, n, read, direct));
}

void Plan::expand_key_biases() {
  if (p.terms.key_biases.empty()) return;
  for (const KeyBias& term : p.terms.key_biases) {
    if (term.values.view.rank == 3) key_bias_rows = p.batch;
  }
  key_bias = Buffer<double>(key_bias_rows * p.heads * tiles * kTile);
  std::fill_n(key_bias.get(), key_bias.size(), 0.0);
  CancelTicks tick;
  for (int64_t b = 0; b < key_bias_rows; ++b) {
    for (int64_t h = 0; h < p.heads; ++h) {
      double* row = key_bias.get() + (b * p.heads + h) * tiles * kTile;
      for (int64_t j = 0; j < p.keys; ++j) {
        tick();
        row[j] = to_log2(shifts.key_bias(b, h, j));
      }
    }
  }
}

void Plan::sum_query_added() {
  if (p.terms.query_added.empty()) return;
  query_added = Buffer<float>(p.heads * Dp);
  std::fill_n(query_added.get(), query_added.size(), 0.0f);
  for (int64_t h = 0; h < p.heads; ++h) {
    for (int64_t d = 0; d < D; ++d) {
      double sum = 0.0;
      for (const TermData& u : p.terms.query_added) sum += u.view.at({h, d}) * u.multiplier;
      query_added[h * Dp + d] = static_cast<float>(sum);
    }
  }
}

void Plan::find_peaks() {
  constexpr float kUnderflow = 126.0f;
  const bool decays = std::any_of(p.terms.rotations.begin(), p.terms.rotations.end(),
                                  [](const Rotation& r) { return !r.log_decay.empty(); });
  if (direct || decays || !p.positions.consecutive || !row_tables.empty() || !columns.empty() ||
      key_bias.size() > 0 || p.visible.floating_mask()) {
    return;
  }
  for (const BiasPlan& bias : biases) {
    if (bias.ramp) return;
    for (int64_t h = 0; h < p.heads; ++h) {
      check_cancelled();
      const float* row = bias.cells.get() + h * bias.row_size();
      const auto [low, high] = std::minmax_element(row, row + bias.row_size());
      skips_tiles = skips_tiles || *high - *low > kUnderflow;
    }
  }
  for (BiasPlan& bias : biases) {
    if (!skips_tiles) return;
    bias.peaks = Buffer<float>(p.heads * bias.peaks_per_head());
    for (int64_t h = 0; h < p.heads; ++h) {
      check_cancelled();
      const float* row = bias.cells.get() + h * bias.row_size();
      for (int64_t n = 0; n < bias.peaks_per_head(); ++n) {
        float& peak = bias.peaks[h * bias.peaks_per_head() + n];
        peak = -HUGE_VALF;
        for (int64_t c = n * kTile; c < std::min((n + 1) * kTile, bias.row_size()); ++c) {
          peak = std::isnan(row[c]) ? HUGE_VALF : std::max(peak, row[c]);
        }
      }
    }
  }
}

}  // namespace relpos
