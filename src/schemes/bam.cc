// Bianchessi et al. 2025 (Bayesian attention mechanism): the logarithm of a generalised Gaussian over
// the distance, of each head.
//
//   score[h,i,j] += -(|(delta - 2 sinh(loc)) exp(scale)| + 1e-5)^shape,   delta = pos_k - pos_q
//
// It starts as ALiBi: shape 1, loc 0, and exp(scale) its slopes. The models of the paper are causal.
// Their SSMax multiplies the query, and not the bias, by a learned number and ln(pos_q + 1).
#include <cmath>

#include "relpos/scheme.h"
#include "schemes/common/slopes.h"

namespace relpos {

namespace {

struct BAM {
  int64_t heads = 0;

  void options(OptionList& o) { o.required("heads", heads, "query heads"); }

  void terms(Builder& b) const {
    std::vector<double> slopes = common::paper_slopes(heads);
    for (double& slope : slopes) slope = std::log(slope);
    const std::vector<int64_t> one_a_head{1, heads, 1, 1};
    const Source loc = b.parameter("loc", one_a_head, Init::constant(0.0),
                                   "the bias is least at the distance 2 sinh(loc), key - query"),
                 scale = b.parameter("scale", one_a_head, Init::each(std::move(slopes)),
                                     "logarithm of how fast it falls"),
                 shape = b.parameter("shape", one_a_head, Init::constant(1.0),
                                     "1: a Laplacian, 2: a Gaussian");
    b.bias(
        [](double delta, auto l, auto s, auto power) {
          return -exp(power * ln(abs((delta - (exp(l) - exp(-l))) * exp(s)) + 1e-5));
        },
        loc, scale, shape);
  }
};

}  // namespace

RELPOS_SCHEME(bam, BAM, "BAM", "a generalised Gaussian over the distance, learned for each head",
              "Bianchessi et al. 2025, Bayesian Attention Mechanism, section 2.3")

}  // namespace relpos
