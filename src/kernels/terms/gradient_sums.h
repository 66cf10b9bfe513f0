// Accumulators of the backward pass for what blocks of many queries add to: those of the terms, private
// to a chunk of a head's blocks, and those of the keys, which the blocks of a head share.
#pragma once

#include <span>
#include <vector>

#include "base/block_order.h"
#include "base/parallel.h"
#include "kernels/terms/every_term.h"

namespace relpos {

template <typename Kind>
struct ChunkOf : Kind::Sums {
  using Kind::Sums::Sums;
};
template <typename Kind>
struct KeysOf : Kind::KeySums {
  using Kind::KeySums::KeySums;
};

// What the blocks of one chunk sum. Cells are those of a plan's whole windows.
class ChunkSums {
 public:
  // `wants`: the gradients that are not empty.
  ChunkSums(const Plan& plan, const TermGradients& wants, Workspace& memory)
      : memory_(memory, 0), terms_(plan, wants, memory_) {}

  template <typename Kind>
  const typename Kind::Sums& of() const noexcept {
    return terms_.of<Kind>();
  }
  bool empty() const noexcept { return memory_.empty(); }
  void clear() { memory_.clear(); }
  // The bytes of the sums of biases and tables, if all were wanted.
  static int64_t bytes(const Plan& plan);

 private:
  SumMemory memory_;
  EveryTerm::One<ChunkOf> terms_;
};

// What the keys of one (b, kv head) pair get. A block adds to a tile in its turn (block_order.h).
class KeySums {
 public:
  KeySums(const Plan& plan, const TermGradients& wants, int64_t blocks, Workspace& memory);

  template <typename Kind>
  const typename Kind::KeySums& of() const noexcept {
    return terms_.of<Kind>();
  }
  // Whether they hold gradients of terms, which reduce_terms() takes from them.
  static bool of_terms(const TermGradients& wants);
  void clear();
  // Sets the sums of a tile to 0, if nothing was added yet. One thread at a time may call it.
  void open(int64_t t) { memory_.open(t); }

 private:
  SumMemory memory_;

 public:
  float *dk, *dv;  // as of BackwardState
  BlockOrder order;

 private:
  EveryTerm::One<KeysOf> terms_;
};

// Sums of the chunks of a wave of pairs, [pairs, chunks], in this order into the term gradients, and
// those of its keys after their gradients are written; no `keys`: they hold none of terms.
void reduce_terms(const Plan& plan, const std::vector<ChunkSums>& sums,
                  std::span<const KeySums> keys, int64_t first_pair, int64_t pairs, int64_t chunks,
                  int threads, Stopper& stopper, TermGradients& to);

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
