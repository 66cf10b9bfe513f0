// What queries and keys turn by (plan/rotations.h): their gradients are turned back, and those of trained
// frequencies and given tables taken just before.
// Reference twins: Model::rotate() and HeadGradient::add_turns().
#pragma once

#include <vector>

#include "kernels/terms/term.h"

namespace relpos {

class RotationAngles : public Term {
 public:
  // Of each rotation's frequencies, as the key head turns queries or keys: [parts, axes, pairs].
  struct TurnSums : TermSums {
    std::vector<double*> turns;
    int64_t parts;

    TurnSums(const Plan& plan, const TermGradients& wants, SumMemory& memory, int64_t parts);
  };
  struct Sums : TurnSums {
    Sums(const Plan& plan, const TermGradients& wants, SumMemory& memory)
        : TurnSums(plan, wants, memory, 1) {}
  };
  struct KeySums : TurnSums {  // a part for each tile
    KeySums(const Plan& plan, const TermGradients& wants, SumMemory& memory)
        : TurnSums(plan, wants, memory, plan.tiles) {}
  };

  RotationAngles(const Plan& plan, Workspace& memory);
  bool reads_dq(const Sums&) const { return !plan_.rotations.none(); }
  void finish(const BlockGradients& rows, const Sums& sums);
  static bool reads_dk(const Plan& plan) { return !plan.rotations.none(); }
  static void finish_key(const Plan& plan, const KeySums& sums, int64_t pair, int64_t j, float* dk,
                         float* key, TermGradients& to);
  static bool keeps_keys(const TermGradients& wants);
  static void reduce_shared(const Plan& plan, const TurnSums& sums, int64_t kv_head,
                            TermGradients& to);

 private:
  // What a row of block `rows` has turned by.
  void add_gradients(const BlockGradients& rows, int row, int64_t kv_head, const Sums& sums);

  Buffer<float> unturned_;  // a query and what is added to it [Dp]
};

}  // namespace relpos
