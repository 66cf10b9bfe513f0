#include "kernels/terms/gradient_sums.h"

#include <algorithm>
#include <utility>

#include "base/zeros.h"
#include "kernels/block/load_rows.h"

namespace relpos {

float* SumMemory::floats(bool wanted, int64_t n) {
  if (!wanted) return nullptr;
  return floats_.emplace_back(memory_.take<float>(n)).get();
}

double* SumMemory::doubles(bool wanted, int64_t n) {
  if (!wanted) return nullptr;
  return doubles_.emplace_back(memory_.take<double>(n)).get();
}

float* SumMemory::by_key(bool wanted, int64_t heads, int64_t size) {
  if (!wanted) return nullptr;
  const int64_t keys = std::ssize(open_) * kTile;
  by_key_.push_back({memory_.take<float>(heads * keys * size), heads, size});
  return by_key_.back().sums.get();
}

void SumMemory::clear() {
  for (const Buffer<float>& sums : floats_) fill_zeros(sums.get(), sums.size());
  for (const Buffer<double>& sums : doubles_) fill_zeros(sums.get(), sums.size());
  std::fill(open_.begin(), open_.end(), uint8_t{0});
}

void SumMemory::open(int64_t t) {
  if (std::exchange(open_[t], uint8_t{1}) != 0) return;
  for (const ByKey& own : by_key_) {
    const int64_t tile = kTile * own.size, head = std::ssize(open_) * tile;
    for (int64_t h = 0; h < own.heads; ++h) {
      std::fill_n(own.sums.get() + h * head + t * tile, tile, 0.0f);
    }
  }
}

int64_t ChunkSums::bytes(const Plan& plan) {
  int64_t sum = 0;
  EveryTerm::for_each([&]<typename Kind>() { sum += Kind::bytes(plan); });
  return sum;
}

KeySums::KeySums(const Plan& plan, const TermGradients& wants, int64_t blocks, Workspace& memory)
    : memory_(memory, plan.tiles),
      dk(memory_.by_key(true, 1, plan.Dp)),
      dv(memory_.by_key(true, 1, plan.Dvp)),
      order(blocks),
      terms_(plan, wants, memory_) {}

bool KeySums::of_terms(const TermGradients& wants) {
  bool any = false;
  EveryTerm::for_each([&]<typename Kind>() { any = any || Kind::keeps_keys(wants); });
  return any;
}

void KeySums::clear() {
  order.clear();
  memory_.clear();
}

namespace {

// Calls f(entries, worker) for pieces of a table, many at one time: all entries that read one row are in
// one piece.
template <typename F>
void in_row_pieces(const TablePlan& table, int threads, Stopper& stopper, F&& f) {
  constexpr int64_t kEntries = 8;  // of a piece, at least
  const std::vector<int64_t> order = table.by_class();
  const auto size = static_cast<int64_t>(order.size());
  const auto start = [&](int64_t piece) -> int64_t {
    if (piece == 0 || piece * kEntries >= size) return std::min(size, piece * kEntries);
    const auto by_row = [&](int64_t a, int64_t b) { return table.before(a, b); };
    return std::upper_bound(order.begin(), order.end(), order[piece * kEntries - 1], by_row) -
           order.begin();
  };
  parallel_for((size + kEntries - 1) / kEntries, threads, stopper, [&](int64_t piece, int worker) {
    f(std::span{order.begin() + start(piece), order.begin() + start(piece + 1)}, worker);
  });
}

}  // namespace

void reduce_terms(const Plan& plan, const std::vector<ChunkSums>& sums,
                  std::span<const KeySums> keys, int64_t first_pair, int64_t pairs, int64_t chunks,
                  int threads, Stopper& stopper, TermGradients& to) {
  const Problem& p = plan.p;
  const auto kv_head = [&](int64_t pair) { return (first_pair + pair) % p.kv_heads; };
  parallel_for(std::min(pairs, p.kv_heads), threads, stopper, [&](int64_t first, int worker) {
    for (int64_t n = first; n < pairs && !stopper.stopped(worker); n += p.kv_heads) {
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const ChunkSums& own = sums[n * chunks + chunk];
        EveryTerm::for_each(
            [&]<typename Kind>() { Kind::reduce(plan, own.of<Kind>(), kv_head(n), to); });
      }
      if (keys.empty()) continue;
      EveryTerm::for_each([&]<typename Kind>() {
        const int64_t b = (first_pair + n) / p.kv_heads;
        Kind::reduce_keys(plan, keys[n].of<Kind>(), b, kv_head(n), to);
      });
    }
  });
  EveryTerm::for_each([&]<typename Kind>() {
    for (int64_t n = 0; n < pairs; ++n) {  // one pair after another, however many a wave has
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        Kind::reduce_shared(plan, sums[n * chunks + chunk].of<Kind>(), kv_head(n), to);
      }
      if (!keys.empty()) Kind::reduce_shared(plan, keys[n].of<Kind>(), kv_head(n), to);
    }
    Kind::reduce_tables(
        plan, to,
        [&](const TablePlan& table, const TermData& data, double scale,
            std::vector<double>& gradient, const auto& sums_of) {
          if (gradient.empty()) return;
          in_row_pieces(table, threads, stopper, [&](std::span<const int64_t> entries, int worker) {
            for (int64_t n = 0; n < pairs * chunks && !stopper.stopped(worker); ++n) {
              sums_of(sums[n].of<Kind>())
                  .reduce(table, data, kv_head(n / chunks), p.group(), scale, entries, gradient);
            }
          });
        });
  });
}

