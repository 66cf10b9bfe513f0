// Cosines and sines of the positions of a call, most of them as products.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/problem.h"
#include "values/turns.h"

namespace relpos {

// cos and sin of the angles of one position.
struct Angles {
  std::vector<double> cos, sin;

  explicit Angles(int64_t pairs) : cos(pairs), sin(pairs) {}
  void at(const PairFrequencies& of, int64_t position) {
    angle_table(of, position, cos.data(), sin.data());
  }
  // exp(i (a + b)) = exp(i a) exp(i b), rounded to T; may be written over a.
  template <typename T>
  static void product(const Angles& a, const Angles& b, T* cos, T* sin) {
    for (size_t n = 0; n < a.cos.size(); ++n) {
      const double real = a.cos[n] * b.cos[n] - a.sin[n] * b.sin[n];
      sin[n] = static_cast<T>(a.sin[n] * b.cos[n] + a.cos[n] * b.sin[n]);
      cos[n] = static_cast<T>(real);
    }
  }
};

// Angles of consecutive or arbitrary positions 64 c + 8 m + f as products in double, rounded once: a
// run of positions costs one complex product each, and at most 15 evaluations besides those of its c.
class AngleTable {
 public:
  // `of` outlives the table.
  explicit AngleTable(const PairFrequencies& of, double magnitude = 1.0)
      : of_(of),
        magnitude_(magnitude),
        pairs_(std::ssize(of.frequency)),
        coarse_(pairs_),
        within_(kTile, Angles(0)) {}

  // Computes what all tiles of positions share, for copies of the table.
  void prepare() {
    for (int64_t f = 0; f < kTile && !of_.float32_angles; ++f) within(f);
  }
  void write(int64_t position, float* cos, float* sin) {
    if (of_.float32_angles) {
      angle_table(of_, position, cos, sin);
    } else {
      product(position, cos, sin);
    }
    scale(cos, sin);
  }
  // Without the magnitude.
  template <typename T>
  void product(int64_t position, T* cos, T* sin) {
    const int64_t tile = position & ~(kTile - 1);
    if (tile_ != tile) coarse_.at(of_, tile);
    tile_ = tile;
    Angles::product(coarse_, within(position - tile), cos, sin);
  }

 private:
  static constexpr int64_t kStep = 8;

  // Of position f in a tile.
  const Angles& within(int64_t f) {
    Angles& found = within_[f];
    if (!found.cos.empty() || pairs_ == 0) return found;
    Angles made(pairs_);
    if (f < kStep || f % kStep == 0) {
      made.at(of_, f);
    } else {
      Angles::product(within(f - f % kStep), within(f % kStep), made.cos.data(), made.sin.data());
    }
    found = std::move(made);
    return found;
  }

  void scale(float* cos, float* sin) const {
    if (magnitude_ == 1.0) return;
    for (int64_t n = 0; n < pairs_; ++n) {
      cos[n] = static_cast<float>(cos[n] * magnitude_);
      sin[n] = static_cast<float>(sin[n] * magnitude_);
    }
  }

  const PairFrequencies& of_;
  double magnitude_;
  int64_t pairs_;
  Angles coarse_;               // of the first position of the tile
  std::vector<Angles> within_;  // [kTile], none where not yet used
  std::optional<int64_t> tile_;
};

// Angles of one head that are sums over axes, each with frequencies of its own: products of theirs.
class HeadTable {
 public:
  HeadTable(const Rotation& rotation, int64_t head)
      : magnitude_(rotation.magnitude), sum_(rotation.dims / 2), part_(rotation.dims / 2) {
    const auto& by = *rotation.by<Rotation::ByHead>();
    const int64_t axes = by.frequency.view.shape[0];
    own_.resize(axes);
    for (int64_t axis = 0; axis < axes; ++axis) {
      for (int64_t n = 0; n < rotation.dims / 2; ++n) {
        own_[axis].frequency.push_back(frequency_of(by, axis, head, n));
      }
      tables_.emplace_back(own_[axis]);
    }
  }

  // Of a token whose coordinates lie `stride` apart.
  void write(const int64_t* coordinates, int64_t stride, float* cos, float* sin) {
    std::fill(sum_.cos.begin(), sum_.cos.end(), magnitude_);
    std::fill(sum_.sin.begin(), sum_.sin.end(), 0.0);
    for (AngleTable& table : tables_) {
      table.product(*coordinates, part_.cos.data(), part_.sin.data());
      Angles::product(sum_, part_, sum_.cos.data(), sum_.sin.data());
      coordinates += stride;
    }
    for (size_t n = 0; n < sum_.cos.size(); ++n) {
      cos[n] = static_cast<float>(sum_.cos[n]);
      sin[n] = static_cast<float>(sum_.sin[n]);
    }
  }

 private:
  double magnitude_;
  Angles sum_, part_;
  std::vector<PairFrequencies> own_;  // of each axis
  std::vector<AngleTable> tables_;
};

}  // namespace relpos
