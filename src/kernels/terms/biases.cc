#include "kernels/terms/biases.h"

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "kernels/block/log2.h"
#include "kernels/plan/table_cells.h"

namespace relpos {
namespace {

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

Biases::Sums::Sums(const Plan& plan, const TermGradients& wants, SumMemory& memory) {
  const int64_t group = plan.p.group();
  for (const BiasPlan& bias : plan.biases) {
    const TermGradients::Bias& gradient = wants.biases[bias.term];
    const bool needs = wanted(bias.sloped ? gradient.slopes : gradient.table);
    biases.push_back({memory.doubles(needs && !bias.ramp, group * bias.row_size()),
                      memory.doubles(needs && bias.sloped, 2 * group)});
  }
}

int64_t Biases::bytes(const Plan& plan) {
  int64_t cells = 0;
  for (const BiasPlan& bias : plan.biases) {
    if (!bias.ramp) cells += plan.p.group() * bias.row_size();
  }
  return cells * static_cast<int64_t>(sizeof(double));
}

Biases::Biases(const Plan& plan, Workspace& memory) : Term(plan) {
  for (const BiasPlan& bias : plan.biases) {
    own_.push_back(
        {memory.take<float>(bias.by_tiles ? plan.p.group() * kOwnStride : 0), {}, {}, {}});
    const double unit = plan.p.terms.biases[bias.term].table.multiplier * kLog2e;
    std::fill_n(own_.back().unit, kRows, static_cast<float>(unit));
  }
  for (const BiasPlan& bias : plan.biases) {
    if (!plan.backward) break;
    cells_.push_back(memory.zeros<float>(bias.ramp ? 0 : kGroup * bias.row_size()));
  }
}

void Biases::attach(Block& block, const float* /*queries*/) {
  int64_t nearest[kRows] = {};
  bool by_pair = false;  // a row sees far keys on both sides: slopes are evaluated pair by pair
  block.shifted = false;
  std::fill_n(block.shift, block.rows, 0);
  std::fill_n(block.score_shift, block.rows, 0.0);
  for (int row = 0; row < block.rows && plan_.shifts.active(); ++row) {
    const RowShift shift = plan_.shifts.of(block.batch, block.head[row], block.index[row]);
    nearest[row] = shift.distance;
    by_pair = by_pair || shift.both_sides;
    block.shift[row] = shift.both_sides ? 0 : shift.distance;
    block.shifted = block.shifted || block.shift[row] != 0;
    block.score_shift[row] = shift.total();
    block.key_shift[row] = shift.keys * kLog2e;
  }
  for (int64_t n = 0; n < std::ssize(plan_.biases); ++n) {
    const BiasPlan& bias = plan_.biases[n];
    const bool ramp = bias.sloped && (bias.ramp || by_pair);
    Panel panel;
    panel.lo = bias.window.lo;
    panel.width = bias.window.width;
    panel.stride = bias.row_size();
    panel.row_of = block.head;
    panel.shift = bias.sloped && block.shifted ? block.shift : nullptr;
    panel.at = bias.at;
    if (!ramp) panel.cells = bias.cells.get();
    if (bias.by_tiles) {
      own_[n].cut = {};
      std::transform(block.head, block.head + block.rows, own_head_,
                     [&](int64_t head) { return head - block.head[0]; });
      panel.cells = own_[n].cells.get();
      panel.stride = kOwnStride;
      panel.row_of = own_head_;
    }
    find_far_cells(block, n, panel);
    block.scores.push_back(panel);
    if (ramp) block.ramps.push_back(ramp_of(plan_, block, n, nearest));
  }
}

void Biases::find_far_cells(const Block& block, int64_t n, Panel& panel) {
  const bool may_be_far =
      panel.at == nullptr && panel.shift == nullptr && !plan_.biases[n].by_tiles;
  if (!may_be_far || panel.cells == nullptr || plan_.p.keys <= kTile) return;
  panel.write_far_cells(block.rows, own_[n].far_cells);
  panel.far_cells = own_[n].far_cells;
}

void Biases::before(Block& block, int64_t t, int64_t count) {
  for (size_t n = 0; n < own_.size(); ++n) {
    const BiasPlan& bias = plan_.biases[n];
    if (!bias.by_tiles) continue;
    const Cut to = plan_.cells_of_tiles(bias.window, block, t, count);
    if (to == own_[n].cut) continue;
    own_[n].cut = to;
    Panel& panel = block.scores[n];
    panel.lo = bias.window.lo + to.first;
    panel.width = to.width;
    if (read_in_place(block, n, to, panel)) continue;
    panel.cells = own_[n].cells.get();
    panel.stride = kOwnStride;
    panel.gate = nullptr;
    // A pad inside the window is read by no visible pair.
    const int64_t left = to.first == 0 ? kPad : 0;
    const int64_t right = to.end() == bias.window.width ? kPad : 0;
    for_each_head(block, [&](int64_t head, int row, int) {
      float* cells = own_[n].cells.get() + own_head_[row] * kOwnStride + kPad - left;
      write_cells(bias.window, plan_.p.terms.biases[bias.term].table, head, to.first - left,
                  left + to.width + right, CellUnit::kLog2, cells);
    });
  }
}

// Where the cells and their pads lie in the table, since the first and the last tiles of keys may read beyond
// it, and hold no number so large that log2 units squeeze it.
bool Biases::read_in_place(const Block& block, size_t n, const Cut& to, Panel& panel) {
  const BiasPlan& bias = plan_.biases[n];
  if (to.first < kPad || to.end() + kPad > bias.window.width) return false;
  const TermData& table = plan_.p.terms.biases[bias.term].table;
  const float* cells = cells_in_place(bias.window, table, block.head[0], to.first - kPad);
  if (cells == nullptr || !std::isnormal(own_[n].unit[0])) return false;
  bool linear = true;
  for_each_head(block, [&](int64_t, int row, int) {
    const float* read = cells + own_head_[row] * table.view.strides[0];
    linear = linear && plan_.kernels.linear(read, to.width + 2 * kPad, table.multiplier);
  });
  if (!linear) return false;
  panel.cells = cells;
  panel.stride = table.view.strides[0];
  panel.gate = own_[n].unit;
  return true;
}

void Biases::start(const BlockGradients& rows, const Sums& sums, const TermSums&) {
  for (size_t n = 0; n < cells_.size(); ++n) {
    Panel& panel = rows.block.scores[n];
    if (sums.biases[n].cells == nullptr || panel.cells == nullptr) continue;
    panel.gradient = cells_[n].get();
    // Neighbouring rows add to cells one apart: taking turns avoids store-forwarding stalls.
    panel.takes_turns = true;
  }
}

void Biases::finish(const BlockGradients& rows, const Sums& sums) {
  const Block& block = rows.block;
  const int64_t g = rows.g;
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
      if (shift == 0 || rows.state.reference[row] == -HUGE_VALF) continue;
      sums.biases[n].ramps[2 * g + (shift < 0 ? 0 : 1)] +=
          static_cast<double>(shift) * rows.row_sums[row];
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

void Biases::reduce(const Plan& plan, const Sums& sums, int64_t kv_head, TermGradients& to) {
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

}  // namespace relpos
