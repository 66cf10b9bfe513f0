// Random lists of terms with queries, keys and values in bfloat16: products by units, emulated ones
// among them, against the reference path.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "testing/random_results.h"

namespace relpos {
namespace {

using namespace random_terms;  // NOLINT: this test's cases

Case narrow_case(uint64_t seed) { return narrowed(random_case(seed)); }

// More queries than are computed one by one, without products by units.
bool packs(const Case& c) { return on_fused_path(c) && c.p.queries > 16; }

TEST(Units, TermsEqualReference) {
  for_cases(cases(60), narrow_case, on_fused_path, expect_the_reference_on_units);
}

// Few random cases have a rotation that decays, whose queries are scaled before they are rounded.
TEST(Units, DecayingRotationsEqualReference) {
  const auto decays = [](const Case& c) {
    return packs(c) && std::any_of(c.p.terms.rotations.begin(), c.p.terms.rotations.end(),
                                   [](const Rotation& r) { return r.decays(); });
  };
  for_cases(cases(4), narrow_case, decays, expect_the_reference_on_units, 1000);
}

// A call of numbers of bfloat16.
struct NarrowCall : PlainCall {
  const Tensor softmax{DType::kFloat32, {p.batch, p.heads, p.queries, 2}};

  template <typename... Sizes>
  explicit NarrowCall(uint64_t seed, Sizes... sizes) : PlainCall(seed, sizes...) {
    round_numbers({&q, &k, &v, &dout});
  }

