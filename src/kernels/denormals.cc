#include "kernels/denormals.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/parallel.h"

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

// Of the keys or values that some query sees. Ends at the first, a few loads in all but strange calls.
bool keys_reach(const Problem& p, const TensorView& view, int64_t b, int64_t kv_head) {
  CancelTicks tick;
  std::vector<uint64_t> checked;
  for (int64_t h = kv_head * p.group(); h < (kv_head + 1) * p.group(); ++h) {
    for (int64_t i = 0; i < p.queries; ++i) {
      const auto [lo, hi] = p.visible.interval(b, i);
      for (int64_t t = std::max<int64_t>(lo, 0) / kTile; t * kTile < std::min(hi, p.keys); ++t) {
        tick();
        const auto tile = static_cast<size_t>(t);
        uint64_t left =
            p.visible.bits(b, h, i, t) & (checked.empty() ? ~uint64_t{0} : ~checked[tile]);
        for (; left != 0; left &= left - 1) {
          const int64_t c = std::countr_zero(left);
          if (reaches(view, b, kv_head, t * kTile + c, kUsual)) return true;
          if (checked.empty()) checked.resize(static_cast<size_t>(p.tiles()));
          checked[tile] |= uint64_t{1} << c;
        }
      }
    }
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
  bool usual = keys_reach(p, p.value, b, kv_head);
  if (dout.given()) {
    usual = usual && keys_reach(p, p.key, b, kv_head) &&
            queries_reach(p, p.query, b, kv_head, kUsual) &&
            queries_reach(p, dout, b, kv_head, kUsualGradient);
  }
  return usual ? kFlushDenormals : kKeepDenormals;
}

}  // namespace relpos
