// The shape of every kind of term in the fused path. A kind is a class; each worker has an object of it. The
// drivers run over the list of all kinds (every_term.h) and name none. Each step is a function that
// does nothing here, and that a kind hides where it has something to do. None is virtual: a step is
// inlined where the list is run over, once a block or a tile.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/plan/plan.h"

namespace relpos {

// Memory of sums. Where sums are not wanted there is none, and null stands for them.
class SumMemory {
 public:
  SumMemory(Workspace& memory, int64_t tiles) : memory_(memory), open_(tiles) {}

  float* floats(bool wanted, int64_t n);
  double* doubles(bool wanted, int64_t n);
  // [heads, keys, size], which open() clears tile by tile.
  float* by_key(bool wanted, int64_t heads, int64_t size);
  bool empty() const noexcept { return floats_.empty() && doubles_.empty(); }
  void clear();  // all others
  // Sets the sums of a tile to 0, if nothing was added yet. One thread at a time may call it.
  void open(int64_t t);

 private:
  struct ByKey {
    Buffer<float> sums;
    int64_t heads, size;
  };
  Workspace& memory_;
  std::vector<Buffer<float>> floats_;
  std::vector<Buffer<double>> doubles_;
  std::vector<ByKey> by_key_;
  std::vector<uint8_t> open_;  // by tile
};

// Sums of a kind of term.
struct TermSums {};
struct NoSums : TermSums {
  NoSums(const Plan&, const TermGradients&, SumMemory&) {}
};

// The rows of a block in the backward pass, all of head g of a group.
struct BlockGradients {
  Block& block;
  BackwardState& state;
  int64_t g;
  const float* queries;    // [kRows, Dp] as they were given
  float* dq;               // [kRows, Dp]; in finish() times the scale
  const double* row_sums;  // [kRows], of the gradients of scores
  TermGradients& to;
};

// Of a kind of tables, which are a list of the plan as of the terms.
struct TablesSums : TermSums {
  std::vector<TableSums> tables;

  template <typename Plans, typename Gradients>
  TablesSums(const Plans& plans, const Gradients& wants, int64_t group, SumMemory& memory) {
    for (size_t n = 0; n < plans.size(); ++n) {
      const bool wanted = !wants[n].table.empty();
      tables.push_back({memory.floats(wanted, TableSums::size(plans[n], group))});
    }
  }
  template <typename Plans>
  static int64_t bytes(const Plans& plans, int64_t group) {
    int64_t sum = 0;
    for (const TablePlan& table : plans) sum += TableSums::size(table, group) * int64_t{4};
    return sum;
  }
  template <typename Sums, typename Plans, typename Terms, typename Gradients, typename Reduce>
  static void reduce_each(const Plans& plans, const Terms& terms, double scale, Gradients& to,
                          const Reduce& reduce) {
    for (size_t n = 0; n < plans.size(); ++n) {
      reduce(plans[n], terms[n].table, scale, to[n].table,
             [n](const Sums& sums) { return sums.tables[n]; });
    }
  }
};

class Term {
 public:
  // What the blocks of a chunk sum, and what they sum for the keys of a (batch row, key head) pair: made of
  // the plan, the gradients, those that are wanted not empty, and memory.
  using Sums = NoSums;
  using KeySums = NoSums;

  // prepare: the plan holds what is written out for the whole call, a kind its worker's scratch.
  explicit Term(const Plan& plan) : plan_(plan) {}

  // attach: points the rows of a block at what they read; start(), at where their gradients go.
  void attach(Block&, const float* /*queries, [kRows, Dp] as they were given*/) {}
  void start(const BlockGradients&, const TermSums&, const TermSums&) {}
  // Sets to 0 what the weights of a block are added to.
  void clear(const Block&) {}

  // before: brings what is read to tiles [t, t + count), at most kTilesAtATime, or to one tile, where one
  // is read at a time. leave() comes first in the backward pass, and sends on gradients that would go.
  void leave(const BlockGradients&, int64_t /*t*/, int64_t /*count*/, const TermSums&) {}
  void before(Block&, int64_t /*t*/, int64_t /*count*/) {}
  static bool by_tile(const Plan&) { return false; }
  void before_tile(Block&, const KeyTile&) {}

  // after: takes the gradients of the scores of a tile; add(), in the forward pass after all tiles, gives
  // o [kRows, Dvp] what weights add beside the values, and l [kRows, kLanes] weights that it lacks.
  void after_tile(const BlockGradients&, const KeyTile&, int64_t /*t*/, const TermSums&,
                  const TermSums&) {}
  void add(const Block&, float* /*l*/, float* /*o*/) {}

  // finish: sends on what the rows of a block, or key j of a pair, have summed. Some read or change dq
  // and dk [Dp]; `key` [D] is scratch, where rotations train.
  void finish(const BlockGradients&, const TermSums&) {}
  bool reads_dq(const TermSums&) const { return false; }
  static void finish_key(const Plan&, const TermSums&, int64_t /*pair*/, int64_t /*j*/,
                         float* /*dk*/, float* /*key*/, TermGradients&) {}
  static bool reads_dk(const Plan&) { return false; }

  // reduce: adds sums to the gradients of the heads that read kv_head, while others may do so for other
  // heads; reduce_shared(), to those that heads share. reduce_tables() calls reduce(table, data, scale,
  // gradient, sums_of) for each table, where sums_of(Sums) are a chunk's of it.
  static void reduce(const Plan&, const TermSums&, int64_t /*kv_head*/, TermGradients&) {}
  static void reduce_keys(const Plan&, const TermSums&, int64_t /*b*/, int64_t /*kv_head*/,
                          TermGradients&) {}
  static void reduce_shared(const Plan&, const TermSums&, int64_t /*kv_head*/, TermGradients&) {}
  template <typename Reduce>
  static void reduce_tables(const Plan&, TermGradients&, const Reduce&) {}
  // Whether reduce_keys() or reduce_shared() takes something from KeySums.
  static bool keeps_keys(const TermGradients&) { return false; }

  // bytes: of Sums, if all gradients were wanted.
  static int64_t bytes(const Plan&) { return 0; }

 protected:
  const Plan& plan_;
};

// Whether a gradient is wanted: zeros() of TermGradients leaves the others empty.
inline bool wanted(const std::vector<double>& gradient) noexcept { return !gradient.empty(); }

}  // namespace relpos