  // Both passes, and what they give: out, dq, dk and dv.
  std::array<std::vector<float>, 4> run(const Kernels& kernels) {
    p.kernels = &kernels;
    fused_forward(p, {out.view(), lse.view(), softmax.view()});
    fused_backward(p, out.view(), softmax.view(), dout.view(), {}, gradients());
    return {floats(out), floats(dq), floats(dk), floats(dv)};
  }
};

void fill_row(const Tensor& x, int64_t row, float number) {
  const int64_t dim = x.view().shape[3];
  std::fill_n(x.data<float>() + row * dim, dim, number);
}

// What the weights sum up to before they are rounded: of two keys, one of which has the score 0.
TEST(Units, WeightsAreWithinTheirPolynomial) {
  constexpr int64_t kQueries = 512, kDim = 32;
  NarrowCall c(8, kQueries, int64_t{2}, kDim);
  for (Tensor* x : {&c.q, &c.k}) std::fill_n(x->data<float>(), x->view().numel(), 0.0f);
  c.k.data<float>()[kDim] = -1.0f;
  for (int64_t i = 0; i < kQueries; ++i) {
    c.q.data<float>()[i * kDim] = 8.0f * static_cast<float>(i + 1) / kQueries;
  }
  round_numbers({&c.q});
  for (const Kernels& kernels : unit_kernels()) {
    c.p.kernels = &kernels;
    c.forward();
    for (int64_t i = 0; i < kQueries; ++i) {
      const double weight = std::exp(-static_cast<double>(c.q.data<float>()[i * kDim]));
      // 2.9e-6 of the polynomial, and float32 beside it.
      EXPECT_NEAR(std::expm1(c.lse.data<float>()[i]), weight, 3.5e-6 * weight + 3e-7)
          << kernels.name << ", " << i;
    }
  }
}

// The rows of a block are weighed in chunks, beside products of the chunks before and after. A reference
// that moves rescales what earlier tiles have added, so the products of these must not come later: of
// blocks of one chunk, of two and of more, over less than one batch of tiles and over two; rows of one
// block whose references move at different tiles, or never.
TEST(Units, ReferencesMoveAtAnyTile) {
  constexpr int64_t kDim = 32;
  constexpr float kRises[] = {0.0f,  40.0f, 0.0f,   -24.0f, 80.0f,
                              80.5f, 16.0f, 160.0f, 160.0f, 159.0f};
  for (const int64_t queries : {17, 30, 33, 48, 70, 96, 112}) {
    for (const int64_t keys : {64, 128, 192, 200, 640}) {
      NarrowCall c(static_cast<uint64_t>(queries * keys), queries, keys, kDim);
      for (int64_t i = 0; i < queries; ++i) {
        c.q.data<float>()[i * kDim] = static_cast<float>(i % 5 % 3) * 8.0f;
      }
      for (int64_t j = 0; j < keys; ++j) c.k.data<float>()[j * kDim] = kRises[j / kTile];
      round_numbers({&c.q, &c.k});
      c.p.kernels = &tile_kernels();
      c.forward();
      const auto want = floats(c.out), want_lse = floats(c.lse);
      for (const Kernels& kernels : unit_kernels()) {
        c.p.kernels = &kernels;
        c.forward();
        const auto got = floats(c.out), got_lse = floats(c.lse);
        for (size_t n = 0; n < want.size(); ++n) {
          // Values of a standard normal distribution, of which 2^-9 of a weight is lost.
          ASSERT_NEAR(got[n], want[n], 0.02)
              << kernels.name << ", " << queries << " x " << keys << ", element " << n;
        }
        for (size_t n = 0; n < want_lse.size(); ++n) {
          ASSERT_NEAR(got_lse[n], want_lse[n], 1e-5 * std::fabs(want_lse[n]) + 1e-5)
              << kernels.name << ", " << queries << " x " << keys << ", row " << n;
        }
      }
    }
  }
}

// A table hides what is as far from a query as `reach`, to one side. With 34 and 40, the first rows of the second
// block have a reference when the others have seen only -inf, and some of these see only that in the next tile.
TEST(Units, RowsMaySeeOnlyMinusInfinity) {
  constexpr int64_t kLength = 192, kDim = 32;
  for (const int64_t reach : {20, 34, 40, 80}) {
    for (const int64_t direction : {-1, 1}) {
      NarrowCall c(12, kLength, kLength, kDim);
      const Tensor table(DType::kFloat32, {1, 2 * kLength - 1});
      for (int64_t n = 0; n < 2 * kLength - 1; ++n) {
        const int64_t distance = n - (kLength - 1);
        table.data<float>()[n] = distance * direction < reach ? 0.0f : -HUGE_VALF;
      }
      DistanceBias& bias = c.p.terms.biases.emplace_back();
      bias.table = TermData::parameter(table.view(), false);
      bias.map = ClassMap::clamp(-(kLength - 1), kLength - 1);
      c.p.kernels = &tile_kernels();
      c.forward();
      const auto want = floats(c.out);
      for (const Kernels& kernels : unit_kernels()) {
        c.p.kernels = &kernels;
        c.forward();
        const auto got = floats(c.out);
        for (size_t n = 0; n < want.size(); ++n) {
          ASSERT_NEAR(got[n], want[n], 0.02)
              << kernels.name << ", reach " << reach << ", element " << n;
        }
      }
    }
  }
}

// The same bits, whether the rows beside it see the same keys or not.
TEST(Units, ARowIsTheSameBesideAnyOther) {
  constexpr int64_t kHeads = 4, kLength = 280, kDim = 48, kFar = 9;
  const Tensor table(DType::kFloat32, {kHeads, 2 * kFar + 1});
  for (int64_t n = 0; n < table.view().numel(); ++n) {
    table.data<float>()[n] = 0.1f + 0.3f * static_cast<float>(n % 20);
  }
  for (const bool biased : {false, true}) {
    NarrowCall c(21, kLength, kLength, kDim, 1, kHeads, kHeads);
    if (biased) {
      DistanceBias& bias = c.p.terms.biases.emplace_back();
      bias.table = TermData::parameter(table.view(), false);
      bias.map = ClassMap::clamp(-kFar, kFar);
    }
    const auto even_rows = [&](const Kernels& kernels, int64_t seen_by_odd) {
      c.p.visible.span.clear();
      for (int64_t i = 0; i < kLength; ++i) {
        c.p.visible.span.emplace_back(0, i % 2 == 0 ? kLength : seen_by_odd);
      }
      c.p.kernels = &kernels;
      c.forward();
      std::vector<float> rows;
      for (int64_t row = 0; row < kHeads * kLength; row += 2) {
        const float* out = c.out.data<float>() + row * kDim;
        rows.insert(rows.end(), out, out + kDim);
        rows.push_back(c.lse.data<float>()[row]);
      }
      return rows;
    };
    for (const Kernels& kernels : unit_kernels()) {
      EXPECT_EQ(even_rows(kernels, kLength), even_rows(kernels, 100))
          << kernels.name << (biased ? ", biased" : "");
    }
  }
}

TEST(Units, ValuesMayHaveNoSize) {
  constexpr int64_t kQueries = 40, kKeys = 200;
  NarrowCall c(9, kQueries, kKeys, 32);
  c.p.kernels = &tile_kernels();
  c.forward();
  const auto want = floats(c.lse);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Tensor values(dtype, {1, 1, kKeys, 0}), out(dtype, {1, 1, kQueries, 0});
    c.p.value = values.view();
    c.p.value_dim = 0;
    for (const Kernels& kernels : unit_kernels()) {
      c.p.kernels = &kernels;
      fused_forward(c.p, {out.view(), c.lse.view(), {}});
      const auto got = floats(c.lse);
      for (size_t n = 0; n < want.size(); ++n) {
        ASSERT_NEAR(got[n], want[n], 1e-4) << kernels.name << ", row " << n;
      }
    }
  }
}

// An emulation goes through a block as its unit does, but that it stores each tile at once.
TEST(Units, CallsHaveTheBitsOfTheirEmulations) {
  if (usable_units().empty() || !this_cpu().intel) GTEST_SKIP() << "no known unit on this machine";
  int number = 0;
  for (const int64_t dim : {16, 32, 72, 160}) {
    for (const int64_t queries : {17, 40, 96, 130}) {
      for (const int64_t keys : {40, 128, 600}) {
        if (few_cases() && ++number % 5 != 0) continue;
        NarrowCall c(static_cast<uint64_t>(queries * keys + dim), queries, keys, dim);
        std::map<std::string, std::array<std::vector<float>, 4>> of;
        for (const Kernels& kernels : unit_kernels()) of[kernels.name] = c.run(kernels);
        for (const MatrixUnit& unit : usable_units()) {
          EXPECT_EQ(of.at(unit.name), of.at(std::string(unit.name) + "_emulated"))
              << unit.name << ", " << queries << " x " << keys << " x " << dim;
        }
      }
    }
  }
}

// Without this, float32 products would pass the tests above.
TEST(Units, MultiplyInBothPasses) {
  NarrowCall c(3, 70, 130, 32, 1, 2, 1);
  const auto plain = c.run(tile_kernels());
  for (const Kernels& kernels : unit_kernels()) {
    const auto own = c.run(kernels);
    for (size_t n = 0; n < own.size(); ++n)
      EXPECT_NE(own[n], plain[n]) << kernels.name << ", " << n;
  }
}

// Weights that are shown are those which have made the output: of rotated rows that are rounded.
TEST(Units, WeightsOfRotatedRowsMakeTheOutput) {
  const auto turns = [](const Case& c) {
    const bool turned = !c.p.terms.rotations.empty() || !c.p.terms.query_added.empty();
    return packs(c) && turned && c.p.terms.value_tables.empty() && !c.p.dropout.active();
  };
  for_cases(cases(6), narrow_case, turns, [](Case& c, uint64_t seed) {
    for (const Kernels& kernels : unit_kernels()) {
      c.p.kernels = &kernels;
      const Results run = run_fused(c);
      const Tensor weights(DType::kFloat64, {c.p.batch, c.p.heads, c.p.queries, c.p.keys});
      fused_emit(c.p, run.softmax.view(), weights.view());
      const int64_t b = c.p.batch - 1, h = c.p.heads - 1, i = c.p.queries - 1;
      for (int64_t d = 0; d < c.p.value_dim; ++d) {
        double sum = 0.0, size = 0.0;
        for (int64_t j = 0; j < c.p.keys; ++j) {
          const double weight = weights.view().at({b, h, i, j});
          if (weight == 0.0) continue;
          const double value = c.v.view().at({b, h / c.p.group(), j, d});
          sum += weight * value;
          size += std::fabs(weight * value);
        }
        // Of a weight, and 64 steps of float32 for the sums.
        const double most = (0x1p-8 + 0x1p-17) * size + 1e-30;
        ASSERT_NEAR(run.out.view().at({b, h, i, d}), sum, most)
            << kernels.name << ", seed " << seed;
      }
    }
  });
}

// Keys and values of any address and stride are read by twos where they lie, or else copied.
TEST(Units, ReadAnyLayout) {
  constexpr int64_t kKeys = 75, kDim = 32;
  NarrowCall c(4, 40, kKeys, kDim, 1, 2, 2);
  const auto inner = [&](const Tensor& from, const Tensor& wide, int64_t first) {
    TensorView view = wide.view();
    view.shape[3] = kDim;
    view.data = static_cast<std::byte*>(view.data) + 2 * first;
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t n = 0; n < kKeys * kDim; ++n) {
        const int64_t j = n / kDim, d = n % kDim;
        view.store(view.offset({0, h, j, d}), from.view().at({0, h, j, d}));
      }
    }
    return view;
  };
  const auto run = [&](const Kernels& kernels) {
    c.p.kernels = &kernels;
    c.forward();
    return floats(c.out);
  };
  for (const Kernels& kernels : unit_kernels()) {
    c.p.key = c.k.view();
    c.p.value = c.v.view();
    const std::vector<float> want = run(kernels);
    for (int64_t first = 0; first < 3; ++first) {
      for (int64_t gap = 0; gap < 4; ++gap) {
        const std::vector<int64_t> shape{1, 2, kKeys, kDim + gap + first};
        const Tensor wide_k(DType::kBFloat16, shape), wide_v(DType::kBFloat16, shape);
        c.p.key = inner(c.k, wide_k, first);
        c.p.value = inner(c.v, wide_v, first);
        EXPECT_EQ(run(kernels), want) << kernels.name << ", " << first << ", " << gap;
      }
    }
  }
}

