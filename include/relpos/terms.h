// The terms of which every relative position consists. Kernels know these and nothing else.
//
//   delta      = pos_k[j] - pos_q[i]                           (distance = key - query, negative: past)
//   score[i,j] = scale <R (q_i + u), R k_j> + s1 <a_i, r[m(delta)]> + s2 <c_j, r'[m(delta)]>
//                + b[h, m(delta)] + key_bias[h, j] + s3 <a_i, r"[class[i,j]]> + b"[h, class[i,j]]
//   weight     = exp(score[i,j]) / (sum_j exp(score[i,j]) + exp(sink[h]))
//   out[i]     = sum_j weight[i,j] (v_j + t[m(delta)])
//
// Shapes: B batch, H query heads, Lq and Lk lengths, D head size, M classes, r rank of a table.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "relpos/export.h"
#include "relpos/tensor.h"

RELPOS_EXPORT_BEGIN
namespace relpos {

// m(delta): the class of a distance, which is the row of a table, or none. It is a function of the
// distance, never a lookup over all distances; outside [first_distance(), last_distance()] it is
// constant.
class ClassMap {
 public:
  static constexpr int64_t kNone = -1;

  // clamp(delta, lo, hi) - lo; with `reversed`, row 0 belongs to hi instead of lo.
  static ClassMap clamp(int64_t lo, int64_t hi, bool reversed = false);
  // delta - lo inside [lo, hi], none outside; reversed as above.
  static ClassMap zero_outside(int64_t lo, int64_t hi, bool reversed = false);
  // Sorted runs: classes[n] for starts[n-1] <= delta < starts[n], classes.front() before the first
  // start. classes.size() == starts.size() + 1; a class may be kNone.
  static ClassMap thresholds(std::vector<int64_t> starts, std::vector<int64_t> classes);

  int64_t operator()(int64_t delta) const noexcept;
  // One more than the largest class: the number of rows that a table of this map must have.
  int64_t classes() const noexcept { return classes_; }
  int64_t first_distance() const noexcept { return lo_; }
  int64_t last_distance() const noexcept { return hi_; }
  // The starts and the classes by which thresholds() makes the same map.
  std::pair<std::vector<int64_t>, std::vector<int64_t>> runs() const;

 private:
  friend struct ClassWindow;  // reads classes that follow one another without asking for each
  ClassMap() = default;
  int64_t lo_ = 0, hi_ = 0, classes_ = 0;
  bool reversed_ = false, outside_is_none_ = false;
  std::vector<int64_t> starts_, run_classes_;
};

class Source;
struct Projection;  // a table from weights and features of the distance

// Numbers that a term reads: a parameter of the caller (not copied) or values that the library
// computed. Every element is multiplied by `multiplier` when it is read; gradients are those of the
// unscaled view.
struct TermData {
  TensorView view;
  double multiplier = 1.0;
  bool wants_gradient = false;
  std::shared_ptr<const void> owned;  // keeps computed values alive
  const Source* source = nullptr;     // of a parameter that a position's term reads as it is
  // Given: the numbers are computed from `source`.
  std::shared_ptr<const Projection> projection{};

  static TermData parameter(const TensorView& view, bool wants_gradient, double multiplier = 1.0);
  static TermData computed(std::vector<double> values, const std::vector<int64_t>& shape,
                           bool wants_gradient);
};

enum class PairLayout { kHalf, kInterleaved };  // pairs (p, p + dims/2), or (2p, 2p + 1)

// Integers that tokens have besides their position, such as the row and the column of an image patch,
// for rotations and for terms whose distance is one of a coordinate. The latter are below 2^29.
struct Coordinates {
  int64_t axes = 0, queries = 0, keys = 0;
  int64_t q_rows = 1, k_rows = 1;  // 1 or B
  std::vector<int64_t> q, k;       // [axes, rows, queries or keys]
  // Of inputs [B, axes, Lq] and [B, axes, Lk] that hold these numbers as they are; else null.
  const Source *q_source = nullptr, *k_source = nullptr;

