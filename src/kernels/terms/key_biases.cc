#include "kernels/terms/key_biases.h"

#include "base/parallel.h"

namespace relpos {

bool KeyBiases::keeps_keys(const TermGradients& wants) {
  return std::ranges::any_of(wants.key_biases, wanted, &TermGradients::Values::table);
}

KeyBiases::KeySums::KeySums(const Plan& plan, const TermGradients& wants, SumMemory& memory)
    : sums(memory.by_key(keeps_keys(wants), plan.p.group(), 1)) {}

void KeyBiases::attach(Block& block, const float* /*queries*/) {
  std::fill_n(block.key_bias, kRows, nullptr);
  const int64_t batch = plan_.key_bias_rows == 1 ? 0 : block.batch;
  for (int row = 0; row < block.rows && plan_.key_bias.size() > 0; ++row) {
    block.key_bias[row] =
        plan_.key_bias.get() + (batch * plan_.p.heads + block.head[row]) * plan_.tiles * kTile;
  }
}

void KeyBiases::start(const BlockGradients& rows, const TermSums&, const KeySums& keys) {
  rows.state.key_bias = keys.sums == nullptr ? nullptr : keys.sums + rows.g * plan_.tiles * kTile;
}

void KeyBiases::reduce_keys(const Plan& plan, const KeySums& keys, int64_t b, int64_t kv_head,
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
            static_cast<double>(keys.sums[g * plan.tiles * kTile + j]) * data.multiplier;
      }
    }
  }
}

}  // namespace relpos
