#include "bench_trial.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>
#include <utility>

#include "common.h"
#include "random.h"
#include "signals.h"

namespace relpos::cli {
namespace {

constexpr double kTick = 5e-3;   // seconds that one reading of the clock should span
constexpr double kCold = 0.1;    // seconds; a first call below is much slower than what follows
constexpr double kLongCall = 4;  // seconds; from here on the first turn counts
constexpr int kMostRounds = 99;

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
  using Clock = std::chrono::steady_clock;
  IssueSlots* slots = budget.slots;
  const auto look = [slots] { return slots == nullptr ? 0.0 : slots->look(); };
  const auto is_quiet = [slots](double looked) { return slots == nullptr || slots->quiet(looked); };
  Turns turns{std::vector<std::vector<double>>(calls.size()), {}};
  const auto add = [&](double before, const std::vector<double>& seconds) {
    const double looked = std::min(before, look());
    if (slots != nullptr) turns.looks.push_back(looked);
    for (size_t n = 0; n < calls.size(); ++n) turns.seconds[n].push_back(seconds[n]);
    return is_quiet(looked);
  };

  const double first_look = look();
  std::vector<double> first_turn;
  std::vector<int64_t> repeats;
  double turn = 0;
  for (const std::function<void()>& call : calls) {
    throw_if_interrupted();
    first_turn.push_back(seconds_of(call, 1));
    const double first = first_turn.back();
    const double again = first < kCold ? std::max(seconds_of(call, 1), 1e-7) : first;
    repeats.push_back(std::max(int64_t{1}, static_cast<int64_t>(std::ceil(kTick / again))));
    turn += again * static_cast<double>(repeats.back() == 1 ? 1 : repeats.back() + 1);
  }
  if (turn >= kLongCall * static_cast<double>(calls.size())) {
    add(first_look, first_turn);
    return turns;
  }
  const auto wanted = static_cast<int>(std::min(budget.seconds / turn, double{kMostRounds}));
  int rounds = std::max(kLeastRounds, wanted);
  if (budget.rounds > 0) rounds = std::min(rounds, budget.rounds);
  const int most = budget.patience > 0 ? std::numeric_limits<int>::max() : rounds;
  const auto end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double>(turn * rounds + budget.patience));
  for (int round = 0, counted = 0; counted < rounds && round < most; ++round) {
    if (round >= std::min(rounds, kLeastRounds) && Clock::now() >= end) break;
    double before = look();
    while (!is_quiet(before) && budget.patience > 0 && Clock::now() < end) {
      throw_if_interrupted();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      before = look();
    }
    std::vector<double> seconds(calls.size());
    for (size_t n = 0; n < calls.size(); ++n) {
      throw_if_interrupted();
      const size_t at = counted % 2 == 0 ? n : calls.size() - 1 - n;
      seconds[at] = seconds_of(calls[at], repeats[at]);
      if (n + 1 < calls.size()) before = std::min(before, look());
    }
    counted += add(before, seconds) ? 1 : 0;
  }
  return turns;
}

Counted counted(const std::vector<double>& values, const std::vector<double>& looks,
                const IssueSlots* slots) {
  if (slots == nullptr || looks.empty()) return {values};
  Counted kept;
  for (size_t n = 0; n < values.size(); ++n) {
    if (slots->quiet(looks[n])) kept.values.push_back(values[n]);
  }
  if (kept.values.size() < std::min<size_t>(kLeastRounds, values.size())) return {values, true};
  return kept;
}

double quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  const double place = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(place);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (place - static_cast<double>(low)) * (values[high] - values[low]);
}

}  // namespace relpos::cli
