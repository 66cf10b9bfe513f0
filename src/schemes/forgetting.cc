// Lin et al. 2025 (Forgetting Transformer): what gates let through since a key weighs its score.
//
//   score[h,i,j] += sum of log_f[h, l] over j < l <= i  =  F[h,i] - F[h,j],   F = cumulative sums
//
// F[h,i] is the same for every key of a query, which a softmax does not see: the bias is -F[h,j], and
// the log-sum-exp is less than the paper's by F[h,i]. Sums are taken in double.
#include "relpos/scheme.h"

namespace relpos {

namespace {

struct ForgettingGate {
  void options(OptionList&) {}

  void terms(Builder& b) const {
    const Source log_f = b.input("log_f", {kBatch, kHeads, kKeys}, Init::uniform(-1, 0),
                                 "logarithms of the forget gates of each key; 0 at padding");
    b.key_bias(-log_f.cumulative(), /*up_to_query=*/true);
  }
};

}  // namespace

RELPOS_SCHEME(forgetting, ForgettingGate, "ForgettingGate",
              "gates that each key's token sets let the past fade, by an input of the call",
              "Lin et al. 2025, Forgetting Transformer: Softmax Attention with a Forget Gate, 3")

}  // namespace relpos
