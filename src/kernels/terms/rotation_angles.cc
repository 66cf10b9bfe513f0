#include "kernels/terms/rotation_angles.h"

#include "base/parallel.h"
#include "kernels/block/load_rows.h"

namespace relpos {
namespace {

// How many numbers the frequencies of one head have.
int64_t numbers_of(const Rotation& rotation) {
  return rotation.by<Rotation::ByHead>()->frequency.view.shape[0] * (rotation.dims / 2);
}

}  // namespace

RotationAngles::TurnSums::TurnSums(const Plan& plan, const TermGradients& wants, SumMemory& memory,
                                   int64_t of_parts)
    : parts(of_parts) {
  for (size_t n = 0; n < wants.rotations.size(); ++n) {
    const bool wanted = !wants.rotations[n].head_frequency.empty();
    const int64_t numbers = wanted ? numbers_of(plan.p.terms.rotations[n]) : 0;
    turns.push_back(memory.doubles(wanted, parts * numbers));
  }
}

RotationAngles::RotationAngles(const Plan& plan, Workspace& memory)
    : Term(plan),
      unturned_(memory.take<float>(plan.backward && plan.query_added.size() > 0 ? plan.Dp : 0)) {}

void RotationAngles::add_gradients(const BlockGradients& rows, int row, int64_t kv_head,
                                   const Sums& sums) {
  const Block& block = rows.block;
  const float* query = rows.queries + row * plan_.Dp;
  const float* dq = rows.dq + row * plan_.Dp;
  if (plan_.query_added.size() > 0) {
    const float* added = plan_.query_added.get() + block.head[row] * plan_.Dp;
    for (int64_t d = 0; d < plan_.D; ++d) unturned_[d] = query[d] + added[d];
    query = unturned_.get();
  }
  const int64_t b = block.batch, i = block.index[row];
  for (size_t n = 0; n < sums.turns.size(); ++n) {
    plan_.rotations.add_table_gradients(n, true, b, kv_head, i, query, dq, rows.to.rotations[n]);
    if (sums.turns[n] == nullptr) continue;
    plan_.rotations.add_gradients(n, true, b, kv_head, i, query, dq, sums.turns[n]);
  }
}

void RotationAngles::finish(const BlockGradients& rows, const Sums& sums) {
  const Block& block = rows.block;
  for (int row = 0; row < block.rows && !plan_.rotations.none(); ++row) {
    const int64_t kv_head = block.head[row] / plan_.p.group();
    if (plan_.rotations.trains()) add_gradients(rows, row, kv_head, sums);
    plan_.rotations.undo(true, block.batch, kv_head, block.index[row], rows.dq + row * plan_.Dp);
  }
}

void RotationAngles::finish_key(const Plan& plan, const KeySums& sums, int64_t pair, int64_t j,
                                float* dk, float* key, TermGradients& to) {
  const int64_t b = pair / plan.p.kv_heads, kv_head = pair % plan.p.kv_heads;
  if (plan.rotations.trains()) {
    load_row(plan.p.key, b, kv_head, j, plan.D, plan.D, key);
    for (size_t n = 0; n < sums.turns.size(); ++n) {
      plan.rotations.add_table_gradients(n, false, b, kv_head, j, key, dk, to.rotations[n]);
      if (sums.turns[n] == nullptr) continue;
      double* own = sums.turns[n] + j / kTile * numbers_of(plan.p.terms.rotations[n]);
      plan.rotations.add_gradients(n, false, b, kv_head, j, key, dk, own);
    }
  }
  plan.rotations.undo(false, b, kv_head, j, dk);
}

bool RotationAngles::keeps_keys(const TermGradients& wants) {
  return std::ranges::any_of(wants.rotations, wanted, &TermGradients::Turns::head_frequency);
}

void RotationAngles::reduce_shared(const Plan& plan, const TurnSums& sums, int64_t kv_head,
                                   TermGradients& to) {
  for (size_t t = 0; t < sums.turns.size(); ++t) {
    if (sums.turns[t] == nullptr) continue;
    const Rotation& rotation = plan.p.terms.rotations[t];
    const TermData& data = rotation.by<Rotation::ByHead>()->frequency;
    const int64_t heads = data.view.shape[1], pairs = rotation.dims / 2;
    const int64_t numbers = numbers_of(rotation), head = heads == 1 ? 0 : kv_head;
    CancelTicks tick;
    for (int64_t n = 0; n < numbers; ++n) {
      tick(sums.parts);
      double sum = 0.0;
      for (int64_t part = 0; part < sums.parts; ++part) sum += sums.turns[t][part * numbers + n];
      to.rotations[t].head_frequency[(n / pairs * heads + head) * pairs + n % pairs] +=
          sum * data.multiplier;
    }
  }
}

}  // namespace relpos
