// The ladder of docs/kernels.md: one head of attention, one step at a time, on one thread.
//
//   cmake --build build/release --target ladder && build/release/ladder
//
// Prints a Markdown table. Every step is checked against double before any is timed; all steps take
// turns, and the median counts.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#pragma GCC diagnostic ignored "-Wunused-function"  // of the header
#include "base/buffer.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kLength = 2048, kDim = 64, kTiles = kLength / kTile;
constexpr float kSlack = 60.0f, kNothing = -HUGE_VALF;

using Floats = Buffer<float>;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Scores are q k in units of log2, plus bias[j - i + kLength - 1] in the steps that have one. Queries
// have rows to spare for the last group.
struct Inputs {
  Floats q{(kLength + kGroup) * kDim}, k{kLength * kDim}, v{kLength * kDim};
  Floats bias{2 * kLength + kTile};

  Inputs() {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    const auto factor =
        static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(kDim)));
    for (int64_t n = 0; n < q.size(); ++n) q[n] = factor * normal(rng);
    for (int64_t n = 0; n < k.size(); ++n) k[n] = normal(rng);
    for (int64_t n = 0; n < v.size(); ++n) v[n] = normal(rng);
    for (int64_t n = 0; n < bias.size(); ++n) bias[n] = normal(rng);
  }
};

struct Scratch {
  Floats kt{kLength * kDim};          // [kTiles, kDim, kTile]
  Floats transposed{kDim * kLength};  // [kDim, kLength]
  Floats scores{kLength * kLength + kGroup * kLength};
  Floats matrix{kLength * kLength + kGroup * kLength};  // of the bias
  Floats out{(kLength + kGroup) * kDim};
};

void pack(const Inputs& x, float* kt) {
  for (int64_t t = 0; t < kTiles; ++t) {
    for (int64_t d = 0; d < kDim; ++d) {
      for (int64_t c = 0; c < kTile; ++c) *kt++ = x.k[(t * kTile + c) * kDim + d];
    }
  }
}

// The formula as one writes it down: dot products, std::exp2, a matrix of scores.
void as_written(const Inputs& x, Scratch& s) {
  for (int64_t i = 0; i < kLength; ++i) {
    float* row = s.scores.get() + i * kLength;
    float top = kNothing, sum = 0.0f;
    for (int64_t j = 0; j < kLength; ++j) {
      float dot = 0.0f;
      for (int64_t d = 0; d < kDim; ++d) dot += x.q[i * kDim + d] * x.k[j * kDim + d];
      row[j] = dot;
      top = std::max(top, dot);
    }
    for (int64_t j = 0; j < kLength; ++j) sum += row[j] = std::exp2(row[j] - top);
    float* out = s.out.get() + i * kDim;
    std::fill_n(out, kDim, 0.0f);
    for (int64_t j = 0; j < kLength; ++j) {
      for (int64_t d = 0; d < kDim; ++d) out[d] += row[j] / sum * x.v[j * kDim + d];
    }
  }
}

HWY_INLINE void multiply(float* x, int64_t n, float by) {
  for (int64_t c = 0; c < n; c += kN) {
    hn::Store(hn::Mul(hn::Load(F(), x + c), hn::Set(F(), by)), F(), x + c);
  }
}

HWY_INLINE float row_top(const float* row, int64_t n, float top) {
  V most = hn::Set(F(), top);
  for (int64_t c = 0; c < n; c += kN) most = hn::Max(most, hn::Load(F(), row + c));
  return hn::GetLane(hn::MaxOfLanes(F(), most));
}

// row = exp2(row - top); returns its sum.
HWY_INLINE float row_weights(float* row, int64_t n, float top) {
  V sum = hn::Zero(F());
  for (int64_t c = 0; c < n; c += kN) {
    const V weight = exp2(hn::Sub(hn::Load(F(), row + c), hn::Set(F(), top)));
    hn::Store(weight, F(), row + c);
    sum = hn::Add(sum, weight);
  }
  return hn::GetLane(hn::SumOfLanes(F(), sum));
}

// The same in vectors: y += a x, and exp2 of the kernels.
HWY_INLINE void add_scaled(float a, const float* x, int64_t n, float* y) {
  for (int64_t c = 0; c < n; c += kN) {
    hn::Store(hn::MulAdd(hn::Set(F(), a), hn::Load(F(), x + c), hn::Load(F(), y + c)), F(), y + c);
  }
}