TEST(Units, BitsDoNotDependOnThreads) {
  for_cases(cases(8), narrow_case, on_fused_path, [](Case& c, uint64_t seed) {
    for (const Kernels& kernels : unit_kernels()) {
      c.p.kernels = &kernels;
      c.p.threads = 1;
      const Results one = run_fused(c);
      c.p.threads = 4;
      expect_same(run_fused(c), one, kernels.name + (", seed " + std::to_string(seed)));
    }
  });
}

// What NaN is hidden from has the bits that it would have without.
TEST(Units, HiddenNaNHasNoInfluence) {
  const auto hides = [](const Case& c) { return packs(c) && c.p.keys >= 3; };
  for_cases(cases(6), narrow_case, hides, [](Case& c, uint64_t seed) {
    const int64_t hidden = c.p.keys / 2;
    c.p.visible.key_bits.assign(c.p.batch * c.p.tiles(), ~uint64_t{0});
    for (int64_t b = 0; b < c.p.batch; ++b) {
      c.p.visible.key_bits[b * c.p.tiles() + hidden / kTile] &= ~(uint64_t{1} << (hidden % kTile));
    }
    const auto run = [&c](const Kernels& kernels) {
      c.p.kernels = &kernels;
      return run_fused(c);
    };
    std::list<Results> clean;
    for (const Kernels& kernels : unit_kernels()) clean.push_back(run(kernels));
    for (int64_t pair = 0; pair < c.p.batch * c.p.kv_heads; ++pair) {
      for (const Tensor* x : {&c.k, &c.v}) fill_row(*x, pair * c.p.keys + hidden, std::nanf(""));
    }
    for (const Kernels& kernels : unit_kernels()) {
      expect_same(run(kernels), clean.front(), kernels.name + (", seed " + std::to_string(seed)));
      clean.pop_front();
    }
  });
}

