// R of the scores: queries and keys turned in pairs, and scaled where a rotation decays with distance.
// Reference twins: Model::rotate() and Model::decay() of reference_head.h.
#pragma once

#include <algorithm>
#include <vector>

#include "base/workspace.h"
#include "kernels/problem.h"

namespace relpos {

class Rotations {
 public:
  Rotations(const Problem& problem, Workspace& memory);

  bool none() const noexcept { return turns_.empty(); }
  bool decays() const noexcept { return !log_decay_.empty(); }
  bool trains() const noexcept;  // something that queries and keys turn by wants a gradient
  // Turns row [D] of query or key i by R, or by R's transpose; of a query, kv_head is its group's.
  void apply(bool query, int64_t b, int64_t kv_head, int64_t i, float* row) const {
    turn(query, b, kv_head, i, row, 1.0f);
  }
  // Of a gradient: a row of zeros stays one, whatever the token turns by, NaN included.
  void undo(bool query, int64_t b, int64_t kv_head, int64_t i, float* row) const {
    const bool none = std::all_of(row, row + p_.head_dim, [](float x) { return x == 0.0f; });
    if (!none) turn(query, b, kv_head, i, row, -1.0f);
  }
  // Adds to `sums` of rotation n, [axes, pairs] of its heads' frequencies without its multiplier, what query
  // or key i gives: x [D] before R, dy [D] the gradient of R x. Zeros of dy give nothing, whatever x is.
  // Coordinates count from one of them, which changes no sum over the queries and keys of a batch row:
  // there the gradients of a pair's angles add up to 0. So far positions cost no accuracy.
  void add_gradients(size_t n, bool query, int64_t b, int64_t kv_head, int64_t i, const float* x,
                     const float* dy, double* sums) const;
  // Adds the same to the gradients of given tables, whose rows belong to this token and key head alone.
  void add_table_gradients(size_t n, bool query, int64_t b, int64_t kv_head, int64_t i,
                           const float* x, const float* dy, TermGradients::Turns& to) const;
  // row [D] times exp(distance log_decay). A query and a key of a decaying rotation are scaled to meet
  // at the first key of the key's tile: key_j exp((pos_j - first) ld) and, per tile,
  // query_i exp((first - pos_i) ld), which no distance overflows that the score itself does not.
  void decay(int64_t distance, float* row) const;
  // What apply() has scaled query i for: the position where it decays to no power of its own.
  int64_t query_anchor(int64_t b, int64_t i) const;

 private:
  // Cosines and sines [positions, pairs]: query (b, i) reads row queries_at + (b heads + h) Lq + i, b
  // and h being 0 where batch rows, or heads, do not differ; keys alike.
  struct Turn {
    const Rotation* rotation;
    Buffer<float> cos, sin;
    int64_t queries_at, keys_at, q_rows, k_rows, heads = 1;
    std::vector<int64_t> from{};  // what the coordinates of gradients count from [axes, 1 or B]

    int64_t row(const Problem& p, bool query, int64_t b, int64_t kv_head, int64_t i) const noexcept;
  };
  void tabulate(const Rotation& rotation, const Rotation::ByPosition& by, Workspace& memory);
  void tabulate(const Rotation& rotation, const Rotation::ByCoordinates& by, Workspace& memory);
  void tabulate(const Rotation& rotation, const Rotation::ByHead& by, Workspace& memory);
  void tabulate(const Rotation& rotation, const Rotation::Tables& given, Workspace& memory);
  Turn& add(const Rotation& rotation, Turn turn, int64_t rows, Workspace& memory);
  void turn(bool query, int64_t b, int64_t kv_head, int64_t i, float* row, float direction) const;

  const Problem& p_;
  std::vector<Turn> turns_;
  std::vector<double> log_decay_;  // of each dim; empty where nothing decays
};

}  // namespace relpos