  int64_t query(int64_t axis, int64_t b, int64_t i) const noexcept {
    return q[static_cast<size_t>((axis * q_rows + (q_rows == 1 ? 0 : b)) * queries + i)];
  }
  int64_t of(bool query_side, int64_t axis, int64_t b, int64_t i) const noexcept {
    return query_side ? query(axis, b, i) : key(axis, b, i);
  }
  int64_t key(int64_t axis, int64_t b, int64_t j) const noexcept {
    return k[static_cast<size_t>((axis * k_rows + (k_rows == 1 ? 0 : b)) * keys + j)];
  }
};

// The angle by which pair p turns is x * frequency[p] radians, computed in double and rounded once; with
// float32_angles it is a product of float32 numbers, as in most frameworks.
struct PairFrequencies {
  std::vector<double> frequency;  // [dims / 2]
  bool float32_angles = false;
};

// R: pair p of the head's dimensions [start, start + dims) is rotated by the angle of the token.
struct Rotation {
  // x of PairFrequencies is the position of the token.
  struct ByPosition : PairFrequencies {
    std::vector<double>
        log_decay;  // [dims / 2] or empty: pair p is scaled by exp(delta log_decay[p])
  };
  // x of PairFrequencies is coordinate axis[p] of the token.
  struct ByCoordinates : PairFrequencies {
    std::vector<int> axis;  // [dims / 2]
    std::shared_ptr<const Coordinates> coordinates;
  };
  // The angle is the sum over the axes of coordinate a times frequency[a, h, p], h the key head: a query
  // turns as the key head of its group does.
  struct ByHead {
    TermData frequency;  // [axes, Hk or 1, dims / 2], 1: all heads turn alike
    std::shared_ptr<const Coordinates> coordinates;
  };
  // The cosines and sines themselves, of queries [B, Hk, Lq, dims / 2] and of keys
  // [B, Hk, Lk, dims / 2]. Strides may be 0.
  struct Tables {
    TermData q_cos, q_sin, k_cos, k_sin;
  };

  int64_t start = 0, dims = 0;
  PairLayout layout = PairLayout::kHalf;
  double magnitude = 1.0;  // multiplies cos and sin of queries and of keys
  std::variant<ByPosition, ByCoordinates, ByHead, Tables> angles;

  // The angles, where they are of that kind; else null.
  template <typename Angles>
  const Angles* by() const noexcept {
    return std::get_if<Angles>(&angles);
  }
  ByPosition& by_position() { return std::get<ByPosition>(angles); }
  bool decays() const noexcept {
    const auto* position = by<ByPosition>();
    return position != nullptr && !position->log_decay.empty();
  }
};

// b[h, m(delta)], added after the scale. `slopes` [2, H] adds slopes[0, h] * min(delta, 0) +
// slopes[1, h] * max(delta, 0): a linear bias holds at any int64 distance without a table.
struct DistanceBias {
  std::optional<ClassMap> map;  // with table
  TermData table;               // [H, M]
  TermData slopes;              // [2, H]
  // Given: delta is that of coordinate `axis`; not with slopes.
  std::shared_ptr<const Coordinates> coordinates{};
  int axis = 0;
};

// multiplier(s1) <a_i, r[m(delta)]>. a_i is the unrotated query plus `added`, or `factor` plus `added`.
struct RowTable {
  ClassMap map = ClassMap::clamp(0, 0);
  TermData table;               // [M, r], or [H, M, r]
  TermData factor;              // not given, or [B, H, Lq, r]; not given: the query, r = D
  TermData added;               // not given, or [H, r]
  std::optional<double> scale;  // s1; not given: the scale of the scores
  // Given: delta is that of coordinate `axis`.
  std::shared_ptr<const Coordinates> coordinates{};
  int axis = 0;
};

// s2 <c_j, r'[m(delta)]>, c_j the unrotated key or `factor`.
struct ColumnTable {
  ClassMap map = ClassMap::clamp(0, 0);
  TermData table;   // [M, r], or [H, M, r]
  TermData factor;  // not given, or [B, Hk, Lk, r]; not given: the key, r = D
  std::optional<double> scale;
};

// key_bias[(b,) h, j], added after the scale.
struct KeyBias {
  TermData values;  // [H, Lk], or [B, H, Lk]
  // The scheme's bias is this plus a number for each query, which changes nothing in a softmax. It would
  // with a sink or a softcap, which are refused then.
  bool up_to_query = false;
};

// A class for each pair of a query and a key, a byte for all heads: rows and columns are those of the
// call, and no position matters.
struct PairClasses {
  TensorView view;  // uint8 [Lq, Lk] or [B, Lq, Lk]
  // Pairs of this class are not seen, as those that a mask hides; -1: there is none. It need not be a row
  // of the table.
  int hidden = -1;
  const Source* source = nullptr;  // of a position's term: the input

