// key_bias[h, j], which the plan has written out over the keys (plan/bias_plan.h).
// Reference twins: Head::score_row() and HeadGradient::add_key_bias().
#pragma once

#include "kernels/terms/term.h"

namespace relpos {

class KeyBiases : public Term {
 public:
  struct KeySums : TermSums {
    float* sums;  // [group, tiles * kTile]

    KeySums(const Plan& plan, const TermGradients& wants, SumMemory& memory);
  };

  KeyBiases(const Plan& plan, Workspace&) : Term(plan) {}
  void attach(Block& block, const float* queries);
  void start(const BlockGradients& rows, const TermSums&, const KeySums& keys);
  static bool keeps_keys(const TermGradients& wants);
  static void reduce_keys(const Plan& plan, const KeySums& keys, int64_t b, int64_t kv_head,
                          TermGradients& to);
};

}  // namespace relpos
