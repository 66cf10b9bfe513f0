#include "kernels/drive/backward_block.h"

#include <algorithm>
#include <cmath>

#include "kernels/block/load_rows.h"
#include "kernels/block/softmax_state.h"

namespace relpos {
namespace {

bool caps_under_mask(const Problem& p) { return p.softcap != 0.0 && p.visible.floating_mask(); }

}  // namespace

BackwardBlock::BackwardBlock(const Plan& plan, Workspace& memory)
    : QueryBlock(plan, memory),
      dout_(memory.take<float>(kRows * plan.Dvp)),
      out_(memory.take<float>(plan.Dvp)),
      dq_(memory.take<float>(kRows * plan.Dp)),
      p_(memory.take<float>(kRows * kTile)),
      ds_(memory.take<float>(kRows * kTile)),
      narrow_dout_(plan, plan.Dv, plan.pairs.Dvq(), memory),
      tile_dq_(memory.take<float>(plan.rotations.decays() ? kRows * plan.Dp : 0)),
      mask_ds_(memory.take<float>(caps_under_mask(plan.p) ? kRows * kTile : 0)) {
  state.dout = dout_.get();
  state.dq = dq_.get();
  state.p = p_.get();
  state.ds = ds_.get();
  state.narrow_dout = narrow_dout_.rows();
  state.narrow_dout_t = narrow_dout_.transposed();
}

void BackwardBlock::start(BlockSums& sums, const Outputs& from, const ProblemGradients& gradients) {
  load();
  const int64_t end = padded_rows();
  const BlockGradients rows = rows_of(sums, *gradients.terms);
  load_states(sums, from, rows);
  std::fill(dout_.get() + block.rows * plan_.Dvp, dout_.get() + end * plan_.Dvp, 0.0f);
  std::fill(state.reference + block.rows, state.reference + end, -HUGE_VALF);
  std::fill(state.inverse + block.rows, state.inverse + end, 0.0f);
  std::fill(state.delta + block.rows, state.delta + end, 0.0f);
  if (plan_.unit != nullptr) narrow_dout_.set(dout_.get(), block.rows);
  std::fill_n(dq_.get(), end * plan_.Dp, 0.0f);
  state.rows_finite = plan_.kernels.finite(block.q, block.rows * plan_.Dp) &&
                      plan_.kernels.finite(dout_.get(), block.rows * plan_.Dvp);
  state.all_weigh = block.rows == end && std::none_of(state.reference, state.reference + end,
                                                      [](float m) { return m == -HUGE_VALF; });
  const KeySums& keys = sums.keys;
  state.dk = keys.dk;
  state.dv = keys.dv;
  state.sums = &sums;
  state.take_turn = [](void* own, int64_t t) { return static_cast<BlockSums*>(own)->take(t); };
  state.mask_gradient = gradients.mask;
  state.mask_index = &gradients.mask_index;
  state.mask_ds = gradients.mask != nullptr && mask_ds_.size() > 0 ? mask_ds_.get() : state.ds;
  state.mask_rows = gradients.mask_rows.given() ? &gradients.mask_rows : nullptr;
  terms_.for_each([&]<typename Kind>(Kind& kind) {
    kind.start(rows, sums.terms.of<Kind>(), keys.of<Kind>());
    kind.clear(block);
  });
  state.bounded = from.softmax.rank == 3;  // a caller's lse
  sums_rows_ = state.bounded && block.shifted;
  if (sums_rows_) std::fill_n(row_sums_, kRows, 0.0);
}

void BackwardBlock::sum_rows() {
  for (int row = 0; row < block.rows; ++row) {
    const float* ds = state.ds + row * kTile;
    for (int64_t c = 0; c < kTile; ++c) row_sums_[row] += static_cast<double>(ds[c]);
  }
}

// dout and delta; both divided by the sum of the row's weights, or the inverse of that (block.h).
void BackwardBlock::load_states(const BlockSums& sums, const Outputs& from,
                                const BlockGradients& to) {
  const int64_t Dvp = plan_.Dvp;
  const float* rows = plan_.Dv == Dvp
                          ? row_in_place(from.dout, block.batch, block.head[0], block.index[0])
                          : nullptr;
  const bool in_place = rows != nullptr;
  const int64_t stride = in_place ? from.dout.strides[2] : Dvp;
  for (int row = 0; row < block.rows && !in_place; ++row) {
    load_row(from.dout, block.batch, block.head[row], block.index[row], plan_.Dv, Dvp,
             dout_.get() + row * Dvp);
  }
  if (!in_place) rows = dout_.get();
  for (int row = 0; row < block.rows; ++row) {
    load_state(row, rows + row * stride, sums, from, to);
  }
  constexpr float kOne = 1.0f;
  const bool divides = plan_.unit == nullptr;
  plan_.kernels.scale(block.rows, Dvp, rows, stride, divides ? state.inverse : &kOne,
                      divides ? 1 : 0, dout_.get(), Dvp);
}

void BackwardBlock::load_state(int row, const float* dout, const BlockSums& sums,
                               const Outputs& from, const BlockGradients& rows) {
  const int64_t h = block.head[row], i = block.index[row], b = block.batch;
  const float* out = plan_.Dv == plan_.Dvp ? row_in_place(from.out, b, h, i) : nullptr;
  if (out == nullptr) {
    load_row(from.out, b, h, i, plan_.Dv, plan_.Dvp, out_.get());
    out = out_.get();
  }
  const double dlse = from.dlse.given() ? from.dlse.at({b, h, i}) : 0.0;
  const double delta = plan_.kernels.dot(dout, out, plan_.Dvp) - dlse;
  const SoftmaxState softmax = read_softmax(from.softmax, b, h, i, block.score_shift[row]);
  const auto inverse = static_cast<float>(1.0 / softmax.sum);
  state.inverse[row] = inverse;
  state.delta[row] = static_cast<float>(plan_.unit == nullptr ? delta / softmax.sum : delta);
  state.reference[row] = static_cast<float>(softmax.reference);
  row_sums_[row] = dlse - Sinks::send(plan_.p, rows, row, softmax, delta, sums.terms.of<Sinks>());
}

void BackwardBlock::backward(const KeyTile* tiles, int64_t t, int64_t count, BlockSums& sums,
                             TermGradients& to) {
  const bool decays = plan_.rotations.decays();
  const BlockGradients rows = rows_of(sums, to);
  terms_.for_each(
      [&]<typename Kind>(Kind& kind) { kind.leave(rows, t, count, sums.terms.of<Kind>()); });
  bring(t, count);
  over_tiles(tiles, t, count, state.rows_finite ? state.reference : nullptr,
             [&](const KeyTile* some, int64_t first, int64_t n) {
               if (decays) {
                 state.dq = tile_dq_.get();
                 std::fill_n(tile_dq_.get(), tile_dq_.size(), 0.0f);
               }
               for (int64_t tile = 0; tile < n; ++tile) {
                 const KeyTile* next = tile + 1 < n ? some + tile + 1 : nullptr;
                 if (state.mask_ds != state.ds) std::fill_n(state.mask_ds, kRows * kTile, 0.0f);
                 plan_.kernels.backward(block, state, some[tile], first + tile, next);
                 send_to_mask(first + tile, sums);
                 if (sums_rows_) sum_rows();
                 terms_.for_each([&]<typename Kind>(Kind& kind) {
                   kind.after_tile(rows, some[tile], first + tile, sums.terms.of<Kind>(),
                                   sums.keys.of<Kind>());
                 });
                 sums.leave_before(first + tile + 1);
               }
               if (!decays) return;
               plan_.kernels.scale_columns(block.rows, plan_.Dp, tile_dq_.get(), decay_.get(),
                                           dq_.get(), true);
             });
}

void BackwardBlock::send_to_mask(int64_t t, BlockSums& sums) {
  if (sums.mask && sums.mask->take(t)) plan_.kernels.add_mask_gradients(block, state, t);
}

void BackwardBlock::finish(const BlockSums& sums, const ProblemGradients& gradients) {
  const int64_t D = plan_.D, Dp = plan_.Dp;
  const auto scale = static_cast<float>(plan_.p.scale);
  bool reads_dq = false;
  terms_.for_each([&]<typename Kind>(Kind& kind) {
    reads_dq = reads_dq || kind.reads_dq(sums.terms.of<Kind>());
  });
  if (reads_dq) plan_.kernels.scale(block.rows, Dp, dq_.get(), Dp, &scale, 0, dq_.get(), Dp);
  const BlockGradients rows = rows_of(sums, *gradients.terms);
  terms_.for_each([&]<typename Kind>(Kind& kind) { kind.finish(rows, sums.terms.of<Kind>()); });
  if (!gradients.query.given()) return;
  if (!reads_dq) {
    return store_scaled(plan_.kernels, gradients.query, block.batch, block.head[0], block.index[0],
                        block.rows, D, dq_.get(), Dp, &scale, 0);
  }
  for (int row = 0; row < block.rows; ++row) {
    store_row(gradients.query, block.batch, block.head[row], block.index[row], D,
              dq_.get() + row * Dp);
  }
}

}  // namespace relpos
