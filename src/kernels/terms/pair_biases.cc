#include "kernels/terms/pair_biases.h"

#include "base/parallel.h"

namespace relpos {
namespace {

int64_t sums_of(const Plan& plan, const PairBiasPlan& bias) {
  return (bias.heads == 1 ? 1 : plan.p.group()) * bias.classes;
}

}  // namespace

PairBiases::Sums::Sums(const Plan& plan, const TermGradients& wants, SumMemory& memory) {
  for (size_t n = 0; n < plan.pair_biases.size(); ++n) {
    const bool wants_own = wanted(wants.pair_biases[n].table);
    cells.push_back(memory.doubles(wants_own, sums_of(plan, plan.pair_biases[n])));
  }
}

int64_t PairBiases::bytes(const Plan& plan) {
  int64_t cells = 0;
  for (const PairBiasPlan& bias : plan.pair_biases) cells += sums_of(plan, bias);
  return cells * static_cast<int64_t>(sizeof(double));
}

PairBiases::PairBiases(const Plan& plan, Workspace& memory) : Term(plan) {
  for (const PairBiasPlan& bias : plan.pair_biases) {
    if (!plan.backward) break;
    cells_.push_back(memory.zeros<float>(bias.stride));
  }
}

void PairBiases::attach(Block& block, const float* /*queries*/) {
  for (size_t n = 0; n < plan_.pair_biases.size(); ++n) {
    const PairBiasPlan& bias = plan_.pair_biases[n];
    const PairClasses& classes = plan_.p.terms.pair_biases[n].classes;
    PairPanel& panel = block.pairs.emplace_back(pair_panel(classes, bias.classes, block.batch));
    panel.cells = bias.cells.get();
    panel.cell_stride = bias.heads == 1 ? 0 : bias.stride;
    panel.row_of = block.head;
    panel.sums_rows = true;
  }
}

void PairBiases::start(const BlockGradients& rows, const Sums& sums, const TermSums&) {
  for (size_t n = 0; n < cells_.size(); ++n) {
    if (sums.cells[n] != nullptr) rows.block.pairs[n].gradient = cells_[n].get();
  }
}

void PairBiases::after_tile(const BlockGradients& rows, const KeyTile& /*tile*/, int64_t /*t*/,
                            const Sums& sums, const TermSums&) {
  for (size_t n = 0; n < cells_.size(); ++n) {
    if (sums.cells[n] == nullptr) continue;
    const PairBiasPlan& bias = plan_.pair_biases[n];
    double* to = sums.cells[n] + (bias.heads == 1 ? 0 : rows.g) * bias.classes;
    float* from = cells_[n].get();
    for (int64_t c = 0; c < bias.classes; ++c) to[c] += static_cast<double>(from[c]);
    std::fill_n(from, bias.stride, 0.0f);
  }
}

void PairBiases::reduce(const Plan& plan, const Sums& sums, int64_t kv_head, TermGradients& to) {
  for (size_t n = 0; n < plan.pair_biases.size(); ++n) {
    const PairBiasPlan& bias = plan.pair_biases[n];
    if (sums.cells[n] == nullptr || bias.heads == 1) continue;
    const int64_t numbers = plan.p.group() * bias.classes;
    double* gradient = to.pair_biases[n].table.data() + kv_head * numbers;
    const double by = plan.p.terms.pair_biases[n].table.multiplier;
    for (int64_t c = 0; c < numbers; ++c) gradient[c] += sums.cells[n][c] * by;
  }
}

void PairBiases::reduce_shared(const Plan& plan, const Sums& sums, int64_t /*kv_head*/,
                               TermGradients& to) {
  for (size_t n = 0; n < plan.pair_biases.size(); ++n) {
    const PairBiasPlan& bias = plan.pair_biases[n];
    if (sums.cells[n] == nullptr || bias.heads != 1) continue;
    const double by = plan.p.terms.pair_biases[n].table.multiplier;
    std::vector<double>& gradient = to.pair_biases[n].table;
    for (int64_t c = 0; c < bias.classes; ++c) gradient[c] += sums.cells[n][c] * by;
  }
}

}  // namespace relpos