void in_vectors(const Inputs& x, Scratch& s) {
  float* transposed = s.transposed.get();
  for (int64_t d = 0; d < kDim; ++d) {
    for (int64_t j = 0; j < kLength; ++j) transposed[d * kLength + j] = x.k[j * kDim + d];
  }
  for (int64_t i = 0; i < kLength; ++i) {
    float *row = s.scores.get() + i * kLength, *out = s.out.get() + i * kDim;
    std::fill_n(row, kLength, 0.0f);
    for (int64_t d = 0; d < kDim; ++d) {
      add_scaled(x.q[i * kDim + d], transposed + d * kLength, kLength, row);
    }
    const float sum = row_weights(row, kLength, row_top(row, kLength, kNothing));
    std::fill_n(out, kDim, 0.0f);
    for (int64_t j = 0; j < kLength; ++j) add_scaled(row[j], x.v.get() + j * kDim, kDim, out);
    multiply(out, kDim, 1.0f / sum);
  }
}

// Both products in register tiles, over blocks of rows and tiles of keys; the matrix is still there.
void tiled(const Inputs& x, Scratch& s) {
  pack(x, s.kt.get());
  for (int64_t i = 0; i < kLength; i += kRows) {
    const int64_t rows = std::min<int64_t>(kRows, kLength - i);
    float *scores = s.scores.get() + i * kLength, *out = s.out.get() + i * kDim;
    for (int64_t t = 0; t < kTiles; ++t) {
      gemm(rows, kTile, kDim, x.q.get() + i * kDim, kDim, 1, s.kt.get() + t * kTile * kDim, kTile,
           scores + t * kTile, kLength, false);
    }
    float sum[kRows];
    for (int64_t r = 0; r < rows; ++r) {
      float* row = scores + r * kLength;
      sum[r] = row_weights(row, kLength, row_top(row, kLength, kNothing));
    }
    for (int64_t t = 0; t < kTiles; ++t) {
      gemm(rows, kDim, kTile, scores + t * kTile, kLength, 1, x.v.get() + t * kTile * kDim, kDim,
           out, kDim, t > 0);
    }
    for (int64_t r = 0; r < rows; ++r) multiply(out + r * kDim, kDim, 1.0f / sum[r]);
  }
}

// What a block of rows has seen so far.
struct State {
  float m[kRows], l[kRows];
  float* o;

  explicit State(float* out, int64_t rows) : o(out) {
    std::fill_n(m, kRows, kNothing);
    std::fill_n(l, kRows, 0.0f);
    std::fill_n(o, rows * kDim, 0.0f);
  }
  // Moves a row's reference.
  HWY_INLINE void move(int64_t row, float top) {
    const float factor = std::exp2(m[row] - top);
    m[row] = top;
    l[row] *= factor;
    multiply(o + row * kDim, kDim, factor);
  }
  void finish(int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) multiply(o + r * kDim, kDim, 1.0f / l[r]);
  }
};

// Online: a tile's weights meet the values at once, and nothing of size L x L is left. The reference
// of a row is the largest score so far.
void online(const Inputs& x, Scratch& s) {
  HWY_ALIGN_MAX float p[kGroup * kTile];
  pack(x, s.kt.get());
  for (int64_t i = 0; i < kLength; i += kRows) {
    const int64_t rows = round_up(std::min<int64_t>(kRows, kLength - i), kGroup);
    State state(s.out.get() + i * kDim, rows);
    for (int64_t t = 0; t < kTiles; ++t) {
      for (int64_t group = 0; group < rows; group += kGroup) {
        gemm(kGroup, kTile, kDim, x.q.get() + (i + group) * kDim, kDim, 1,
             s.kt.get() + t * kTile * kDim, kTile, p, kTile, false);
        for (int64_t r = 0; r < kGroup; ++r) {
          const int64_t row = group + r;
          state.move(row, row_top(p + r * kTile, kTile, state.m[row]));
          state.l[row] += row_weights(p + r * kTile, kTile, state.m[row]);
        }
        gemm(kGroup, kDim, kTile, p, kTile, 1, x.v.get() + t * kTile * kDim, kDim,
             state.o + group * kDim, kDim, true);
      }
    }
    state.finish(rows);
  }
}

// Adds to the scores of six rows, in registers: nothing, a row of a matrix, or a row of the panel.
struct NoBias {
  const float* row(int64_t, int64_t) const { return nullptr; }
};
struct Matrix {
  const float* cells;  // [kLength, kLength]
  const float* row(int64_t i, int64_t j) const { return cells + i * kLength + j; }
};
struct Diagonal {
  const float* cells;  // by distance: neighbouring rows read one cell apart
  const float* row(int64_t i, int64_t j) const {
    return cells + std::max<int64_t>(0, j - i + kLength - 1);
  }
};

