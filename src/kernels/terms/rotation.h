// R of the scores: pairs of queries and keys are rotated, and scaled if a rotation decays with distance.
// In the reference path: Model::rotate() and Model::decay() of reference_head.h.
#pragma once

#include <vector>

#include "kernels/problem.h"
#include "kernels/workspace.h"

namespace relpos {

class Rotations {
 public:
  Rotations(const Problem& problem, Workspace& memory);

  bool none() const noexcept { return turns_.empty(); }
  bool decays() const noexcept { return !log_decay_.empty(); }
  // Rotates row [D] of query or key i by R, or by the transpose of R.
  void apply(bool query, int64_t b, int64_t i, float* row) const { turn(query, b, i, row, 1.0f); }
  void undo(bool query, int64_t b, int64_t i, float* row) const { turn(query, b, i, row, -1.0f); }
  // row [D] times exp(distance log_decay). A query and a key of a decaying rotation are scaled to meet
  // at the first key of the key's tile: key_j exp((pos_j - first) ld) and, per tile,
  // query_i exp((first - pos_i) ld), which no distance overflows that the score itself does not.
  void decay(int64_t distance, float* row) const;
  // The position for which apply() has scaled query i: there its factor is 1.
  int64_t query_anchor(int64_t b, int64_t i) const;

 private:
  // Cosines and sines [positions, pairs]: query (b, i) reads row queries_at + b Lq + i where batch
  // rows differ, queries_at + i where they do not; keys alike.
  struct Turn {
    const Rotation* rotation;
    Buffer<float> cos, sin;
    int64_t queries_at, keys_at, q_rows, k_rows;
  };
  void tabulate(const Rotation& rotation, Workspace& memory);
  void tabulate_axes(const Rotation& rotation, Workspace& memory);
  Turn& add(const Rotation& rotation, Turn turn, int64_t rows, Workspace& memory);
  void turn(bool query, int64_t b, int64_t i, float* row, float direction) const;

  const Problem& p_;
  std::vector<Turn> turns_;
  std::vector<double> log_decay_;  // of each dim; empty where nothing decays
};

}  // namespace relpos
