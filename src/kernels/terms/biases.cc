#include "kernels/terms/biases.h"

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "kernels/plan/write_out.h"

namespace relpos {
namespace {

// Slopes are expanded over every distance that occurs while those stay this close to Lq + Lk.
constexpr int64_t kExpandFactor = 4, kExpandFloor = 4096;

// The cells [kPad][width][kPad] of each head: value(h, c), c from -kPad on.
template <typename F>
void fill_cells(const Problem& p, BiasPlan& plan, Workspace& memory, F&& value) {
  const int64_t size = plan.row_size();
  plan.cells = memory.take<float>(p.heads * size);
  in_pieces_of_rows(p, p.heads, size, [&](int64_t h, int64_t from, int64_t to) {
    float* cells = plan.cells.get() + h * size;
    for (int64_t n = from; n < to; ++n) cells[n] = static_cast<float>(to_log2(value(h, n - kPad)));
  });
}

BiasPlan expand_table(const Problem& p, int64_t n, std::pair<int64_t, int64_t> range,
                      Workspace& memory) {
  const DistanceBias& term = p.terms.biases[n];
  BiasPlan plan;
  plan.term = n;
  plan.window = Window(*term.map, range, memory);
  fill_cells(p, plan, memory, [&](int64_t h, int64_t c) {
    const int64_t row = plan.window.class_of(c);
    return row == ClassMap::kNone ? 0.0 : term.table.view.at({h, row}) * term.table.multiplier;
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
  fill_cells(p, plan, memory, [&](int64_t h, int64_t c) {
    const int64_t distance = range.first + std::clamp<int64_t>(c, 0, span - 1);
    const double slope = slopes.view.at({distance < 0 ? 0 : 1, h}) * slopes.multiplier;
    return slope * static_cast<double>(distance);
  });
  return plan;
}

Ramp ramp_of(const Plan& plan, const Block& block, int64_t n, const int64_t* nearest) {
  const TermData& slopes = plan.p.terms.biases[plan.biases[n].term].slopes;
  Ramp ramp;
  ramp.bias = n;
  for (int row = 0; row < block.rows; ++row) {
    ramp.past[row] = slopes.view.at({0, block.head[row]}) * slopes.multiplier * kLog2e;
    ramp.future[row] = slopes.view.at({1, block.head[row]}) * slopes.multiplier * kLog2e;
    ramp.shift[row] = nearest[row] == 0 ? 0.0 : ramp(row, nearest[row]);
  }
  return ramp;
}

}  // namespace

std::vector<BiasPlan> expand_biases(const Problem& p, std::pair<int64_t, int64_t> range,
                                    const CoordinateList& coordinates, const Shifts& shifts,
                                    bool direct, Workspace& memory) {
  std::vector<BiasPlan> plans;
  for (int64_t n = 0; n < std::ssize(p.terms.biases); ++n) {
    if (p.terms.biases[n].map) {
      const CoordinateTiles* at = coordinates.of(p.terms.biases[n]);
      plans.push_back(expand_table(p, n, at == nullptr ? range : at->range(), memory));
      plans.back().at = at;
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
      p.visible.floating_mask()) {
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

void attach_biases(const Plan& plan, Block& block) {
  int64_t nearest[kRows] = {};
  bool by_pair = false;  // a row sees far keys on both sides: slopes are evaluated pair by pair
  block.shifted = false;
  std::fill_n(block.shift, block.rows, 0);
  std::fill_n(block.score_shift, block.rows, 0.0);
  std::fill_n(block.key_bias, kRows, nullptr);
  for (int row = 0; row < block.rows && plan.shifts.active(); ++row) {
    const RowShift shift = plan.shifts.of(block.batch, block.head[row], block.index[row]);
    nearest[row] = shift.distance;
    by_pair = by_pair || shift.both_sides;
    block.shift[row] = shift.both_sides ? 0 : shift.distance;
    block.shifted = block.shifted || block.shift[row] != 0;
    block.score_shift[row] = shift.total();
    block.key_shift[row] = shift.keys * kLog2e;
    if (plan.key_bias.size() == 0) continue;
    const int64_t batch = plan.key_bias_rows == 1 ? 0 : block.batch;
    block.key_bias[row] =
        plan.key_bias.get() + (batch * plan.p.heads + block.head[row]) * plan.tiles * kTile;
  }
  for (int64_t n = 0; n < std::ssize(plan.biases); ++n) {
    const BiasPlan& bias = plan.biases[n];
    const bool ramp = bias.sloped && (bias.ramp || by_pair);
    Panel panel;
    panel.lo = bias.window.lo;
    panel.width = bias.window.width;
    panel.stride = bias.row_size();
    panel.row_of = block.head;
    panel.shift = bias.sloped && block.shifted ? block.shift : nullptr;
    panel.at = bias.at;
    if (!ramp) panel.cells = bias.cells.get();
    block.scores.push_back(panel);
    if (ramp) block.ramps.push_back(ramp_of(plan, block, n, nearest));
  }
}

BiasGradients::BiasGradients(const Plan& plan, Workspace& memory) : plan_(plan) {
  for (const BiasPlan& bias : plan.biases) {
    cells_.push_back(memory.zeros<float>(bias.ramp ? 0 : kGroup * bias.row_size()));
  }
}

void BiasGradients::attach(Block& block, const Sums& sums) const {
  for (size_t n = 0; n < cells_.size(); ++n) {
    Panel& panel = block.scores[n];
    if (sums.biases[n].cells == nullptr || panel.cells == nullptr) continue;
    panel.gradient = cells_[n].get();
    // Neighbouring rows add to cells one apart: taking turns avoids store-forwarding stalls.
    panel.takes_turns = true;
  }
}

void BiasGradients::finish(const Block& block, const BackwardState& state, int64_t g,
                           const Sums& sums, const double* row_sums) {
  for (size_t n = 0; n < cells_.size(); ++n) {
    const BiasPlan& bias = plan_.biases[n];
    const Panel& panel = block.scores[n];
    if (panel.gradient != nullptr) {
      const bool anywhere = panel.shift != nullptr || panel.at != nullptr;
      const Cut touched = anywhere ? Cut{0, bias.window.width} : bias.window.cut(block.range);
      double* to = sums.biases[n].cells + g * panel.stride + touched.first;
      float* from = panel.gradient + touched.first;
      in_pieces(touched.width + 2 * kPad, [&](int64_t begin, int64_t end) {
        for (int64_t c = begin; c < end; ++c) {
          for (int64_t r = 0; r < kGroup; ++r) {
            to[c] += static_cast<double>(std::exchange(from[r * panel.stride + c], 0.0f));
          }
        }
      });
    }
    if (sums.biases[n].ramps == nullptr || !block.shifted) continue;
    // What the shifts left out.
    for (int row = 0; row < block.rows; ++row) {
      const int64_t shift = block.shift[row];
      if (shift == 0 || state.reference[row] == -HUGE_VALF) continue;
      sums.biases[n].ramps[2 * g + (shift < 0 ? 0 : 1)] +=
          static_cast<double>(shift) * row_sums[row];
    }
  }
  for (const Ramp& ramp : block.ramps) {
    double* to = sums.biases[ramp.bias].ramps;
    for (int row = 0; row < block.rows && to != nullptr; ++row) {
      to[2 * g] += ramp.past_sum[row];
      to[2 * g + 1] += ramp.future_sum[row];
    }
  }
}

void reduce_biases(const Plan& plan, const Sums& sums, int64_t kv_head, TermGradients& to) {
  const Problem& p = plan.p;
  CancelTicks tick;
  for (size_t n = 0; n < plan.biases.size(); ++n) {
    const BiasPlan& bias = plan.biases[n];
    const auto& [cells, ramps] = sums.biases[n];
    const DistanceBias& term = p.terms.biases[bias.term];
    TermGradients::Bias& gradient = to.biases[bias.term];
    for (int64_t g = 0; g < p.group(); ++g) {
      const int64_t h = kv_head * p.group() + g;
      double past = 0.0, future = 0.0;
      for (int64_t c = -kPad; cells != nullptr && c < bias.window.width + kPad; ++c) {
        tick();
        const double cell = cells[g * bias.row_size() + kPad + c];
        if (bias.sloped) {  // no visible pair lies in the pads
          const int64_t at = std::clamp<int64_t>(c, 0, bias.window.width - 1);
          const int64_t distance = bias.window.lo + at;
          (distance < 0 ? past : future) += cell * static_cast<double>(distance);
        } else if (const int64_t row = bias.window.class_of(c); row != ClassMap::kNone) {
          gradient.table[h * term.table.view.shape[1] + row] += cell * term.table.multiplier;
        }
      }
      if (ramps == nullptr) continue;
      gradient.slopes[h] += (past + ramps[2 * g]) * term.slopes.multiplier;
      gradient.slopes[p.heads + h] += (future + ramps[2 * g + 1]) * term.slopes.multiplier;
    }
  }
}

void reduce_key_biases(const Plan& plan, const float* sums, int64_t b, int64_t kv_head,
                       TermGradients& to) {
  const Problem& p = plan.p;
  CancelTicks tick;
  for (size_t n = 0; n < p.terms.key_biases.size(); ++n) {
    std::vector<double>& gradient = to.key_biases[n].table;
    if (gradient.empty()) continue;
    const TermData& data = p.terms.key_biases[n].values;
    for (int64_t g = 0; g < p.group(); ++g) {
      const int64_t h = (data.view.rank == 3 ? b * p.heads : 0) + kv_head * p.group() + g;
      for (int64_t j = 0; j < p.keys; ++j) {
        tick();
        gradient[h * p.keys + j] +=
            static_cast<double>(sums[g * plan.tiles * kTile + j]) * data.multiplier;
      }
    }
  }
}

}  // namespace relpos
