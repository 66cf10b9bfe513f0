// Thinking Machines 2026 (Inkling): learned profiles over the distance into the past, mixed by each
// query.
//
//   score[h,i,j] += <c[h,i], proj[:, n]>,   n = pos_q - pos_k, nothing outside 0 <= n < extent
//
// c is given with each call: the model computes it from the token. It is not multiplied by the scale.
#include "relpos/scheme.h"

namespace relpos {

namespace {

struct Inkling {
  int64_t rank = 16, extent = 1024;

  void options(OptionList& o) {
    o.size("rank", rank, "profiles");
    o.size("extent", extent, "distances that they cover, from 0 on");
  }

  void terms(Builder& b) const {
    const Source proj = b.parameter("proj", {rank, extent}, Init::normal(0.02),
                                    "the profiles, each a number for every distance from 0 on");
    const Source c = b.input("c", {kBatch, kHeads, kQueries, rank}, Init::normal(1.0),
                             "how much of each profile a query takes");
    b.rows(ClassMap::zero_outside(1 - extent, 0, /*reversed=*/true), proj.transposed(),
           {.factor = c, .scale = 1.0});
  }
};

}  // namespace

RELPOS_SCHEME(inkling, Inkling, "Inkling",
              "learned profiles over the distance into the past, mixed by each query",
              "Thinking Machines 2026, Inkling; Hugging Face InklingRelativeLogits")

}  // namespace relpos
