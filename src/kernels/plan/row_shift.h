// What a whole row of scores is made less by, so that near scores keep their small parts: a linear
// bias is read from the row's nearest visible key on, a key bias is taken less that of the nearest key
// of the rows about it. Softmax does not see such a shift; lse gets it back. A function of the pair
// (batch row, head, query) alone: forward and backward, tiles, decode and reference find the same.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/problem.h"

namespace relpos {

struct RowShift {
  int64_t distance = 0;     // a linear bias holds at a pair's distance less this
  bool both_sides = false;  // and keys before as well as after the query are seen
  double slopes = 0.0;      // of all linear biases at `distance`, natural units
  double keys = 0.0;        // of all key biases, natural units

  double total() const noexcept { return slopes + keys; }
};

class Shifts {
 public:
  explicit Shifts(const Problem& problem);

  // False where every row's shift is 0.
  bool active() const noexcept { return p_.keys > 0 && (sloped_ || !p_.terms.key_biases.empty()); }
  RowShift of(int64_t b, int64_t h, int64_t i) const;
  // Smallest and largest of what linear biases are read at: distances of the pairs inside the
  // intervals, each less its row's shift. {0, -1} where there are no pairs.
  std::pair<int64_t, int64_t> range() const;
  // The sum of all key biases of a key, natural units.
  double key_bias(int64_t b, int64_t h, int64_t j) const;

 private:
  // The keys nearest to a query before it and from it on, among those that it sees; -1: none. Where
  // the query's own position is among them, `before` is not searched for.
  struct Neighbours {
    int64_t before = -1, after = -1;
  };
  Neighbours neighbours(int64_t b, int64_t h, int64_t i) const;
  // The first key in [from, to) that the query sees, or the last; -1: none.
  int64_t seen(int64_t b, int64_t h, int64_t i, int64_t from, int64_t to, bool last) const;
  // Lowest and highest position of the keys of an interval, or of all keys where positions are
  // explicit.
  std::pair<int64_t, int64_t> reach(int64_t b, int64_t lo, int64_t hi) const;
  bool ascending(int64_t b) const noexcept;

  const Problem& p_;
  bool sloped_ = false;
  // For explicit key positions; each is [1 or B].
  std::vector<char> ascending_;
  std::vector<std::pair<int64_t, int64_t>> reach_;
};

}  // namespace relpos
