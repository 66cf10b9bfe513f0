#include "kernels/plan/rotations.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/parallel.h"
#include "kernels/block/kernels.h"
#include "kernels/block/load_rows.h"
#include "kernels/plan/angle_tables.h"
#include "kernels/plan/write_out.h"
#include "values/turns.h"

namespace relpos {
namespace {

constexpr int64_t kFewAngles = 1 << 14;  // too few to wake threads for

// What cosine and sine of a pair get: x before R, dy the gradient of R x. Zeros of dy give 0, whatever
// x is.
struct PairGradients {
  double cos = 0.0, sin = 0.0;

  PairGradients(const Rotation& rotation, int64_t pair, const float* x, const float* dy) {
    const auto [first, second] = dims_of_pair(rotation, pair);
    const double d1 = dy[first], d2 = dy[second], x1 = x[first], x2 = x[second];
    if (d1 == 0.0 && d2 == 0.0) return;
    cos = d1 * x1 + d2 * x2;
    sin = d2 * x1 - d1 * x2;
  }
};

// What the coordinates of each axis and batch row count from: that which is nearest to 0 where all lie
// on one side of it, else 0. So none becomes larger.
std::vector<int64_t> nearest_coordinates(const Coordinates& at) {
  const int64_t rows = std::max(at.q_rows, at.k_rows);
  std::vector<int64_t> found;
  CancelTicks tick;
  for (int64_t n = 0; n < at.axes * rows; ++n) {
    const int64_t axis = n / rows, b = n % rows;
    int64_t low = INT64_MAX, high = INT64_MIN;
    const auto widen = [&](bool query, int64_t length) {
      for (int64_t i = 0; i < length; ++i) {
        tick();
        low = std::min(low, at.of(query, axis, b, i));
        high = std::max(high, at.of(query, axis, b, i));
      }
    };
    widen(true, at.queries);
    widen(false, at.keys);
    found.push_back(low > high ? 0 : std::clamp<int64_t>(0, low, high));
  }
  return found;
}

}  // namespace

Rotations::Rotations(const Problem& problem, Workspace& memory) : p_(problem) {
  for (const Rotation& rotation : p_.terms.rotations) {
    std::visit([&](const auto& angles) { tabulate(rotation, angles, memory); }, rotation.angles);
    if (!rotation.decays()) continue;
    const std::vector<double>& log_decay = rotation.by<Rotation::ByPosition>()->log_decay;
    for (int64_t n = 0; n < std::ssize(log_decay); ++n) {
      const auto [first, second] = dims_of_pair(rotation, n);
      log_decay_.resize(p_.head_dim, 0.0);
      log_decay_[first] = log_decay_[second] = log_decay[n];
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

void Rotations::tabulate(const Rotation& rotation, const Rotation::ByPosition& by,
                         Workspace& memory) {
  const TokenPositions& at = p_.positions;
  const int64_t pairs = rotation.dims / 2;
  // Rows of the table are tokens, each at position(row).
  const auto write = [&](const Turn& turn, int64_t rows, auto&& position) {
    AngleTable prepared(by, rotation.magnitude);
    if (rows >= kTile) prepared.prepare();
    in_parts(p_, rows, std::max<int64_t>(1, pairs), [&](int64_t from, int64_t to) {
      AngleTable table = prepared;
      for (int64_t row = from; row < to; ++row) {
        if (row % kTile == 0) check_cancelled();
        table.write(position(row), turn.cos.get() + row * pairs, turn.sin.get() + row * pairs);
      }
    });
  };
  if (at.consecutive && at.shared()) {  // queries and keys at one position share a row
    const int64_t q = at.q[0], k = at.k[0], low = std::min(q, k);
    const int64_t rows = std::max(q + p_.queries, k + p_.keys) - low;
    if (rows <= p_.queries + p_.keys) {
      const Turn& turn = add(rotation, {&rotation, {}, {}, q - low, k - low, 1, 1}, rows, memory);
      return write(turn, rows, [&](int64_t row) { return low + row; });
    }
  }
  const int64_t queries = at.q_rows * p_.queries, keys = at.k_rows * p_.keys;
  const Turn& turn =
      add(rotation, {&rotation, {}, {}, 0, queries, at.q_rows, at.k_rows}, queries + keys, memory);
  write(turn, queries + keys, [&](int64_t row) {
    const int64_t key = row - queries;
    return key < 0 ? at.query(row / p_.queries, row % p_.queries)
                   : at.key(key / p_.keys, key % p_.keys);
  });
}

// The pairs of one axis at a time.
void Rotations::tabulate(const Rotation& rotation, const Rotation::ByCoordinates& by,
                         Workspace& memory) {
  const Coordinates& at = *by.coordinates;
  const int64_t queries = at.q_rows * p_.queries, keys = at.k_rows * p_.keys;
  const Turn& turn =
      add(rotation, {&rotation, {}, {}, 0, queries, at.q_rows, at.k_rows}, queries + keys, memory);
  for (int64_t axis = 0; axis < at.axes; ++axis) {
    PairFrequencies own;
    own.float32_angles = by.float32_angles;
    std::vector<int64_t> pairs;
    for (int64_t n = 0; n < rotation.dims / 2; ++n) {
      if (by.axis[n] != axis) continue;
      pairs.push_back(n);
      own.frequency.push_back(by.frequency[n]);
    }
    AngleTable prepared(own, rotation.magnitude);
    if (queries + keys >= kTile) prepared.prepare();
    in_parts(p_, queries + keys, rotation.dims / 2, [&](int64_t from, int64_t to) {
      AngleTable table = prepared;
      std::vector<float> cos(pairs.size()), sin(pairs.size());
      for (int64_t row = from; row < to; ++row) {
        if (row % kTile == 0) check_cancelled();
        table.write(row < queries ? at.q[axis * queries + row] : at.k[axis * keys + row - queries],
                    cos.data(), sin.data());
        for (size_t n = 0; n < pairs.size(); ++n) {
          turn.cos[row * (rotation.dims / 2) + pairs[n]] = cos[n];
          turn.sin[row * (rotation.dims / 2) + pairs[n]] = sin[n];
        }
      }
    });
  }
}

// Heads differ in their frequencies, and each has a table of its own.
void Rotations::tabulate(const Rotation& rotation, const Rotation::ByHead& by, Workspace& memory) {
  const Coordinates& at = *by.coordinates;
  const int64_t heads = by.frequency.view.shape[1], pairs = rotation.dims / 2;
  const bool same = at.q_rows == at.k_rows && at.q == at.k;  // queries and keys share their rows
  const int64_t queries = at.q_rows * p_.queries, keys = same ? 0 : at.k_rows * p_.keys;
  Turn empty{&rotation, {}, {}, 0, same ? 0 : heads * queries, at.q_rows, at.k_rows, heads};
  if (by.frequency.wants_gradient) empty.from = nearest_coordinates(at);
  const Turn& turn = add(rotation, std::move(empty), heads * (queries + keys), memory);
  const bool few = heads * (queries + keys) * pairs < kFewAngles;
  Stopper stopper(p_.cancel);
  parallel_for(heads, few ? 1 : p_.threads, stopper, [&](int64_t h, int worker) {
    HeadTable table(rotation, h);
    const auto write = [&](bool query, int64_t rows, int64_t length, const int64_t* from) {
      for (int64_t n = 0; n < rows * length; ++n) {
        if (n % kTile == 0 && stopper.stopped(worker)) return;
        const int64_t row = turn.row(p_, query, n / length, h, n % length);
        table.write(from + n, rows * length, turn.cos.get() + row * pairs,
                    turn.sin.get() + row * pairs);
      }
    };
    write(true, at.q_rows, p_.queries, at.q.data());
    if (!same) write(false, at.k_rows, p_.keys, at.k.data());
  });
  stopper.check();
}

// Heads, or batch rows, that share their numbers share a table.
void Rotations::tabulate(const Rotation& rotation, const Rotation::Tables& given,
                         Workspace& memory) {
  const TensorView* views[] = {&given.q_cos.view, &given.q_sin.view, &given.k_cos.view,
                               &given.k_sin.view};
  const auto shared = [&](size_t axis) {
    return std::all_of(std::begin(views), std::end(views),
                       [&](const TensorView* view) { return view->strides[axis] == 0; });
  };
  const int64_t rows = shared(0) ? 1 : p_.batch, heads = shared(1) ? 1 : p_.kv_heads;
  const int64_t pairs = rotation.dims / 2, queries = rows * heads * p_.queries;
  const int64_t keys = rows * heads * p_.keys;
  const Turn& turn =
      add(rotation, {&rotation, {}, {}, 0, queries, rows, rows, heads}, queries + keys, memory);
  const auto read = [&](const TermData& data, bool query, const Buffer<float>& to) {
    const int64_t length = query ? p_.queries : p_.keys;
    const double factor = rotation.magnitude * data.multiplier;
    for (int64_t n = 0; n < rows * heads * length; ++n) {
      if (n % kTile == 0) check_cancelled();
      const int64_t i = n % length, h = n / length % heads, b = n / length / heads;
      float* row = to.get() + (n + (query ? 0 : queries)) * pairs;
      load_row(data.view, b, h, i, pairs, pairs, row);
      for (int64_t pair = 0; factor != 1.0 && pair < pairs; ++pair) {
        row[pair] = static_cast<float>(row[pair] * factor);
      }
    }
  };
  read(given.q_cos, true, turn.cos);
  read(given.q_sin, true, turn.sin);
  read(given.k_cos, false, turn.cos);
  read(given.k_sin, false, turn.sin);
}

bool Rotations::trains() const noexcept {
  return std::any_of(turns_.begin(), turns_.end(), [](const Turn& turn) {
    const Rotation& r = *turn.rotation;
    if (const auto* heads = r.by<Rotation::ByHead>()) return heads->frequency.wants_gradient;
    const auto* given = r.by<Rotation::Tables>();
    return given != nullptr && (given->q_cos.wants_gradient || given->q_sin.wants_gradient ||
                                given->k_cos.wants_gradient || given->k_sin.wants_gradient);
  });
}

void Rotations::add_table_gradients(size_t n, bool query, int64_t b, int64_t kv_head, int64_t i,
                                    const float* x, const float* dy,
                                    TermGradients::Turns& to) const {
  const Rotation& r = *turns_[n].rotation;
  const auto* given = r.by<Rotation::Tables>();
  if (given == nullptr) return;
  const TermData& cos = query ? given->q_cos : given->k_cos;
  const TermData& sin = query ? given->q_sin : given->k_sin;
  std::vector<double>& of_cos = query ? to.q_cos : to.k_cos;
  std::vector<double>& of_sin = query ? to.q_sin : to.k_sin;
  const int64_t row = (b * p_.kv_heads + kv_head) * (query ? p_.queries : p_.keys) + i;
  for (int64_t pair = 0; pair < r.dims / 2; ++pair) {
    const PairGradients of(r, pair, x, dy);
    const int64_t at = row * (r.dims / 2) + pair;
    if (!of_cos.empty()) of_cos[at] += of.cos * r.magnitude * cos.multiplier;
    if (!of_sin.empty()) of_sin[at] += of.sin * r.magnitude * sin.multiplier;
  }
}

int64_t Rotations::Turn::row(const Problem& p, bool query, int64_t b, int64_t kv_head,
                             int64_t i) const noexcept {
  const int64_t of_batch = (query ? q_rows : k_rows) == 1 ? 0 : b;
  const int64_t of_head = heads == 1 ? 0 : kv_head;
  return (query ? queries_at : keys_at) +
         (of_batch * heads + of_head) * (query ? p.queries : p.keys) + i;
}

void Rotations::add_gradients(size_t n, bool query, int64_t b, int64_t kv_head, int64_t i,
                              const float* x, const float* dy, double* sums) const {
  const Turn& turn = turns_[n];
  const Rotation& r = *turn.rotation;
  const auto& heads = *r.by<Rotation::ByHead>();
  const int64_t pairs = r.dims / 2, axes = heads.frequency.view.shape[0];
  const int64_t rows = std::ssize(turn.from) / axes;
  const float* cos = turn.cos.get() + turn.row(p_, query, b, kv_head, i) * pairs;
  const float* sin = turn.sin.get() + turn.row(p_, query, b, kv_head, i) * pairs;
  double of_angle[kTile];
  for (int64_t start = 0; start < pairs; start += kTile) {
    const int64_t count = std::min(kTile, pairs - start);
    for (int64_t at = 0; at < count; ++at) {
      const PairGradients of(r, start + at, x, dy);
      of_angle[at] = of.sin * static_cast<double>(cos[start + at]) -
                     of.cos * static_cast<double>(sin[start + at]);
    }
    for (int64_t axis = 0; axis < axes; ++axis) {
      const int64_t from = turn.from[axis * rows + (rows == 1 ? 0 : b)];
      const auto by = static_cast<double>(heads.coordinates->of(query, axis, b, i) - from);
      double* to = sums + axis * pairs + start;
      for (int64_t at = 0; at < count; ++at) to[at] += by * of_angle[at];
    }
  }
}

void Rotations::turn(bool query, int64_t b, int64_t kv_head, int64_t i, float* row,
                     float direction) const {
  for (const Turn& turn : turns_) {
    const Rotation& r = *turn.rotation;
    const int64_t pairs = r.dims / 2, at = turn.row(p_, query, b, kv_head, i);
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
