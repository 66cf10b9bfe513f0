#include "kernels/terms/rotation.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/angles.h"
#include "base/parallel.h"
#include "kernels/block.h"

namespace relpos {
namespace {

// cos and sin of the angles of one position.
struct Angles {
  std::vector<double> cos, sin;

  explicit Angles(int64_t pairs) : cos(pairs), sin(pairs) {}
  void at(const Rotation& rotation, int64_t position) {
    angle_table(rotation, position, cos.data(), sin.data());
  }
  // exp(i (a + b)) = exp(i a) exp(i b), rounded to T.
  template <typename T>
  static void product(const Angles& a, const Angles& b, T* cos, T* sin) {
    for (size_t n = 0; n < a.cos.size(); ++n) {
      cos[n] = static_cast<T>(a.cos[n] * b.cos[n] - a.sin[n] * b.sin[n]);
      sin[n] = static_cast<T>(a.sin[n] * b.cos[n] + a.cos[n] * b.sin[n]);
    }
  }
};

// Angles of consecutive or arbitrary positions 64 c + 8 m + f as products in double, rounded once: a
// run of positions costs one complex product each, and at most 15 evaluations besides those of its c.
class AngleTable {
 public:
  explicit AngleTable(const Rotation& rotation)
      : r_(rotation), pairs_(rotation.dims / 2), coarse_(pairs_), within_(kTile, Angles(0)) {}

  void write(int64_t position, float* cos, float* sin) {
    if (r_.float32_angles) {
      angle_table(r_, position, cos, sin);
    } else {
      const int64_t tile = position & ~(kTile - 1);
      if (tile_ != tile) coarse_.at(r_, tile);
      tile_ = tile;
      Angles::product(coarse_, within(position - tile), cos, sin);
    }
    scale(cos, sin);
  }

 private:
  static constexpr int64_t kStep = 8;

  // Of position f in a tile.
  const Angles& within(int64_t f) {
    Angles& found = within_[f];
    if (!found.cos.empty() || pairs_ == 0) return found;
    Angles made(pairs_);
    if (f < kStep || f % kStep == 0) {
      made.at(r_, f);
    } else {
      Angles::product(within(f - f % kStep), within(f % kStep), made.cos.data(), made.sin.data());
    }
    found = std::move(made);
    return found;
  }

  void scale(float* cos, float* sin) const {
    if (r_.magnitude == 1.0) return;
    for (int64_t n = 0; n < pairs_; ++n) {
      cos[n] = static_cast<float>(cos[n] * r_.magnitude);
      sin[n] = static_cast<float>(sin[n] * r_.magnitude);
    }
  }