KeyWriter::KeyWriter(const Plan& plan, int threads, Workspace& memory)
    : plan_(plan),
      rows_(memory.take<float>(
          plan.unit == nullptr ? 0 : threads * kTile * std::max(plan.Dp, plan.Dvp))),
      keys_(memory.take<float>(plan.rotations.trains() ? threads * plan.D : 0)) {}

float* KeyWriter::rows_of(float* sums, int64_t t, int64_t n, int worker) const {
  const int64_t padded = round_up(n, kLanes);
  sums += t * kTile * padded;
  if (plan_.unit == nullptr) return sums;
  float* rows = rows_.get() + worker * kTile * std::max(plan_.Dp, plan_.Dvp);
  alignas(64) float block[kTile * kTile];
  for (int64_t d = 0; d < n; d += kTile) {
    const int64_t some = std::min(kTile, n - d);
    plan_.kernels.transpose(sums + d * kTile, kTile, some, kTile, block);
    for (int64_t key = 0; key < kTile; ++key) {
      std::copy_n(block + key * kTile, some, rows + key * padded + d);
    }
  }
  return rows;
}

void KeyWriter::write(KeySums& sums, int64_t pair, int64_t t, int worker,
                      const ProblemGradients& gradients) const {
  const Problem& p = plan_.p;
  const int64_t Dp = plan_.Dp, Dvp = plan_.Dvp;
  const auto scale = static_cast<float>(plan_.key_gradient_scale());
  constexpr float kOne = 1.0f;
  const int64_t b = pair / p.kv_heads, kv_head = pair % p.kv_heads;
  const int64_t first = t * kTile, count = std::min(kTile, p.keys - first);
  sums.open(t);
  if (gradients.value.given()) {
    float* dv = rows_of(sums.dv, t, plan_.Dv, worker);
    store_scaled(plan_.kernels, gradients.value, b, kv_head, first, count, plan_.Dv, dv, Dvp, &kOne,
                 0);
  }
  float* dk = rows_of(sums.dk, t, plan_.D, worker);
  bool reads_dk = false;
  EveryTerm::for_each([&]<typename Kind>() { reads_dk = reads_dk || Kind::reads_dk(plan_); });
  if (!reads_dk) {
    if (!gradients.key.given()) return;
    return store_scaled(plan_.kernels, gradients.key, b, kv_head, first, count, plan_.D, dk, Dp,
                        &scale, 0);
  }
  plan_.kernels.scale(count, Dp, dk, Dp, &scale, 0, dk, Dp);
  float* key = keys_.get() + worker * (plan_.rotations.trains() ? plan_.D : 0);
  for (int64_t j = 0; j < count; ++j) {
    float* row = dk + j * Dp;
    EveryTerm::for_each([&]<typename Kind>() {
      Kind::finish_key(plan_, sums.of<Kind>(), pair, first + j, row, key, *gradients.terms);
    });
    if (gradients.key.given()) store_row(gradients.key, b, kv_head, first + j, plan_.D, row);
  }
}

}  // namespace relpos
