// Random lists of terms, no scheme involved: the fused path against the reference path, whose gradients
// are compared with finite differences. tests/schemes/test_conformance.py compares it with formulas.
#include "kernels/fused.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

#include "base/buffer.h"
#include "base/parallel.h"
#include "base/sanitized.h"
#include "testing/random_results.h"
#include "values/term_kinds.h"

namespace relpos {
namespace {

using namespace random_terms;  // NOLINT: this test's cases

// Whether a case's numbers are compared; its calls are made in any case.
bool compared(uint64_t seed) { return !kSanitized || seed % 6 == 0; }

// No scheme gives a column table a factor or a scale of its own. The keys as its factor change no bit, and
// a scale is a multiplier.
TEST(Terms, AGivenFactorIsWhatTheKeyWouldBe) {
  constexpr int64_t kLength = 20, kDim = 6, kReach = 4;
  PlainCall call(9, kLength, kLength, kDim, 2, 4, 2);
  ColumnTable& term = add_term(call.p.terms.column_tables, ClassMap::clamp(-kReach, kReach),
                               call.trained({4, 2 * kReach + 1, kDim}));
  const auto scores = [&] {
    const Tensor out(DType::kFloat64, {2, 4, kLength, kLength});
    reference_scores(call.p, out.view());
    return std::vector<double>(out.data<double>(), out.data<double>() + out.view().numel());
  };
  const std::vector<double> content = scores();
  term.factor = TermData::parameter(call.k.view(), false);
  EXPECT_EQ(scores(), content);
  term.scale = 0.5;
  const std::vector<double> scaled = scores();
  EXPECT_NE(scaled, content);
  term.scale.reset();
  term.table.multiplier = 0.5;
  EXPECT_EQ(scores(), scaled);
}

// Multipliers are made powers of two, so that numbers which have them already give the same bits.
TEST(Terms, AMultiplierIsThatOfTheNumbers) {
  for_cases(cases(60), drawn(), any, [](Case& c, uint64_t seed) {
    Results with(c, DType::kFloat64), without(c, DType::kFloat64);
    TermGradients none = TermGradients::like(c.p.terms);
    for_each_number(c.p.terms, none, [](const char*, TermData& data, auto&, HeadAxis) {
      data.multiplier = std::exp2(std::round(std::log2(data.multiplier)));
    });
    reference_forward(c.p, {with.out.view(), with.lse.view(), {}});
    for_each_number(c.p.terms, none, [](const char*, TermData& data, auto&, HeadAxis) {
      for (int64_t n = 0; data.multiplier != 1.0 && n < data.view.numel(); ++n) {
        data.view.store(n, data.view.load(n) * data.multiplier);
      }
      data.multiplier = 1.0;
    });
    reference_forward(c.p, {without.out.view(), without.lse.view(), {}});
    expect_same(without, with, "seed " + std::to_string(seed));
  });
}

// Gives the case's mask one of the types that kernels read, or keys that lie two apart.
void retype_mask(Case& c, uint64_t seed) {
  const TensorView from = c.mask.view();
  if (!from.given()) return;
  const DType types[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat32};
  const int64_t apart = seed % 4 == 3 ? 2 : 1;
  std::vector<int64_t> shape(from.shape.begin(), from.shape.begin() + from.rank);
  shape.back() *= apart;
  Tensor typed(types[seed % 4], shape);
  for (int64_t n = 0; n < from.numel(); ++n) typed.view().store(n * apart, from.load(n));
  TensorView& mask = c.p.visible.mask;
  mask.data = typed.view().data;
  mask.dtype = typed.view().dtype;
  for (int64_t& stride : mask.strides) stride *= apart;
  c.mask = std::move(typed);
}

TEST(Terms, FusedEqualsReference) {
  int unfused = 0;
  for_cases(cases(160), drawn(), any, [&](Case& c, uint64_t seed) {
    if (!on_fused_path(c)) {  // a decaying rotation at explicit positions
      ++unfused;
      return;
    }
    retype_mask(c, seed);
    expect_the_reference(c, seed, compared(seed));
  });
  EXPECT_LT(10 * unfused, cases(160));
}

// Leaves NaN in free memory of every size, for whoever reads what it has not written.
void poison() {
  std::vector<Buffer<uint8_t>> blocks;
  for (int64_t size = 256; size <= int64_t{1} << 20; size *= 2) {
    for (int64_t eighth = 8; eighth < 16; ++eighth) blocks.emplace_back(size / 8 * eighth);
  }
  for (const Buffer<uint8_t>& block : blocks) std::fill_n(block.get(), block.size(), uint8_t{0xFF});
}

TEST(Terms, BitsDoNotDependOnWhatMemoryHeld) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps freed memory from new owners";
  for_cases(cases(60), drawn(), on_fused_path, [](const Case& c, uint64_t seed) {
    const Results clean = run_fused(c);
    poison();
    expect_same(run_fused(c), clean, "seed " + std::to_string(seed));
  });
}

// Few queries whose keys are divided among tasks.
TEST(Terms, ManyKeysEqualReference) {
  for_cases(cases(8), drawn({1, 20}), on_fused_path,
            [](const Case& c, uint64_t seed) { expect_the_reference(c, seed); });
}

// At more threads than the machine has cores, too.
void expect_the_bits_of_one_thread(Case& c, uint64_t seed) {
  c.p.threads = 1;
  const Results one = run_fused(c);
  for (int threads : {2, 8, 32}) {
    c.p.threads = threads;
    expect_same(run_fused(c), one,
                "seed " + std::to_string(seed) + ", threads " + std::to_string(threads));
  }
}

// Tables in double, of every other number, which float32 does not hold, but times their multiplier.
TEST(Terms, TablesAreMultipliedBeforeTheyAreRounded) {
  constexpr int64_t kLength = 40, kDim = 16, kReach = 5, kClasses = 2 * kReach + 1;
  PlainCall plain(3, kLength, kLength, kDim);
  const std::vector<double> numbers = normal(plain.rng, kClasses * kDim);
  std::vector<std::vector<float>> outs;
  for (const double multiplier : {1.0, 0x1p-140, 0x1p140}) {
    Tensor table(DType::kFloat64, {kClasses, kDim, 2});
    for (int64_t n = 0; n < kClasses * kDim; ++n)
      table.view().store(2 * n, numbers[n] / multiplier);
    const TensorView view(table.data<double>(), DType::kFloat64, {kClasses, kDim}, {2 * kDim, 2});
    plain.p.terms.row_tables.clear();
    add_term(plain.p.terms.row_tables, ClassMap::clamp(-kReach, kReach),
             TermData::parameter(view, false, multiplier));
    plain.forward();
    outs.push_back(floats(plain.out));
  }
  EXPECT_EQ(outs[1], outs[0]);
  EXPECT_EQ(outs[2], outs[0]);
}

TEST(Terms, BitsDoNotDependOnThreads) {
  const std::pair<Longer, int> kinds[] = {{{1, 1}, 25}, {{5, 5}, 12}, {{1, 20}, 12}};
  for (const auto& [longer, count] : kinds) {
    for_cases(cases(count), drawn(longer), on_fused_path, expect_the_bits_of_one_thread);
  }
}

bool trains_frequencies(const Case& c) {
  return std::any_of(c.p.terms.rotations.begin(), c.p.terms.rotations.end(), [](const Rotation& r) {
    const auto* heads = r.by<Rotation::ByHead>();
    return heads != nullptr && heads->frequency.wants_gradient;
  });
}

// Heads of a group whose blocks compute at the same time, and add to the same numbers.
TEST(Terms, BitsOfWhatHeadsShareDoNotDependOnThreads) {
  const auto shares = [](const Case& c) {
    const bool trains =
        std::any_of(c.p.terms.rotations.begin(), c.p.terms.rotations.end(), [](const Rotation& r) {
          const auto* given = r.by<Rotation::Tables>();
          return given != nullptr && given->q_cos.wants_gradient;
        });
    const auto& strides = c.p.visible.mask.strides;  // one thread adds to rows that are shared
    const bool masked = c.mask.view().given() && strides[1] == 0 && strides[2] != 0;
    const double products = 2.0 * static_cast<double>(c.p.batch * c.p.heads * c.p.queries *
                                                      c.p.keys * (c.p.head_dim + c.p.value_dim));
    return c.p.group() >= 2 && (trains || trains_frequencies(c) || masked) && c.p.queries >= 17 &&
           c.p.queries <= 96 && products >= 2e6 &&  // enough for a second thread
           on_fused_path(c);
  };
  for_cases(cases(16), drawn({1, 10}), shares, expect_the_bits_of_one_thread);
}

// More pairs of batch rows and key heads than one wave of the backward pass has with one thread.
TEST(Terms, BitsOfFrequenciesDoNotDependOnThreads) {
  const auto many = [](const Case& c) {
    return trains_frequencies(c) && c.p.queries * c.p.keys >= 5000 && on_fused_path(c);
  };
  for_cases(cases(4), drawn({1, 1, 20}), many, expect_the_bits_of_one_thread);
}

double loss(const Case& c) {
  Results r(c, DType::kFloat64);
  reference_forward(c.p, {r.out.view(), r.lse.view(), {}});
  double sum = 0.0;
  for (int64_t n = 0; n < c.dout.view().numel(); ++n)
    sum += r.out.data<double>()[n] * c.dout.view().load(n);
  for (int64_t n = 0; n < c.dlse.view().numel(); ++n) {
    if (r.lse.data<double>()[n] != -HUGE_VAL)
      sum += r.lse.data<double>()[n] * c.dlse.view().load(n);
  }
  return sum;
}

// d loss / d one float input, by central differences over exactly representable steps.
double slope(const Case& c, float* x) {
  const float at = *x, step = 0x1p-9F;
  *x = at + step;
  const double up = loss(c), x_up = static_cast<double>(*x);
  *x = at - step;
  const double down = loss(c), x_down = static_cast<double>(*x);
  *x = at;
  return (up - down) / (x_up - x_down);
}

TEST(Terms, ReferenceGradientsEqualFiniteDifferences) {
  const auto small = [](const Case& c) {
    return c.p.queries * c.p.keys <= 2500 && c.p.positions.consecutive;
  };
  const auto differs = [](const Case& c, uint64_t seed) {
    const Results r = run_reference(c);
    Rng rng(seed);
    const auto probe = [&](const char* name, const TensorView& input,
                           const std::vector<double>& gradient) {
      if (gradient.empty() || !input.contiguous()) return;  // heads share numbers
      for (int n = 0; n < (kSanitized ? 1 : 3); ++n) {
        const int64_t at = draw(rng, 0, input.numel() - 1);
        float* x = static_cast<float*>(input.data) + at;
        if (!std::isfinite(*x)) continue;
        const double want = slope(c, x);
        EXPECT_NEAR(gradient[at], want, 2e-4 * (1 + std::fabs(want)))
            << name << "[" << at << "], seed " << seed;
      }
    };
    for (const auto& [name, input, gradient] :
         {std::tuple{"dq", &c.q, &r.dq}, {"dk", &c.k, &r.dk}, {"dv", &c.v, &r.dv}}) {
      const auto* values = gradient->data<double>();
      probe(name, input->view(), {values, values + gradient->view().numel()});
    }
    if (c.mask.view().given()) probe("mask", c.mask.view(), r.mask);
    for_each_number(c.p.terms, r.terms,
                    [&](const char* name, auto& data, const auto& gradient, HeadAxis) {
                      probe(name, data.view, gradient);
                    });
  };
  for_cases(cases(60), drawn(), small, differs, 1000);
}

}  // namespace
}  // namespace relpos
