// Golden numbers of biases and of tables: at distances, their classes, and what they start with.
#include <gtest/gtest.h>

#include <cmath>

#include "relpos/attention.h"
#include "relpos/dense.h"
#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::Made;

// What a distance gives at the first head: a bias, or the numbers of a row.
struct AtDistance {
  const char* text;
  std::vector<std::vector<double>> parameters;
  int64_t distance;
  std::vector<double> numbers;
};

TEST(Golden, AtDistances) {
  const std::vector<std::vector<double>> p_and_a = {{2.0}, {1.0}};
  const std::vector<std::vector<double>> identity = {
      {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}};
  const AtDistance rows[] = {
      {"sandwich(heads=8)", {}, 0, {0.0}},  // of the first head 8 h / heads is 1
      {"sandwich(heads=8)", {}, 1, {-1.446619}},
      {"sandwich(heads=8)", {}, -2, {-5.201993}},
      {"sandwich(heads=8)", {}, 10, {-19.340906}},
      {"sandwich(heads=8)", {}, -100, {-33.318914}},
      {"kerple_log(heads=1)", p_and_a, 0, {0.0}},
      {"kerple_log(heads=1)", p_and_a, -1, {-1.386294}},
      {"kerple_log(heads=1)", p_and_a, -2, {-2.197225}},
      {"kerple_log(heads=1)", p_and_a, -3, {-2.772589}},
      {"kerple_log(heads=1)", p_and_a, -4, {-3.218876}},
      // Numbers of kerple outside of their bounds are read as these.
      {"kerple_log(heads=1)", {{-3.0}, {0.001}}, -4, {-0.000392}},
      {"kerple_power(heads=1)", {{5.0}, {-2.0}}, -3, {-0.09}},
      // Location, scale and shape, as the authors' code computes them.
      {"bam(heads=1)", {{0.0}, {-1.0}, {1.0}}, 0, {-1e-5}},
      {"bam(heads=1)", {{0.0}, {-1.0}, {1.0}}, -3, {-1.103648}},
      {"bam(heads=1)", {{0.5}, {-1.0}, {0.5}}, -3, {-1.219446}},
      {"bam(heads=1)", {{0.5}, {-1.0}, {2.0}}, 2, {-0.124164}},
      // Sines, then cosines of n = 1 at frequencies 1 and 0.01, and of n = 12 at 1 and 0.0001.
      {"xlnet(heads=1, head_dim=4, width=4, segments=false)",
       identity,
       -1,
       {0.8414709848, 0.0099998333, 0.5403023059, 0.9999500004}},
      {"gemma_audio(heads=1, head_dim=4, width=4)",
       identity,
       -12,
       {-0.5365729180, 0.0011999997, 0.8438539587, 0.9999992800}},
  };
  for (const auto& [text, parameters, distance, numbers] : rows) {
    SCOPED_TRACE(testing::Message() << text << " at " << distance);
    const Made made(text, parameters);
    const Grid pair{1, 1, -distance};
    const Tensor out(DType::kFloat64, dense_shape(made.part(), pair, "key"));
    dense(made.part(), pair, "key", out.view());
    const double precision = numbers.size() > 1 ? 1e-9 : 1e-6;
    for (size_t n = 0; n < numbers.size(); ++n) {
      EXPECT_NEAR(out.data<double>()[n], numbers[n], precision) << n;
    }
  }
}

// Buckets of DeBERTa-v2's make_log_bucket_position(256, 512), printed for pos_q - pos_k = n.
TEST(Golden, BucketsOfDeberta) {
  const Made made("deberta(heads=2, head_dim=3)");
  const auto row = [&](int64_t n) {
    const Tensor out(DType::kInt64, {1, 1});
    indices(made.part(), {1, 1, n}, out.view());
    return out.view().load_int(0);
  };
  const std::pair<int64_t, int64_t> golden[] = {{0, 0},     {1, 1},     {128, 128}, {129, 129},
                                                {130, 130}, {131, 131}, {132, 131}, {136, 134},
                                                {150, 143}, {200, 169}, {256, 192}, {300, 207},
                                                {400, 233}, {500, 254}, {509, 255}, {511, 255}};
  for (const auto& [n, bucket] : golden) {
    EXPECT_EQ(row(n), 256 + bucket) << n;
    EXPECT_EQ(row(-n), 256 - bucket) << n;
  }
  for (const int64_t n : {int64_t{512}, int64_t{540}, int64_t{1} << 40}) {
    EXPECT_EQ(row(n), 511);
    EXPECT_EQ(row(-n), 0);
  }
  EXPECT_EQ(made.bind().row_tables[0].map.classes(), 512);
}

