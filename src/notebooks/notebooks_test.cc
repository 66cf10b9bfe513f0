// The matrices of `steps` against what the notebooks print, and against each other.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "relpos/dense.h"
#include "testing/schemes.h"

namespace relpos {
namespace {

using Values = std::vector<double>;

// A part whose drawn parameters hold different numbers.
struct Drawn : plain::Made {
  explicit Drawn(const std::string& text) : Made(text) {
    double number = 0.0;
    for (size_t n = 0; n < part().parameters.size(); ++n) {
      const TensorView& view = part().parameters[n];
      if (!part().specs()[n].trainable) continue;
      for (int64_t i = 0; i < view.numel(); ++i) view.store(i, number += 1.0);
    }
  }

  double parameter(std::initializer_list<int64_t> index) const {
    return part().parameters[0].at(index);
  }
  std::vector<std::string> names(const Grid& grid) const {
    std::vector<std::string> list;
    for (const Step& step : steps(part(), grid)) list.push_back(step.name);
    return list;
  }
  Step step(const Grid& grid, const std::string& name) const {
    for (Step& step : steps(part(), grid)) {
      if (step.name == name) return std::move(step);
    }
    ADD_FAILURE() << "no step " << name;
    return {};
  }
};

TEST(Notebooks, T5StepsInTheirOrder) {
  const Drawn t5("t5(heads=4, buckets=6, max_distance=20, bidirectional=false)");
  const Grid grid{15, 15, 0};
  EXPECT_EQ(t5.names(grid),
            (std::vector<std::string>{"q_pos", "k_pos", "rel_pos", "n", "max(n, 0)", "is_small",
                                      "val_if_large", "val_if_large.long()",
                                      "min(val_if_large, num_buckets - 1)",
                                      "position_bucket_indices", "relative_position_values"}));
  const Step values = t5.step(grid, "relative_position_values");
  EXPECT_EQ(values.shape, (std::vector<int64_t>{4, 15, 15}));
  // Orientation [head, query, key]: query 14, key 0 holds bucket 5, query 0, key 14 bucket 0.
  EXPECT_EQ(values.values[static_cast<size_t>((2 * 15 + 14) * 15)], t5.parameter({5, 2}));
  EXPECT_EQ(values.values[static_cast<size_t>(2 * 15 * 15 + 14)], t5.parameter({0, 2}));
}

// The notebook's where(is_small, n, min(val_if_large, num_buckets - 1)), and with two sides its
// predecessor's offset, from the steps themselves.
TEST(Notebooks, T5StepsLeadToTheIndices) {
  for (const bool two_sided : {false, true}) {
    for (const char* sizes : {"buckets=8, max_distance=17", "buckets=2, max_distance=5",
                              "buckets=6, max_distance=20", "buckets=32, max_distance=128"}) {
      const Drawn t5(std::string("t5(heads=1, ") + sizes +
                     ", bidirectional=" + (two_sided ? "true)" : "false)"));
      const Grid grid{9, 150, 100};
      const Step n = t5.step(grid, two_sided ? "abs(n)" : "max(n, 0)");
      const Step small = t5.step(grid, "is_small");
      const Step large = t5.step(grid, "min(val_if_large, num_buckets - 1)");
      const Step index = t5.step(grid, "position_bucket_indices");
      const Step ahead = two_sided ? t5.step(grid, "(n < 0) * num_buckets")
                                   : Step{"", {}, {}, Values(index.values.size())};
      for (size_t p = 0; p < index.values.size(); ++p) {
        EXPECT_EQ(index.values[p],
                  ahead.values[p] + (small.values[p] != 0 ? n.values[p] : large.values[p]));
      }
    }
  }
}

TEST(Notebooks, ALiBi) {
  const Drawn alibi("alibi(heads=8, slopes=geometric)");
  EXPECT_EQ(alibi.step({1, 4, 2}, "slopes").values[7], std::exp2(-8.0));
  EXPECT_EQ(alibi.step({1, 4, 2}, "distance_matrix").values, (Values{-2, -1, 0, -1}));
  const Drawn past("alibi(heads=8, symmetric=false)");
  EXPECT_EQ(past.step({1, 4, 2}, "distance_matrix").values, (Values{-2, -1, 0, 0}));
}

TEST(Notebooks, BiasRPE) {
  const Drawn rpe("bias_rpe(heads=2, max_distance=3)");
  const Grid grid{2, 4, 0};
  EXPECT_EQ(rpe.step(grid, "rel_pos").values, (Values{0, -1, -2, -3, 1, 0, -1, -2}));
  EXPECT_EQ(rpe.step(grid, "rel_pos.clamp(-r_max + 1, r_max - 1) + r_max - 1").values,
            (Values{2, 1, 0, 0, 3, 2, 1, 0}));
  const Step gathered = rpe.step(grid, "biases[:, rel_pos]");
  EXPECT_EQ(gathered.shape, (std::vector<int64_t>{2, 2, 4}));
  EXPECT_EQ(gathered.values[8], rpe.parameter({1, 2}));
  EXPECT_EQ(gathered.values[12], rpe.parameter({1, 3}));
}

TEST(Notebooks, Shaw) {
  const Drawn per_head("shaw(max_distance=2, head_dim=3, heads=2, distance=query-key)");
  EXPECT_EQ(per_head.step({3, 3, 0}, "embeddings_table[:, final_mat]").shape,
            (std::vector<int64_t>{2, 3, 3, 3}));
  const Drawn large("shaw(max_distance=7, head_dim=3, distance=query-key)");
  EXPECT_EQ(large.names({700, 800, 0}).back(), "final_mat");
}

TEST(Notebooks, MusicTransformerSkewAndWhatItWrapsAround) {
  const Drawn music("music_transformer(max_length=5, head_dim=3)");
  const Grid grid{5, 5, 0};
  EXPECT_EQ(music.step(grid, "S_rel").values,
            (Values{5, 0,  6,  7,  8,  9,  10, 0,  11, 12, 13, 14, 15,
                    0, 16, 17, 18, 19, 20, 0,  21, 22, 23, 24, 25}));
  EXPECT_EQ(music.step(grid, "S_rel.tril()").values,
            (Values{5, 0, 0,  0,  0,  9,  10, 0,  0,  0,  13, 14, 15,
                    0, 0, 17, 18, 19, 20, 0,  21, 22, 23, 24, 25}));
  EXPECT_EQ(music.step(grid, "padded_QEr").shape, (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(music.step(grid, "reshaped_QEr").shape, (std::vector<int64_t>{6, 5}));
  EXPECT_EQ(music.step(grid, "rows of Er, -1 for none").values,
            (Values{4,  -1, -1, -1, -1, 3, 4,  -1, -1, -1, 2, 3, 4,
                    -1, -1, 1,  2,  3,  4, -1, 0,  1,  2,  3, 4}));
}

// At and below the diagonal the skew's product for query i and row r is i * L + (its column), and
// row r of a table of fewer rows stands L - rows columns further right.
TEST(Notebooks, MusicTransformerSkewIsTheIndexFormula) {
  for (const int64_t length : {3, 7, 12}) {
    const Drawn music("music_transformer(head_dim=3, max_length=" + std::to_string(length) + ")");
    const int64_t n = 7;
    const Step skewed = music.step({n, n, 0}, "S_rel.tril()");
    const Step row = music.step({n, n, 0}, "rows of Er, -1 for none");
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        const auto at = static_cast<size_t>(i * n + j);
        const double column = row.values[at] + static_cast<double>(n - length);
        EXPECT_EQ(skewed.values[at],
                  row.values[at] < 0 ? 0.0 : static_cast<double>(i * n) + column + 1);
      }
    }
  }
}

TEST(Notebooks, MusicTransformerHasNoSkewWhereItDoesNotHold) {
  const Drawn music("music_transformer(max_length=5, head_dim=3)");
  const Drawn both("music_transformer(max_length=5, head_dim=3, bidirectional=true)");
  EXPECT_EQ(music.names({3, 5, 2}).size(), 3U);
  EXPECT_EQ(both.names({5, 5, 0}).size(), 3U);
  EXPECT_EQ(music.names({0, 0, 0}).size(), 8U);
}

TEST(Notebooks, RoPETables) {
  const int64_t d = 6;
  for (const bool half : {false, true}) {
    const Drawn rope(half ? "rope(head_dim=6, layout=half)"
                          : "rope(head_dim=6, layout=interleaved)");
    const Grid grid{4, 4, 0};
    EXPECT_EQ(rope.names(grid), (std::vector<std::string>{"theta", "positions", "freqs",
                                                          "freqs_twice", "cos", "sin"}));
    const Step cos = rope.step(grid, "cos"), sin = rope.step(grid, "sin");
    EXPECT_EQ(cos.shape, (std::vector<int64_t>{4, d}));
    for (int64_t position = 0; position < 4; ++position) {
      for (int64_t c = 0; c < d; ++c) {
        const int64_t pair = half ? c % (d / 2) : c / 2;
        const double theta = std::pow(1e4, -2.0 * static_cast<double>(pair) / d);
        const auto at = static_cast<size_t>(position * d + c);
        EXPECT_NEAR(cos.values[at], std::cos(static_cast<double>(position) * theta), 1e-15);
        EXPECT_NEAR(sin.values[at], std::sin(static_cast<double>(position) * theta), 1e-15);
      }
    }
    EXPECT_EQ(rope.step({2, 4, 7}, "positions_q").values, (Values{7, 8}));
    EXPECT_EQ(rope.step({2, 4, 7}, "cos_q").shape, (std::vector<int64_t>{2, d}));
    EXPECT_EQ(rope.names({2, 4, 2}).size(), 6U);
  }
}

}  // namespace
}  // namespace relpos
