// The shift of a row: a number that is subtracted from all its scores, so that float32 keeps small
// differences between them. A linear bias is counted from the row's nearest visible key on, and a key
// bias from that of the nearest key of the rows around it. The softmax does not change; the shift is
// added to lse again. It depends only on the batch row, head and query, so that forward, backward,
// tiles, decode and reference use the same.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/problem.h"

namespace relpos {

struct RowShift {
  int64_t distance = 0;     // subtracted from a pair's distance for linear biases
  bool both_sides = false;  // whether the query sees keys before and after it
  double slopes = 0.0;      // the sum of all linear biases at `distance`, natural units
  double keys = 0.0;        // the shift of all key biases, natural units

  double total() const noexcept { return slopes + keys; }
};

class Shifts {
 public:
  explicit Shifts(const Problem& problem);

  // False if the shift of every row is 0.
  bool active() const noexcept { return p_.keys > 0 && (sloped_ || !p_.terms.key_biases.empty()); }
  RowShift of(int64_t b, int64_t h, int64_t i) const;
  // The smallest and largest distance at which linear biases are read: that of a pair inside the
  // intervals, minus the row's shift. {0, -1} if there are no pairs.
  std::pair<int64_t, int64_t> range() const;
  // The sum of all key biases of a key, natural units.
  double key_bias(int64_t b, int64_t h, int64_t j) const;

 private:
  // The nearest visible keys before a query and from its position on; -1 if there is none. If it sees a
  // key at its own position, `before` is not searched.
  struct Neighbours {
    int64_t before = -1, after = -1;
  };
  Neighbours neighbours(int64_t b, int64_t h, int64_t i) const;
  // The first, or the last, key in [from, to) that the query sees; -1 if there is none.
  int64_t seen(int64_t b, int64_t h, int64_t i, int64_t from, int64_t to, bool last) const;
  // Lowest and highest position of the keys of an interval, or of all keys where positions are
  // explicit.
  std::pair<int64_t, int64_t> reach(int64_t b, int64_t lo, int64_t hi) const;
  bool ascending(int64_t b) const noexcept;

  const Problem& p_;
  bool sloped_ = false;
  // Of explicit key positions, each [1 or B].
  std::vector<char> ascending_;
  std::vector<std::pair<int64_t, int64_t>> reach_;
};

}  // namespace relpos
