#include <gtest/gtest.h>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::Made;

TEST(GemmaAudio, TheSlowestSinusoidIsTenThousandTimesSlower) {
  Made made("gemma_audio",
            {{"heads", int64_t{1}}, {"head_dim", int64_t{2}}, {"width", int64_t{4}}});
  made.distances = {-12, 0};
  const RowTable rows = made.lower(1, 2).row_tables.at(0);
  // Of n = 12 at frequencies 1 and 0.0001.
  const double waves[] = {-0.5365729180, 0.0011999997, 0.8438539587, 0.9999992800};
  const TensorView weight = made.parameters()[0];
  for (int64_t d = 0; d < 2; ++d) {
    double sum = 0.0;
    for (int64_t w = 0; w < 4; ++w) sum += waves[w] * weight.at({d, w});
    EXPECT_NEAR(rows.table.view.at({0, rows.map(-12), d}), sum, 1e-9);
  }
}

}  // namespace
}  // namespace relpos
