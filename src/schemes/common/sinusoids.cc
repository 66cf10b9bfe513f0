#include "schemes/common/sinusoids.h"

#include <algorithm>
#include <cmath>
#include <memory>

namespace relpos::common {
namespace {

constexpr int64_t kTogether = 32;

struct Wave {
  double sine, cosine;

  static Wave of(double angle) { return {std::sin(angle), std::cos(angle)}; }
  // Of the sum of both angles.
  Wave operator*(const Wave& other) const {
    return {sine * other.cosine + cosine * other.sine, cosine * other.cosine - sine * other.sine};
  }
};

// sin and cos of n f_p by the sum of two angles, those of the multiple of kTogether below n and of the rest:
// they depend on n alone, and one sine is computed for kTogether distances.
class Waves {
 public:
  Waves(const std::vector<double>& frequencies, const SinusoidOptions& options)
      : frequencies_(frequencies), options_(options) {
    of_rests_ = at(0);
    for (int64_t bit = 1; bit < kTogether; bit *= 2) {
      const std::vector<Wave> own = at(bit);
      for (int64_t n = 0; n < bit; ++n) {
        for (size_t p = 0; p < own.size(); ++p) {
          const Wave below = of_rests_[static_cast<size_t>(n) * own.size() + p];
          of_rests_.push_back(below * own[p]);
        }
      }
    }
  }

  void write(int64_t first, int64_t count, double* features) const {
    const size_t half = frequencies_.size();
    const int64_t most = options_.farthest.value_or(INT64_MAX);
    const size_t apart = options_.interleaved ? 1 : half, stride = options_.interleaved ? 2 : 1;
    int64_t base = 0;
    std::vector<Wave> of_base;
    for (int64_t m = 0; m < count; ++m, features += 2 * half) {
      const int64_t n = std::clamp(-(first + m), -most, most);
      const int64_t rest = ((n % kTogether) + kTogether) % kTogether;
      if (of_base.empty() || base != n - rest) {
        base = n - rest;
        of_base = at(base);
      }
      const Wave* of_rest = of_rests_.data() + static_cast<size_t>(rest) * half;
      for (size_t p = 0; p < half; ++p) {
        const Wave found = of_base[p] * of_rest[p];
        features[p * stride] = found.sine;
        features[p * stride + apart] = found.cosine;
      }
    }
  }

 private:
  std::vector<Wave> at(int64_t n) const {
    std::vector<Wave> found;
    for (const double frequency : frequencies_) {
      found.push_back(Wave::of(static_cast<double>(n) * frequency));
    }
    return found;
  }

  std::vector<double> frequencies_;
  SinusoidOptions options_;
  std::vector<Wave> of_rests_;  // [kTogether, frequencies]
};

}  // namespace

Builder::FeatureRows sinusoids(const std::vector<double>& frequencies,
                               const SinusoidOptions& options) {
  const auto waves = std::make_shared<const Waves>(frequencies, options);
  return [waves](int64_t first, int64_t count, double* features) {
    waves->write(first, count, features);
  };
}

}  // namespace relpos::common
