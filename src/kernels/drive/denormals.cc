#include "kernels/drive/denormals.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "kernels/block/kernels.h"

namespace relpos {
namespace {

// Products of three such factors and a gradient stay 2^60 above what is flushed.
constexpr double kUsual = 0x1p-10, kUsualGradient = 0x1p-40;

// Whether a number of a row reaches `least`, NaN included.
bool reaches(const TensorView& view, int64_t b, int64_t h, int64_t i, double least) {
  const int64_t at = view.offset({b, h, i, 0});
  for (int64_t d = 0; d < view.shape[3]; ++d) {
    if (!(std::fabs(view.load(at + d * view.strides[3])) < least)) return true;
  }
  return false;
}

bool is_padding(const Problem& p, int64_t b, int64_t j) {
  if (p.visible.key_bits.empty()) return false;
  const uint64_t bits = p.visible.key_bits[b * p.tiles() + j / kTile];
  return ((bits >> (j % kTile)) & 1U) == 0;
}

// The same of the keys [from, to) that are not padding.
bool keys_reach(const Problem& p, const TensorView& view, int64_t b, int64_t kv_head, int64_t from,
                int64_t to) {
  CancelTicks tick;
  for (int64_t j = from; j < to; ++j) {
    tick();
    if (!is_padding(p, b, j) && reaches(view, b, kv_head, j, kUsual)) return true;
  }
  return false;
}

// Of the keys that a mask, or classes of pairs, show.
bool masked_keys_reach(const Problem& p, const TensorView& view, int64_t b, int64_t kv_head) {
  CancelTicks tick;
  std::vector<uint64_t> checked(p.tiles());
  for (int64_t h = kv_head * p.group(); h < (kv_head + 1) * p.group(); ++h) {
    for (int64_t i = 0; i < p.queries; ++i) {
      for (int64_t t = 0; t < p.tiles(); ++t) {
        tick();
        uint64_t& done = checked[t];
        const uint64_t now = p.visible.bits(b, h, i, t, tile_kernels().mask_bits) & ~done;
        done |= now;
        for (uint64_t left = now; left != 0; left &= left - 1) {
          if (reaches(view, b, kv_head, t * kTile + std::countr_zero(left), kUsual)) return true;
        }
      }
    }
  }
  return false;
}

// Of the keys or values that some query sees. Ends at the first, a few loads in all but strange calls.
bool seen_keys_reach(const Problem& p, const TensorView& view, int64_t b, int64_t kv_head) {
  if (p.visible.masked()) return masked_keys_reach(p, view, b, kv_head);
  CancelTicks tick;
  int64_t from = 0, to = 0;  // these are checked
  for (int64_t i = p.queries - 1; i >= 0; --i) {
    tick();
    auto [lo, hi] = p.visible.interval(b, i);
    lo = std::max<int64_t>(lo, 0);
    hi = std::min(hi, p.keys);
    if (lo >= hi || (from <= lo && hi <= to)) continue;
    if (lo > to || hi < from) from = to = lo;
    if (keys_reach(p, view, b, kv_head, lo, from) || keys_reach(p, view, b, kv_head, to, hi)) {
      return true;
    }
    from = std::min(from, lo);
    to = std::max(to, hi);
  }
  return false;
}

bool queries_reach(const Problem& p, const TensorView& view, int64_t b, int64_t kv_head,
                   double least) {
  CancelTicks tick;
  for (int64_t h = kv_head * p.group(); h < (kv_head + 1) * p.group(); ++h) {
    for (int64_t i = 0; i < p.queries; ++i) {
      tick();
      const auto [lo, hi] = p.visible.interval(b, i);
      if (lo < hi && reaches(view, b, h, i, least)) return true;
    }
  }
  return false;
}

}  // namespace

FloatControl float_control(const Problem& p, int64_t b, int64_t kv_head, const TensorView& dout) {
  bool usual = seen_keys_reach(p, p.value, b, kv_head);
  if (dout.given()) {
    usual = usual && seen_keys_reach(p, p.key, b, kv_head) &&
            queries_reach(p, p.query, b, kv_head, kUsual) &&
            queries_reach(p, dout, b, kv_head, kUsualGradient);
  }
  return usual ? kFlushDenormals : kKeepDenormals;
}

}  // namespace relpos