  int64_t of(int64_t b, int64_t i, int64_t j) const noexcept {
    return view.load_int(view.rank == 3 ? view.offset({b, i, j}) : view.offset({i, j}));
  }
};
inline constexpr int64_t kMostPairClasses = 256;

// b"[h, class[i,j]], added after the scale.
struct PairBias {
  TermData table;  // [H, C] or [1, C], the latter for all heads; C is at most kMostPairClasses
  PairClasses classes;
};

// s3 <a_i, r"[class[i,j]]>, a_i the unrotated query or `factor`.
struct PairRows {
  TermData table;               // [C, r], or [H, C, r]; C is at most kMostPairClasses
  TermData factor;              // not given, or [B, H, Lq, r]; not given: the query, r = D
  std::optional<double> scale;  // s3; not given: the scale of the scores
  PairClasses classes;
};

// t[m(delta)], added to v_j.
struct ValueTable {
  ClassMap map = ClassMap::clamp(0, 0);
  TermData table;  // [M, Dv], or [H, M, Dv]
};

// Each is a list, since there may be several terms of one kind. Rotations must not overlap.
struct Terms {
  std::vector<Rotation> rotations;
  std::vector<DistanceBias> biases;
  std::vector<RowTable> row_tables;
  std::vector<ColumnTable> column_tables;
  std::vector<KeyBias> key_biases;
  std::vector<PairBias> pair_biases;
  std::vector<PairRows> pair_rows;
  std::vector<ValueTable> value_tables;
  // u[h], [H, D] each. Their sum is added to the query for its product with the key; row tables use the
  // query without it.
  std::vector<TermData> query_added;
  // [H], or [B, H, Lq]: a score without a value that joins each row's softmax.
  std::vector<TermData> sinks;

  void append(Terms other);
};

// Gradients with respect to TermData, each contiguous in the shape of its view, or empty if the term
// wants none. Rows that no visible pair selects are exactly 0.
struct TermGradients {
  struct Turns {
    std::vector<double> head_frequency, q_cos, q_sin, k_cos, k_sin;
  };
  struct Bias {
    std::vector<double> table, slopes;
  };
  struct Rows {
    std::vector<double> table, factor, added;
  };
  struct Values {
    std::vector<double> table;
  };
  std::vector<Turns> rotations;
  std::vector<Bias> biases;
  std::vector<Rows> row_tables, column_tables, pair_rows;
  std::vector<Values> key_biases, pair_biases, value_tables;
  std::vector<std::vector<double>> query_added, sinks;

  // As many of each kind as `terms` has, all empty.
  static TermGradients like(const Terms& terms);
  // Zeroed vectors for everything in `terms` that wants a gradient.
  static TermGradients zeros(const Terms& terms);
};

}  // namespace relpos
RELPOS_EXPORT_END
