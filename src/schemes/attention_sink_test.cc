#include <gtest/gtest.h>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::Made;

TEST(AttentionSink, GivesItsScoresAndTakesTheirGradients) {
  Made made("attention_sink", {{"heads", int64_t{3}}});
  const Terms terms = made.lower(3);
  ASSERT_EQ(terms.sinks.size(), 1U);
  EXPECT_EQ(terms.sinks[0].view.data, made.parameters()[0].data);
  TermGradients gradients = TermGradients::zeros(terms);
  gradients.sinks[0] = {1.0, -2.0, 3.5};
  EXPECT_EQ(made.pull_back(gradients)[0], gradients.sinks[0]);
}

}  // namespace
}  // namespace relpos