// A NaN is in the output of every row that sees it: of its own query, or of all that see the key.
TEST(Units, NaNIsSeen) {
  constexpr int64_t kQueries = 40, kKeys = 70, kDim = 32, kRow = 17, kKey = 66;
  for (const bool of_key : {false, true}) {
    NarrowCall c(7, kQueries, kKeys, kDim);
    fill_row(of_key ? c.k : c.q, of_key ? kKey : kRow, std::nanf(""));
    for (const Kernels& kernels : unit_kernels()) {
      c.p.kernels = &kernels;
      c.forward();
      for (int64_t n = 0; n < kQueries * kDim; ++n) {
        ASSERT_EQ(std::isnan(c.out.data<float>()[n]), of_key || n / kDim == kRow)
            << kernels.name << ", " << n << (of_key ? ", of a key" : ", of a query");
      }
    }
  }
}

// A query and a gradient of outputs that are NaN reach the keys that their rows see, and no others.
TEST(Units, NaNRowsReachOnlyTheKeysThatTheySee) {
  constexpr int64_t kQueries = 100, kKeys = 140, kDim = 32, kRow = 57, kSeen = 70;
  NarrowCall c(5, kQueries, kKeys, kDim);
  c.p.visible.span.assign(kQueries, {0, kKeys});
  c.p.visible.span[kRow] = {0, kSeen};
  std::list<std::array<std::vector<float>, 4>> clean;
  for (const Kernels& kernels : unit_kernels()) clean.push_back(c.run(kernels));
  for (const Tensor* x : {&c.q, &c.dout}) fill_row(*x, kRow, std::nanf(""));
  for (const Kernels& kernels : unit_kernels()) {
    const auto dirty = c.run(kernels);
    for (const size_t x : {2, 3}) {  // dk, dv
      for (int64_t n = 0; n < kKeys * kDim; ++n) {
        const float got = dirty[x][n];
        if (n / kDim < kSeen) {
          ASSERT_TRUE(std::isnan(got)) << kernels.name << ", " << x << ", " << n;
        } else {
          ASSERT_EQ(got, clean.front()[x][n]) << kernels.name << ", " << x << ", " << n;
        }
      }
    }
    clean.pop_front();
  }
}

