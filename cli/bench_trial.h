// One attention call with everything it reads and writes, and the clock that calls take turns at.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench_machine.h"
#include "parameters.h"
#include "relpos/attention.h"

namespace relpos::cli {

struct TrialShape {
  int64_t batch = 1, heads = 8, key_heads = 8, queries = 2048, keys = 2048, dim = 64;
  DType dtype = DType::kFloat32;
  bool causal = false;

  static TrialShape square(int64_t length) {
    TrialShape shape;
    shape.queries = shape.keys = length;
    return shape;
  }
};

class Trial {
 public:
  // Tables are trained and hold no zeros. `threads` 0: the default.
  Trial(const TrialShape& shape, Position position, int threads);
  // The position by its text; heads and head_dim come from the shape.
  Trial(const TrialShape& shape, const std::string& position, int threads);
  Trial(Trial&&) = delete;

  const Tensor& key() const noexcept { return key_; }
  const Tensor& value() const noexcept { return value_; }

  void forward();
  // With the gradients of query, key, value and every table. The first call makes their memory and
  // a forward pass.
  void backward();
  void make_gradients();
  void run(bool with_backward) { with_backward ? backward() : forward(); }
  // Multiply-adds count twice: 4 B H Lq Lk D forward, 10 backward, half of it when causal.
  double flops(bool with_backward) const;

  Options options;

 private:
  TrialShape shape_;
  Position position_;
  std::unique_ptr<Parameters> parameters_;
  Tensor query_, key_, value_, out_, lse_, dout_;
  std::vector<Tensor> gradient_memory_;
  Gradients gradients_;
};

struct Budget {
  double seconds = 2;  // for each row; three rounds at least, one where calls take seconds
  int rounds = 0;      // at most; 0: as many as the seconds allow
  // Where given, a round counts that neighbours were quiet before and after each of its calls.
  IssueSlots* slots = nullptr;
  // Seconds beyond those of the rounds, to wait for quiet and to repeat rounds.
  double patience = 10;
};

struct Turns {
  std::vector<std::vector<double>> seconds;  // [call][round]
  std::vector<double> looks;                 // [round] the least of IssueSlots; empty: not judged
};

constexpr int kLeastRounds = 3;
// Values of the rounds in which neighbours were quiet, by the best look so far. Where those are
// fewer than three and than all, the row is noisy: all values.
struct Counted {
  std::vector<double> values;
  bool noisy = false;
};
Counted counted(const std::vector<double>& values, const std::vector<double>& looks,
                const IssueSlots* slots);

// Times calls, which take turns, in opposite order every other round; short ones are repeated until
// the clock can tell. The first turn is not counted where it can be spared.
Turns take_turns(const std::vector<std::function<void()>>& calls, const Budget& budget);

// The q quantile, interpolated; `values` is not empty.
double quantile(std::vector<double> values, double q);

}  // namespace relpos::cli