// What a position adds to the scores of tokens at 0, 1, ... that have these inputs; tables are [rows, 1].
class Added {
 public:
  Added(const char* text, int64_t tokens, const std::vector<std::vector<double>>& numbers)
      : scores_(DType::kFloat64, {1, 1, tokens, tokens}) {
    const Tensor zeros(DType::kFloat64, {1, 1, tokens, 1});
    const Made made(text, numbers, {.queries = tokens, .keys = tokens});
    scores(zeros.view(), zeros.view(), made.position, {}, scores_.view());
  }
  double operator()(int64_t i, int64_t j) const { return scores_.view().at({0, 0, i, j}); }

 private:
  Tensor scores_;
};

std::vector<double> counting(double apart, size_t count) {
  std::vector<double> numbers;
  for (size_t n = 0; n < count; ++n) numbers.push_back(apart * static_cast<double>(n));
  return numbers;
}

TEST(Golden, BucketsOfCpmAntAndNumbersBetweenSegments) {
  std::vector<double> segments(1100, 2.0);
  segments[1] = 5.0;
  const Added row("cpm_ant(heads=1)", 1100, {counting(1, 512 + 32 * 32), segments, segments});
  const int64_t ahead[] = {2, 127, 200, 256, 512, 1024}, bucket[] = {2, 127, 148, 160, 192, 224};
  for (size_t n = 0; n < 6; ++n) {
    EXPECT_EQ(row(ahead[n], 0), bucket[n]) << ahead[n];
    EXPECT_EQ(row(0, ahead[n]), 256 + bucket[n]) << ahead[n];
  }
  EXPECT_EQ(row(0, 1), 512 + 32 * 2 + 5);
  EXPECT_EQ(row(1, 0), 512 + 32 * 5 + 2);
  plain::expect_error([] { Added("cpm_ant(heads=1, segments=3)", 2, {{}, {0, 3}, {0, 3}}); },
                      "segments: expected 0 to 2, got 3");
}

// Distances on the page of 0, 0.019, 0.02, 0.35 and 1 of its width, as Hugging Face's buckets.
TEST(Golden, BucketsOfUdopAreOfHundredthsOfThePage) {
  const std::vector<double> boxes = {0, 19, 20, 700, 2000, 0, -39, -40, -700, -2000};
  const Added row("udop(heads=1)", 5,
                  {counting(1, 32), counting(100, 32), counting(10000, 32), boxes, boxes});
  const int64_t text[] = {0, 17, 18, 19, 20}, across[] = {0, 0, 17, 28, 31},
                down[] = {0, 1, 2, 12, 15};
  for (int64_t j = 0; j < 5; ++j) {
    EXPECT_EQ(row(0, j), text[j] + 100 * across[j] + 10000 * down[j]) << j;
    const int64_t back = static_cast<int64_t>(row(j, 0)) / 100 % 100;
    EXPECT_EQ(back, j < 2 ? 0 : across[j] - 16) << j;
  }
}

TEST(Golden, SpreadOfTheFirstNumbers) {
  const auto init = [](const char* text) { return parse_position(text).parts[0].specs()[0].init; };
  const Init er = init("music_transformer(max_length=16, head_dim=3, heads=2)");
  EXPECT_EQ(er.kind, Init::Kind::kNormal);
  EXPECT_DOUBLE_EQ(er.deviation, 1 / std::sqrt(3.0));
  for (const char* text :
       {"shaw(max_distance=7, head_dim=3)", "shaw(max_distance=7, head_dim=3, heads=2)"}) {
    EXPECT_EQ(init(text).kind, Init::Kind::kUniform);
    EXPECT_DOUBLE_EQ(init(text).high, std::sqrt(6.0 / (15 + 3)));
  }
  const Init normal = init("shaw(max_distance=7, head_dim=3, init=xavier_normal)");
  EXPECT_EQ(normal.kind, Init::Kind::kNormal);
  EXPECT_DOUBLE_EQ(normal.deviation, std::sqrt(2.0 / (15 + 3)));
}

}  // namespace
}  // namespace relpos
