// The factors of dropout in lanes, for the SIMD target that includes this.
#if defined(RELPOS_DROPOUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RELPOS_DROPOUT_INL_H_
#undef RELPOS_DROPOUT_INL_H_
#else
#define RELPOS_DROPOUT_INL_H_
#endif

#include <hwy/highway.h>

#include <array>

#include "kernels/block/block.h"
#include "kernels/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {
namespace {

// Threefry4x32::words in lanes: word n of lane i is word n of counter `first` with i added to its low
// 32 bits, which must not carry.
template <int kRound = 0, class D, class W>
HWY_INLINE void threefry_rounds(D d, const std::array<uint32_t, 5>& keys, W& x0, W& x1, W& x2,
                                W& x3) {
  if constexpr (kRound < Threefry4x32::kRounds) {
    constexpr int kTurn0 = 32 - Threefry4x32::kRotations[kRound % 8][0];
    constexpr int kTurn1 = 32 - Threefry4x32::kRotations[kRound % 8][1];
    W &first = kRound % 2 == 0 ? x1 : x3, &second = kRound % 2 == 0 ? x3 : x1;
    x0 = hn::Add(x0, first);
    first = hn::Xor(hn::RotateRight<kTurn0>(first), x0);
    x2 = hn::Add(x2, second);
    second = hn::Xor(hn::RotateRight<kTurn1>(second), x2);
    if constexpr (kRound % 4 == 3) {
      constexpr uint32_t kStep = kRound / 4 + 1;
      x0 = hn::Add(x0, hn::Set(d, keys[kStep % 5]));
      x1 = hn::Add(x1, hn::Set(d, keys[(kStep + 1) % 5]));
      x2 = hn::Add(x2, hn::Set(d, keys[(kStep + 2) % 5]));
      x3 = hn::Add(x3, hn::Set(d, keys[(kStep + 3) % 5] + kStep));
    }
    threefry_rounds<kRound + 1>(d, keys, x0, x1, x2, x3);
  }
}

// The factors of dropout for keys that are any columns: each lane has a counter of its own, of which
// it wants one word.
HWY_INLINE void scattered_factors(const Dropout& dropout, const Dropout::Columns& columns,
                                  int64_t row, const std::array<uint32_t, 5>& keys,
                                  float* factors) {
  const F d;
  const hn::RebindToUnsigned<F> du;
  const Threefry4x32::Words first = Dropout::counter(row, 0);
  const auto threshold = hn::Set(du, dropout.threshold());
  const V scale = hn::Set(d, static_cast<float>(dropout.keep_scale()));
  for (int64_t c = 0; c < kTile; c += kN) {
    auto x0 = hn::Add(hn::LoadU(du, columns.low + c), hn::Set(du, keys[0]));
    auto x1 = hn::Add(hn::LoadU(du, columns.high + c), hn::Set(du, keys[1]));
    auto x2 = hn::Set(du, first[2] + keys[2]);
    auto x3 = hn::Set(du, first[3] + keys[3]);
    threefry_rounds(du, keys, x0, x1, x2, x3);
    const auto word = hn::LoadU(du, columns.word + c);
    auto words = hn::IfThenElse(hn::Eq(word, hn::Set(du, 1)), x1, x0);
    words = hn::IfThenElse(hn::Eq(word, hn::Set(du, 2)), x2, words);
    words = hn::IfThenElse(hn::Eq(word, hn::Set(du, 3)), x3, words);
    const auto dropped = hn::RebindMask(d, hn::Lt(words, threshold));
    hn::Store(hn::IfThenZeroElse(dropped, scale), d, factors + c);
  }
}

// The factor of dropout for each key of a row of tile t: 0, or 1 / (1 - p).
HWY_INLINE void dropout_factors(const Block& block, int row, int64_t t, float* factors) {
  const F d;
  const hn::RebindToUnsigned<F> du;
  const Dropout& dropout = block.problem->dropout;
  const int64_t own = dropout.row(block.index[row]);
  const std::array<uint32_t, 5> keys =
      Threefry4x32::schedule(dropout.key(block.batch, block.head[row]));
  const Dropout::Columns columns = dropout.columns(t * kTile);
  if (columns.low != nullptr) return scattered_factors(dropout, columns, own, keys, factors);
  const Threefry4x32::Words first = Dropout::counter(own, dropout.first_column() + t * kTile);
  const V scale = hn::Set(d, static_cast<float>(dropout.keep_scale()));
  const auto threshold = hn::Set(du, dropout.threshold());
  constexpr int64_t kApart = kTile / 4;  // of the columns whose words one counter gives
  for (int64_t c = 0; c < kApart; c += kN) {
    auto x0 = hn::Add(hn::Iota(du, first[0] + static_cast<uint32_t>(c)), hn::Set(du, keys[0]));
    auto x1 = hn::Set(du, first[1] + keys[1]);
    auto x2 = hn::Set(du, first[2] + keys[2]);
    auto x3 = hn::Set(du, first[3] + keys[3]);
    threefry_rounds(du, keys, x0, x1, x2, x3);
    const auto store = [&](auto words, int64_t column) HWY_ATTR {
      const auto dropped = hn::RebindMask(d, hn::Lt(words, threshold));
      hn::Store(hn::IfThenZeroElse(dropped, scale), d, factors + column);
    };
    store(x0, c);
    store(x1, c + kApart);
    store(x2, c + 2 * kApart);
    store(x3, c + 3 * kApart);
  }
}

HWY_INLINE void multiply(float* x, const float* factors) {
  const F d;
  for (int64_t c = 0; c < kTile; c += kN) {
    hn::Store(hn::Mul(hn::Load(d, x + c), hn::Load(d, factors + c)), d, x + c);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();

#endif