  const Rotation& r_;
  int64_t pairs_;
  Angles coarse_;               // of the first position of the tile
  std::vector<Angles> within_;  // [kTile], none where not yet used
  std::optional<int64_t> tile_;
};

}  // namespace

Rotations::Rotations(const Problem& problem, Workspace& memory) : p_(problem) {
  for (const Rotation& rotation : p_.terms.rotations) {
    if (rotation.axis.empty()) {
      tabulate(rotation, memory);
    } else {
      tabulate_axes(rotation, memory);
    }
    for (int64_t n = 0; n < std::ssize(rotation.log_decay); ++n) {
      const auto [first, second] = dims_of_pair(rotation, n);
      log_decay_.resize(p_.head_dim, 0.0);
      log_decay_[first] = log_decay_[second] = rotation.log_decay[n];
    }
  }
}

Rotations::Turn& Rotations::add(const Rotation& rotation, Turn turn, int64_t rows,
                                Workspace& memory) {
  turn.cos = memory.take<float>(rows * rotation.dims / 2);
  turn.sin = memory.take<float>(rows * rotation.dims / 2);
  turns_.push_back(std::move(turn));
  return turns_.back();
}

void Rotations::tabulate(const Rotation& rotation, Workspace& memory) {
  const Positions& at = p_.positions;
  AngleTable table(rotation);
  const int64_t pairs = rotation.dims / 2;
  const auto write = [&](const Turn& turn, int64_t row, int64_t position) {
    if (row % kTile == 0) check_cancelled();
    table.write(position, turn.cos.get() + row * pairs, turn.sin.get() + row * pairs);
  };
  if (at.consecutive && at.shared()) {  // queries and keys at one position share a row
    const int64_t q = at.q[0], k = at.k[0], low = std::min(q, k);
    const int64_t rows = std::max(q + p_.queries, k + p_.keys) - low;
    if (rows <= p_.queries + p_.keys) {
      const Turn& turn = add(rotation, {&rotation, {}, {}, q - low, k - low, 1, 1}, rows, memory);
      for (int64_t row = 0; row < rows; ++row) write(turn, row, low + row);
      return;
    }
  }
  const int64_t queries = at.q_rows * p_.queries, keys = at.k_rows * p_.keys;
  const Turn& turn =
      add(rotation, {&rotation, {}, {}, 0, queries, at.q_rows, at.k_rows}, queries + keys, memory);
  for (int64_t n = 0; n < queries; ++n) write(turn, n, at.query(n / p_.queries, n % p_.queries));
  for (int64_t n = 0; n < keys; ++n) write(turn, queries + n, at.key(n / p_.keys, n % p_.keys));
}

// The pairs of one axis at a time, as a rotation of their own.
void Rotations::tabulate_axes(const Rotation& rotation, Workspace& memory) {
  const Coordinates& at = *rotation.coordinates;
  const int64_t queries = at.q_rows * p_.queries, keys = at.k_rows * p_.keys;
  const Turn& turn =
      add(rotation, {&rotation, {}, {}, 0, queries, at.q_rows, at.k_rows}, queries + keys, memory);
  for (int64_t axis = 0; axis < at.axes; ++axis) {
    Rotation own;
    own.float32_angles = rotation.float32_angles;
    own.magnitude = rotation.magnitude;
    std::vector<int64_t> pairs;
    for (int64_t n = 0; n < rotation.dims / 2; ++n) {
      if (rotation.axis[n] != axis) continue;
      pairs.push_back(n);
      own.frequency.push_back(rotation.frequency[n]);
    }
    own.dims = 2 * std::ssize(pairs);
    AngleTable table(own);
    std::vector<float> cos(pairs.size()), sin(pairs.size());
    const auto write = [&](int64_t row, int64_t coordinate) {
      if (row % kTile == 0) check_cancelled();
      table.write(coordinate, cos.data(), sin.data());
      for (size_t n = 0; n < pairs.size(); ++n) {
        turn.cos[row * (rotation.dims / 2) + pairs[n]] = cos[n];
        turn.sin[row * (rotation.dims / 2) + pairs[n]] = sin[n];
      }
    };
    for (int64_t n = 0; n < queries; ++n) write(n, at.q[axis * queries + n]);
    for (int64_t n = 0; n < keys; ++n) write(queries + n, at.k[axis * keys + n]);
  }
}

void Rotations::turn(bool query, int64_t b, int64_t i, float* row, float direction) const {
  for (const Turn& turn : turns_) {
    const Rotation& r = *turn.rotation;
    const int64_t pairs = r.dims / 2;
    const int64_t at =
        (query ? turn.queries_at : turn.keys_at) +
        ((query ? turn.q_rows : turn.k_rows) == 1 ? 0 : b) * (query ? p_.queries : p_.keys) + i;
    tile_kernels().rotate(row + r.start, pairs, r.layout == PairLayout::kInterleaved,
                          turn.cos.get() + at * pairs, turn.sin.get() + at * pairs, direction);
  }
  if (!decays()) return;
  if (query) {
    decay(query_anchor(b, i) - p_.positions.query(b, i), row);
  } else {
    decay(p_.positions.key(b, i) - p_.positions.key(b, i / kTile * kTile), row);
  }
}

void Rotations::decay(int64_t distance, float* row) const {
  for (int64_t d = 0; d < p_.head_dim; ++d) {
    if (log_decay_[d] == 0.0) continue;
    row[d] *= static_cast<float>(std::exp(static_cast<double>(distance) * log_decay_[d]));
  }
}

int64_t Rotations::query_anchor(int64_t b, int64_t i) const {
  return p_.positions.query(b, i / kRows * kRows);
}

}  // namespace relpos
