#include "bench_trial.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "common.h"
#include "random.h"

namespace relpos::cli {
namespace {

constexpr double kTick = 5e-3;   // seconds that one reading of the clock should span
constexpr double kCold = 0.1;    // seconds; a first call below is much slower than what follows
constexpr double kLongCall = 4;  // seconds; from here on the first turn counts
constexpr int kLeastRounds = 3, kMostRounds = 99;

Position parse(const TrialShape& shape, const std::string& text) {
  Position position;
  if (!text.empty()) {
    position = parse_position(text, {{"heads", shape.heads}, {"head_dim", shape.dim}});
  }
  return position;
}

// Drawn from a pool: what the numbers are does not matter, that they vary does.
Tensor normal_tensor(DType dtype, const std::vector<int64_t>& shape, uint64_t seed) {
  static const std::vector<double> pool = [] {
    Random random(7);
    std::vector<double> values(65537);
    for (double& value : values) value = random.normal();
    return values;
  }();
  Tensor tensor(dtype, shape);
  const TensorView& view = tensor.view();
  const int64_t count = view.numel();
  size_t next = seed * 7919 % pool.size();
  for (int64_t n = 0; n < count; ++n) {
    view.store(n, pool[next]);
    next = next + 1 == pool.size() ? 0 : next + 1;
  }
  return tensor;
}

// Short calls start warm: the last turn, or a wait, was another's.
double seconds_of(const std::function<void()>& call, int64_t repeats) {
  if (repeats > 1) call();
  const auto start = std::chrono::steady_clock::now();
  for (int64_t n = 0; n < repeats; ++n) call();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  return spent.count() / static_cast<double>(repeats);
}

// When rounds may start, and whether one counts.
class Quiet {
 public:
  Quiet(const Budget& budget, double seconds)
      : quiet_(budget.quiet),
        end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                std::chrono::duration<double>(seconds + budget.patience))) {}

  bool now() const { return !quiet_ || quiet_(); }
  bool out_of_patience() const { return quiet_ && Clock::now() >= end_; }
  void wait() const {
    while (!now() && !out_of_patience()) {
      throw_if_interrupted();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  const std::function<bool()>& quiet_;
  Clock::time_point end_;
};

}  // namespace

Trial::Trial(const TrialShape& shape, Position position, int threads)
    : shape_(shape),
      position_(std::move(position)),
      parameters_(std::make_unique<Parameters>(position_, "", 1, DType::kFloat32)),
      query_(normal_tensor(shape.dtype, {shape.batch, shape.heads, shape.queries, shape.dim}, 1)),
      key_(normal_tensor(shape.dtype, {shape.batch, shape.key_heads, shape.keys, shape.dim}, 2)),
      value_(normal_tensor(shape.dtype, key_.view().dims(), 3)),
      out_(shape.dtype, query_.view().dims()),
      lse_(DType::kFloat32, {shape.batch, shape.heads, shape.queries}),
      dout_(normal_tensor(shape.dtype, query_.view().dims(), 4)) {
  options.threads = threads;
  options.is_causal = shape.causal;
  options.enable_gqa = shape.key_heads != shape.heads;
  options.cancel = &cancel_on_interrupt();
  if (shape.queries != shape.keys) options.q_offset = Offset(shape.keys - shape.queries);
  Random random(5);
  for (const Parameter& item : parameters_->items()) {
    if (!item.spec.trainable) continue;
    const TensorView& view = item.tensor.view();
    for (int64_t n = 0; n < view.numel(); ++n) view.store(n, view.load(n) + 0.3 * random.normal());
  }
}

Trial::Trial(const TrialShape& shape, const std::string& position, int threads)
    : Trial(shape, parse(shape, position), threads) {}

void Trial::forward() {
  attention(query_.view(), key_.view(), value_.view(), position_, options, out_.view(),
            lse_.view());
}

void Trial::make_gradients() {
  const auto like = [&](const TensorView& of) {
    return gradient_memory_.emplace_back(of.dtype, of.dims()).view();
  };
  gradients_.query = like(query_.view());
  gradients_.key = like(key_.view());
  gradients_.value = like(value_.view());
  for (const Part& part : position_.parts)
    gradients_.parameters.emplace_back(part.parameters.size());
  for (const Parameter& item : parameters_->items()) {
    if (item.spec.trainable)
      gradients_.parameters[item.part][item.index] = like(item.tensor.view());
  }
}

void Trial::backward() {
  if (gradient_memory_.empty()) {
    forward();
    make_gradients();
  }
  attention_backward(query_.view(), key_.view(), value_.view(), out_.view(), lse_.view(),
                     dout_.view(), {}, position_, options, gradients_);
}

double Trial::flops(bool with_backward) const {
  const auto pairs = static_cast<double>(shape_.batch * shape_.heads * shape_.queries) *
                     static_cast<double>(shape_.keys);
  const double all = (with_backward ? 10.0 : 4.0) * pairs * static_cast<double>(shape_.dim);
  return shape_.causal ? all / 2 : all;
}

Turns take_turns(const std::vector<std::function<void()>>& calls, const Budget& budget) {
  std::vector<double> first_turn;
  std::vector<int64_t> repeats(calls.size(), 1);
  double turn = 0;
  for (size_t n = 0; n < calls.size(); ++n) {
    throw_if_interrupted();
    const double first = seconds_of(calls[n], 1);
    first_turn.push_back(first);
    const double again = first < kCold ? std::max(seconds_of(calls[n], 1), 1e-7) : first;
    repeats[n] = std::max(int64_t{1}, static_cast<int64_t>(std::ceil(kTick / again)));
    turn += again * static_cast<double>(repeats[n]);
  }
  Turns turns{std::vector<std::vector<double>>(calls.size())};
  if (turn >= kLongCall * static_cast<double>(calls.size())) {
    for (size_t n = 0; n < calls.size(); ++n) turns.seconds[n].push_back(first_turn[n]);
    return turns;
  }
  const auto wanted = static_cast<int>(std::min(budget.seconds / turn, double{kMostRounds}));
  int rounds = std::max(kLeastRounds, wanted);
  if (budget.rounds > 0) rounds = std::min(rounds, budget.rounds);
  const int enough = std::min(rounds, kLeastRounds);
  Quiet quiet(budget, turn * rounds);
  std::vector<std::vector<double>> loud(calls.size());
  for (int round = 0, counted = 0; counted < rounds; ++round) {
    if (quiet.out_of_patience() && round >= enough) break;
    quiet.wait();
    std::vector<double> spent(calls.size());
    for (size_t n = 0; n < calls.size(); ++n) {
      throw_if_interrupted();
      const size_t at = round % 2 == 0 ? n : calls.size() - 1 - n;
      spent[at] = seconds_of(calls[at], repeats[at]);
    }
    const bool counts = quiet.now();
    counted += counts ? 1 : 0;
    for (size_t n = 0; n < calls.size(); ++n) {
      (counts ? turns.seconds : loud)[n].push_back(spent[n]);
    }
  }
  turns.noisy = static_cast<int>(turns.seconds.front().size()) < enough;
  for (size_t n = 0; n < calls.size() && turns.noisy; ++n) {
    turns.seconds[n].insert(turns.seconds[n].end(), loud[n].begin(), loud[n].end());
  }
  return turns;
}

double quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  const double place = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(place);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (place - static_cast<double>(low)) * (values[high] - values[low]);
}

}  // namespace relpos::cli