// A row that is NaN skips no tile of its keys, however small their weights would have been.
TEST(Units, NaNRowsReachKeysWhoseWeightsUnderflow) {
  constexpr int64_t kQueries = 40, kKeys = 700, kDim = 32, kRow = 39, kFirst = 300;
  NarrowCall c(5, kQueries, kKeys, kDim);
  const Tensor slopes(DType::kFloat32, {2, 1});
  slopes.data<float>()[0] = 2.0f;
  slopes.data<float>()[1] = -2.0f;
  c.p.terms.biases.emplace_back().slopes = TermData::parameter(slopes.view(), false);
  c.p.positions.q = {kKeys - kQueries};
  c.p.visible.span.assign(kQueries, {kFirst, kKeys});
  c.p.visible.span[kRow] = {0, kKeys};
  fill_row(c.k, 0, std::nanf(""));
  for (const Kernels& kernels : unit_kernels()) {
    const auto [out, dq, dk, dv] = c.run(kernels);
    for (int64_t n = 0; n < kQueries * kDim; ++n) {
      ASSERT_EQ(std::isnan(out[n]), n / kDim == kRow) << kernels.name << ", " << n;
    }
    for (int64_t n = 0; n < kKeys * kDim; ++n) {
      ASSERT_TRUE(std::isnan(dk[n])) << kernels.name << ", dk " << n;
      ASSERT_TRUE(std::isnan(dv[n])) << kernels.name << ", dv " << n;
    }
  }
}

}  // namespace
}  // namespace relpos
