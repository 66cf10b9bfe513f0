// Accumulators of the backward pass for what blocks of many queries add to: those of the terms, private
// to a chunk of a head's blocks, and those of the keys, which the blocks of a head share.
#pragma once

#include <span>
#include <vector>

#include "base/block_order.h"
#include "base/parallel.h"
#include "kernels/plan/plan.h"

namespace relpos {

// Memory of sums; null where they are not wanted.
class SumMemory {
 protected:
  float* floats(bool wanted, int64_t n, Workspace& memory);
  double* doubles(bool wanted, int64_t n, Workspace& memory);

  std::vector<Buffer<float>> floats_;
  std::vector<Buffer<double>> doubles_;
};

// What the blocks of one chunk sum. Cells are those of a plan's whole windows.
struct Sums : SumMemory {
  struct Bias {
    double* cells = nullptr;  // [group, row_size]
    double* ramps = nullptr;  // [group, 2], where sloped: past and future
  };
  struct Rows {
    TableSums table;
    double* added = nullptr;  // [group, rank]
  };
  double* query_added = nullptr;  // [group, D]
  std::vector<double*> sinks;     // [group], of those without queries
  std::vector<double*> turns;     // of the rotations: [axes, pairs], as the key head turns queries
  std::vector<Bias> biases;       // as the plan's
  std::vector<Rows> rows;
  std::vector<TableSums> columns, values;

  // `wants`: the gradients that are not empty.
  Sums(const Plan& plan, const TermGradients& wants, Workspace& memory);
  bool empty() const noexcept { return floats_.empty() && doubles_.empty(); }
  void clear();
  // The bytes of the sums of biases and tables, if all were wanted.
  static int64_t bytes(const Plan& plan) noexcept;
};

// What the keys of one (b, kv head) pair get. A block adds to a tile in its turn (block_order.h).
struct KeySums : SumMemory {
  float *dk = nullptr, *dv = nullptr;  // as of BackwardState
  float* key_bias = nullptr;           // [group, tiles * kTile]
  std::vector<float*> factors;  // of column tables: [tiles * kTile, padded rank], of c_j / s2
  std::vector<double*> turns;   // of the rotations: [tiles, axes, pairs], by KeyWriter
  BlockOrder order;

  KeySums(const Plan& plan, const TermGradients& wants, int64_t blocks, Workspace& memory);
  // Whether they hold gradients of terms, which reduce_terms() takes from them.
  static bool of_terms(const TermGradients& wants);
  void clear();
  // Sets the sums of a tile to 0, if nothing was added yet. Of one thread at a time.
  void open(int64_t t);

 private:
  // [heads, keys, size]: floats from head to head, and of a tile.
  struct Part {
    float* sums;
    int64_t heads, stride, tile;
  };
  float* part(bool wanted, int64_t heads, int64_t keys, int64_t size, Workspace& memory);

  std::vector<Part> parts_;
  std::vector<uint8_t> open_;  // by tile
};

// Sums of the chunks of a wave of pairs, [pairs, chunks], in this order into the term gradients, and
// those of its keys after their gradients are written; no `keys`: they hold none of terms.
void reduce_terms(const Plan& plan, const std::vector<Sums>& sums, std::span<const KeySums> keys,
                  int64_t first_pair, int64_t pairs, int64_t chunks, int threads, Stopper& stopper,
                  TermGradients& to);

// Writes the gradients of keys and values from their sums.
class KeyWriter {
 public:
  KeyWriter(const Plan& plan, int threads, Workspace& memory);

  // Those of tile t of a (b, kv head) pair.
  void write(KeySums& sums, int64_t pair, int64_t t, int worker,
             const ProblemGradients& gradients) const;

 private:
  // The sums of tile t as rows [kTile, n], padded; in those of the worker where a unit has left them
  // transposed.
  float* rows_of(float* sums, int64_t t, int64_t n, int worker) const;

  const Plan& plan_;
  Buffer<float> rows_;  // of each worker where a unit multiplies, a tile's
  Buffer<float> keys_;  // of each worker where rotations train, a key
};

}  // namespace relpos
