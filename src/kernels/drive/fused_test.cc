// Random lists of terms, no scheme involved: the fused path against the reference path, and both
// against a plain dense formula; gradients of the reference path against finite differences.
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

double at(const TermData& data, std::initializer_list<int64_t> index) {
  return data.multiplier * data.view.at(index);
}

double table_at(const TermData& data, int64_t h, int64_t m, int64_t d) {
  return data.view.rank == 3 ? at(data, {h, m, d}) : at(data, {m, d});
}

// x[b, h, i] of queries with what is added to them, or of keys.
double content(const Problem& p, bool query, int64_t b, int64_t h, int64_t i, int64_t d) {
  if (!query) return p.key.at({b, h, i, d});
  double x = p.query.at({b, h, i, d});
  for (const TermData& u : p.terms.query_added) x += at(u, {h, d});
  return x;
}

double angle_part(const Problem& p, bool query, int64_t b, int64_t h, int64_t i, int64_t d) {
  for (const Rotation& r : p.terms.rotations) {
    const int64_t n = d - r.start;
    if (n < 0 || n >= r.dims) continue;
    const bool half = r.layout == PairLayout::kHalf;
    const int64_t pair = half ? n % (r.dims / 2) : n / 2;
    const bool second = half ? n >= r.dims / 2 : n % 2 == 1;
    const int64_t partner = r.start + (half ? (n + r.dims / 2) % r.dims : n ^ 1);
    const auto coordinate = [&](int64_t axis) {
      return static_cast<double>(query ? r.coordinates->query(axis, b, i)
                                       : r.coordinates->key(axis, b, i));
    };
    if (r.tables.q_cos.view.given()) {
      const int64_t own = query ? h / p.group() : h;
      const double c = at(query ? r.tables.q_cos : r.tables.k_cos, {b, own, i, pair});
      const double s = at(query ? r.tables.q_sin : r.tables.k_sin, {b, own, i, pair});
      const double other = content(p, query, b, h, i, partner) * s;
      return r.magnitude * (content(p, query, b, h, i, d) * c + (second ? other : -other));
    }
    double angle = 0.0;
    if (r.head_frequency.view.given()) {
      const int64_t own = query ? h / p.group() : h;
      for (int64_t axis = 0; axis < 2; ++axis) {
        const int64_t head = r.head_frequency.view.shape[1] == 1 ? 0 : own;
        angle += coordinate(axis) * at(r.head_frequency, {axis, head, pair});
      }
    } else if (!r.axis.empty()) {
      angle = coordinate(r.axis[pair]) * r.frequency[pair];
    } else {
      const int64_t position = query ? p.positions.query(b, i) : p.positions.key(b, i);
      angle = static_cast<double>(position) * r.frequency[pair];
    }
    const double other = content(p, query, b, h, i, partner) * std::sin(angle);
    const double own = content(p, query, b, h, i, d) * std::cos(angle);
    return r.magnitude * (own + (second ? other : -other));
  }
  return content(p, query, b, h, i, d);
}

// The equation of terms.h, written out.
struct Plain {
  std::vector<double> out, lse;
};