// Lazy: a reference stays until a score passes it by 60 powers of two, so that scores become weights
// in the registers of their product and only weights are stored.
template <typename Bias>
struct Softmax {
  State& state;
  const Bias& bias;
  int64_t i, group, j;  // query of the block's first row, first row of the group, first key
  float *l, *p;         // [kRows, kLanes] sums by lane; [kGroup, kTile] weights
  int64_t n;            // the strip's first column

  template <int R, int kVectors>
  HWY_INLINE void operator()(V (&s)[R][kVectors]) const {
    V over = hn::Set(F(), kNothing);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float* added = bias.row(i + group + r, j + n);
      const V m = hn::Set(F(), state.m[group + r]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        if (added != nullptr) s[r][v] = hn::Add(s[r][v], hn::LoadU(F(), added + v * kN));
        over = hn::Max(over, hn::Sub(s[r][v], m));
      }
    }
    if (HWY_UNLIKELY(!hn::AllTrue(F(), hn::Le(over, hn::Set(F(), kSlack))))) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) hn::Store(s[r][v], F(), p + r * kTile + n + v * kN);
      }
      settle(kVectors * kN);
      return;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V m = hn::Set(F(), state.m[group + r]);
      float* sums = l + (group + r) * kLanes;
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const V weight = exp2(hn::Sub(s[r][v], m));
        hn::Store(hn::Add(hn::Load(F(), sums), weight), F(), sums);
        hn::Store(weight, F(), p + r * kTile + n + v * kN);
      }
    }
  }

  // The same from stored scores, where a reference must move first.
  HWY_NOINLINE void settle(int64_t columns) const {
    for (int64_t r = 0; r < kGroup; ++r) {
      const int64_t row = group + r;
      float *before = p + r * kTile, *scores = before + n;
      const float old = state.m[row], top = row_top(scores, columns, kNothing);
      if (!(top <= old + kSlack)) {
        multiply(l + row * kLanes, kLanes, std::exp2(old - top));
        multiply(before, n, std::exp2(old - top));
        state.move(row, top);
      }
      l[row * kLanes] += row_weights(scores, columns, state.m[row]);
    }
  }
};

template <typename Bias>
void lazy(const Inputs& x, Scratch& s, const Bias& bias) {
  HWY_ALIGN_MAX float p[kGroup * kTile];
  HWY_ALIGN_MAX float l[kRows * kLanes];
  pack(x, s.kt.get());
  for (int64_t i = 0; i < kLength; i += kRows) {
    const int64_t rows = round_up(std::min<int64_t>(kRows, kLength - i), kGroup);
    State state(s.out.get() + i * kDim, rows);
    std::fill_n(l, kRows * kLanes, 0.0f);
    for (int64_t t = 0; t < kTiles; ++t) {
      for (int64_t group = 0; group < rows; group += kGroup) {
        row_strip<kGroup>(0, kTile, kDim, x.q.get() + (i + group) * kDim, kDim, 1,
                          s.kt.get() + t * kTile * kDim, kTile, p, kTile, false,
                          [&](int64_t n) HWY_ATTR {
                            return Softmax<Bias>{state, bias, i, group, t * kTile, l, p, n};
                          });
        gemm(kGroup, kDim, kTile, p, kTile, 1, x.v.get() + t * kTile * kDim, kDim,
             state.o + group * kDim, kDim, true);
      }
    }
    for (int64_t row = 0; row < rows; ++row) {
      state.l[row] = std::accumulate(l + row * kLanes, l + (row + 1) * kLanes, 0.0f);
    }
    state.finish(rows);
  }
}

// The bias as a matrix: what a library without positions must be given.
void build_matrix(const Inputs& x, float* matrix) {
  for (int64_t i = 0; i < kLength; ++i) {
    for (int64_t j = 0; j < kLength; ++j) matrix[i * kLength + j] = x.bias[j - i + kLength - 1];
  }
}

// The largest difference from the formula in double, over every 97th row.
double error_of(const Inputs& x, const Scratch& s, bool bias) {
  double worst = 0.0;
  for (int64_t i = 0; i < kLength; i += 97) {
    std::vector<double> out(kDim), score(kLength);
    double sum = 0.0;
    for (int64_t j = 0; j < kLength; ++j) {
      double dot = bias ? static_cast<double>(x.bias[j - i + kLength - 1]) : 0.0;
      for (int64_t d = 0; d < kDim; ++d) {
        dot += static_cast<double>(x.q[i * kDim + d]) * static_cast<double>(x.k[j * kDim + d]);
      }
      sum += score[j] = std::exp2(dot);
    }
    for (int64_t j = 0; j < kLength; ++j) {
      for (int64_t d = 0; d < kDim; ++d)
        out[d] += score[j] / sum * static_cast<double>(x.v[j * kDim + d]);
    }
    for (int64_t d = 0; d < kDim; ++d) {
      worst = std::max(worst, std::fabs(out[d] - static_cast<double>(s.out[i * kDim + d])));
    }
  }
  return worst;
}

// Flops a second of a loop of multiply-adds alone, in as many chains as a register tile has.
double peak() {
  constexpr int64_t kSteps = int64_t{1} << 20;
  double best = HUGE_VAL;
  for (int turn = 0; turn < 5; ++turn) {
    V sum[kGroup * kWide];
    for (V& x : sum) x = hn::Set(F(), 1.0f);
    const double start = now();
    for (int64_t n = 0; n < kSteps; ++n) {
#pragma GCC unroll 32
      for (int c = 0; c < kGroup * kWide; ++c) {
        sum[c] = hn::MulAdd(sum[c], hn::Set(F(), 0.5f), hn::Set(F(), 0.5f));
      }
    }
    best = std::min(best, now() - start);
    volatile float sink = 0.0f;
    for (const V& x : sum) sink = sink + hn::GetLane(x);
  }
  return 2.0 * kGroup * kWide * static_cast<double>(kN * kSteps) / best;
}

struct Step {
  std::string name;
  int before;  // the step that it is compared with; -1: none
  bool bias, computes;
  std::function<void()> call;
  std::vector<double> seconds = {};

  double median() {
    std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
    return seconds[seconds.size() / 2];
  }
};

int run(int turns) {
  const Inputs x;
  Scratch s;
  build_matrix(x, s.matrix.get());
  const Matrix matrix{s.matrix.get()};
  std::vector<Step> steps = {
      {"plain, as written", -1, false, true, [&] { as_written(x, s); }},
      {"plain, in vectors", 0, false, true, [&] { in_vectors(x, s); }},
      {"tiled", 1, false, true, [&] { tiled(x, s); }},
      {"online", 2, false, true, [&] { online(x, s); }},
      {"lazy reference", 3, false, true, [&] { lazy(x, s, NoBias{}); }},
      {"a bias: matrix built and read", 4, true, true,
       [&] {
         build_matrix(x, s.matrix.get());
         lazy(x, s, matrix);
       }},
      {"a bias: matrix read", 4, true, true, [&] { lazy(x, s, matrix); }},
      {"a bias: skewed panel", 4, true, true, [&] { lazy(x, s, Diagonal{x.bias.get()}); }},
      {"packing, alone", -1, false, false, [&] { pack(x, s.kt.get()); }},
  };
  for (Step& step : steps) {
    if (!step.computes) continue;
    std::fill_n(s.out.get(), s.out.size(), 0.0f);
    step.call();
    const double error = error_of(x, s, step.bias);
    if (error < 1e-5) continue;
    std::printf("%s: error %g\n", step.name.c_str(), error);
    return 1;
  }
  double flops_per_second = peak();
  for (int turn = 0; turn < turns; ++turn) {
    for (Step& step : steps) {
      const double start = now();
      step.call();
      step.seconds.push_back(now() - start);
    }
  }
  flops_per_second = std::max(flops_per_second, peak());
  std::printf("%s, peak %.0f GF/s, L %d, D %d, medians of %d turns\n\n",
              hwy::TargetName(HWY_TARGET), flops_per_second / 1e9, static_cast<int>(kLength),
              static_cast<int>(kDim), turns);
  std::printf("| step | ms | %% of peak | against | times as fast |\n|---|---|---|---|---|\n");
  for (Step& step : steps) {
    const double seconds = step.median();
    constexpr double kFlops = 4.0 * kLength * kLength * kDim;
    std::printf("| %s | %.2f |", step.name.c_str(), 1e3 * seconds);
    if (step.computes) std::printf(" %.0f", 100.0 * kFlops / seconds / flops_per_second);
    std::printf(" |");
    if (step.before < 0) {
      std::printf(" | |\n");
      continue;
    }
    Step& before = steps[static_cast<size_t>(step.before)];
    std::printf(" %s | %.2f |\n", before.name.c_str(), before.median() / seconds);
  }
  return 0;
}

}  // namespace

int ladder(int turns) { return run(turns); }

}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();

int main(int argc, char** argv) {
  return relpos::HWY_NAMESPACE::ladder(argc > 1 ? std::atoi(argv[1]) : 31);
}