Plain plain_forward(const Problem& p) {
  Plain result;
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t h = 0; h < p.heads; ++h) {
      const int64_t hk = h / p.group();
      for (int64_t i = 0; i < p.queries; ++i) {
        std::vector<double> score(p.keys, -HUGE_VAL);
        const auto [lo, hi] = p.visible.interval(b, i);
        for (int64_t j = std::max<int64_t>(lo, 0); j < std::min(hi, p.keys); ++j) {
          const auto word = static_cast<size_t>(b * p.tiles() + j / 64);
          if (!p.visible.key_bits.empty() && ((p.visible.key_bits[word] >> (j % 64)) & 1U) == 0)
            continue;
          const int64_t delta = p.positions.key(b, j) - p.positions.query(b, i);
          const auto distance = [&](const auto& t) {
            if (t.coordinates == nullptr) return delta;
            return t.coordinates->key(t.axis, b, j) - t.coordinates->query(t.axis, b, i);
          };
          double s = 0.0;
          for (int64_t d = 0; d < p.head_dim; ++d) {
            double factor = 1.0;
            for (const Rotation& r : p.terms.rotations) {
              if (r.log_decay.empty() || d < r.start || d >= r.start + r.dims) continue;
              factor = std::exp(static_cast<double>(delta) * r.log_decay[0]);
            }
            s += factor * angle_part(p, true, b, h, i, d) * angle_part(p, false, b, hk, j, d);
          }
          s *= p.scale;
          for (const RowTable& t : p.terms.row_tables) {
            const int64_t m = t.map(distance(t)), rank = t.table.view.shape[t.table.view.rank - 1];
            for (int64_t d = 0; m >= 0 && d < rank; ++d) {
              double a =
                  t.factor.view.given() ? at(t.factor, {b, h, i, d}) : p.query.at({b, h, i, d});
              if (t.added.view.given()) a += at(t.added, {h, d});
              s += t.scale.value_or(p.scale) * a * table_at(t.table, h, m, d);
            }
          }
          for (const ColumnTable& t : p.terms.column_tables) {
            const int64_t m = t.map(delta);
            for (int64_t d = 0; m >= 0 && d < p.head_dim; ++d) {
              const double c =
                  t.factor.view.given() ? at(t.factor, {b, hk, j, d}) : p.key.at({b, hk, j, d});
              s += t.scale.value_or(p.scale) * c * table_at(t.table, h, m, d);
            }
          }
          for (const DistanceBias& t : p.terms.biases) {
            const int64_t m = t.map ? (*t.map)(distance(t)) : ClassMap::kNone;
            if (m >= 0) s += at(t.table, {h, m});
            if (!t.slopes.view.given()) continue;
            s += at(t.slopes, {delta < 0 ? 0 : 1, h}) * static_cast<double>(delta);
          }
          for (const KeyBias& t : p.terms.key_biases) {
            s += t.values.view.rank == 3 ? at(t.values, {b, h, j}) : at(t.values, {h, j});
          }
          if (p.softcap > 0.0) s = p.softcap * std::tanh(s / p.softcap);
          if (p.visible.mask.given()) s += p.visible.mask.at({b, h, i, j});
          score[j] = s;
        }
        const auto keys = static_cast<std::ptrdiff_t>(score.size());
        for (const TermData& t : p.terms.sinks) {
          score.push_back(t.view.rank == 3 ? at(t, {b, h, i}) : at(t, {h}));
        }
        const double top = *std::max_element(score.begin(), score.end());
        double sum = 0.0;
        for (double s : score) sum += s == -HUGE_VAL ? 0.0 : std::exp(s - top);
        result.lse.push_back(sum > 0.0 ? top + std::log(sum) : -HUGE_VAL);
        score.erase(score.begin() + keys, score.end());  // sinks have no values
        for (int64_t d = 0; d < p.value_dim; ++d) {
          double o = 0.0;
          for (int64_t j = 0; j < p.keys; ++j) {
            const double s = score[j];
            if (s == -HUGE_VAL) continue;
            const int64_t delta = p.positions.key(b, j) - p.positions.query(b, i);
            double v = p.value.at({b, hk, j, d});
            for (const ValueTable& t : p.terms.value_tables) {
              if (t.map(delta) >= 0) v += table_at(t.table, h, t.map(delta), d);
            }
            double kept = 1.0;
            if (p.dropout.active()) {
              kept = p.dropout.keeps(b, h, i, j) ? p.dropout.keep_scale() : 0.0;
            }
            o += std::exp(s - top) / sum * kept * v;
          }
          result.out.push_back(o);
        }
      }
    }
  }
  return result;
}

// Whether a case's numbers are compared; its calls are made in any case.
bool compared(uint64_t seed) { return !kSanitized || seed % 6 == 0; }

TEST(Terms, ReferenceEqualsThePlainFormula) {
  for_cases(cases(120), drawn(), any, [](const Case& c, uint64_t seed) {
    Results r(c, DType::kFloat64);
    reference_forward(c.p, {r.out.view(), r.lse.view(), {}});
    if (!compared(seed)) return;
    const Plain plain = plain_forward(c.p);
    for (size_t n = 0; n < plain.out.size(); ++n) {
      ASSERT_NEAR(r.out.data<double>()[n], plain.out[n], 1e-9) << "out, seed " << seed;
    }
    for (size_t n = 0; n < plain.lse.size(); ++n) {
      if (plain.lse[n] == r.lse.data<double>()[n]) continue;
      ASSERT_NEAR(r.lse.data<double>()[n], plain.lse[n], 1e-9) << "lse, seed " << seed;
    }
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
  for_cases(cases(250), drawn(), any, [&](Case& c, uint64_t seed) {
    if (!on_fused_path(c)) {  // a decaying rotation at explicit positions
      ++unfused;
      return;
    }
    retype_mask(c, seed);
    expect_the_reference(c, seed, compared(seed));
  });
  EXPECT_LT(10 * unfused, cases(250));
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
  for_cases(cases(12), drawn({1, 20}), on_fused_path,
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
  return std::any_of(c.p.terms.rotations.begin(), c.p.terms.rotations.end(),
                     [](const Rotation& r) { return r.head_frequency.wants_gradient; });
}

// Heads of a group whose blocks compute at the same time, and add to the same numbers.
TEST(Terms, BitsOfWhatHeadsShareDoNotDependOnThreads) {
  const auto shares = [](const Case& c) {
    const bool trains =
        std::any_of(c.p.terms.rotations.begin(), c.p.terms.rotations.end(),
                    [](const Rotation& rotation) { return rotation.tables.q_cos.wants_gradient; });
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
