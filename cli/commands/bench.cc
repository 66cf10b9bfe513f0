// relpos bench: every scheme, forward and backward, against attention without positions.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/thread_grant.h"
#include "cli/commands/commands.h"
#include "cli/common.h"
#include "cli/files/signals.h"
#include "cli/machine/machine.h"
#include "cli/options/help.h"
#include "cli/options/parameters.h"
#include "cli/options/random.h"
#include "cli/options/scheme_options.h"
#include "relpos/attention.h"
#include "relpos/error.h"
#include "relpos/version.h"

namespace relpos::cli {
namespace {

using Json = nlohmann::ordered_json;
constexpr int64_t kHeads = 8, kDim = 64;

struct BenchArguments {
  std::string scheme;
  int64_t length = 2048;
  bool causal = false, json = false;
  int threads = 0;
  double seconds = 2;
};

struct BenchInputs {
  std::vector<int64_t> shape;
  Tensor query = normal(1), key = normal(2), value = normal(3), dout = normal(4);
  Options options;

  explicit BenchInputs(const BenchArguments& a) : shape{1, kHeads, a.length, kDim} {
    options.is_causal = a.causal;
    options.threads = a.threads;
    options.cancel = &cancel_on_interrupt();
  }
  Tensor normal(uint64_t seed) const {
    Random random(seed);
    return normal_tensor(DType::kFloat32, shape, random);
  }
};

// Attention with one position, and the memory of its results.
class TimedAttention {
 public:
  TimedAttention(const BenchInputs& inputs, Position position)
      : inputs_(inputs),
        position_(std::move(position)),
        parameters_(position_, "", 1, DType::kFloat32,
                    {1, kHeads, inputs.shape[2], inputs.shape[2]}),
        out_(inputs.query),
        softmax_(DType::kFloat32, {1, kHeads, inputs.shape[2], 2}),
        dquery_(inputs.query),
        dkey_(inputs.key),
        dvalue_(inputs.value) {
    gradients_ = {dquery_.view(), dkey_.view(), dvalue_.view(), {}, {}};
    gradients_.parameters = parameters_.gradients([&](const Parameter& item) {
      return parameter_gradients_.emplace_back(item.tensor).view();
    });
  }
  TimedAttention(TimedAttention&&) = delete;

  void forward() {
    attention(inputs_.query.view(), inputs_.key.view(), inputs_.value.view(), position_,
              inputs_.options, out_.view(), {}, softmax_.view());
  }
  // After forward(): the gradients of query, key, value and every trained parameter.
  void backward() {
    attention_backward(inputs_.query.view(), inputs_.key.view(), inputs_.value.view(), out_.view(),
                       softmax_.view(), inputs_.dout.view(), {}, position_, inputs_.options,
                       gradients_);
  }

 private:
  const BenchInputs& inputs_;
  Position position_;
  Parameters parameters_;
  Tensor out_, softmax_, dquery_, dkey_, dvalue_;
  std::vector<Tensor> parameter_gradients_;
  Gradients gradients_;
};

// [call][round]: milliseconds of calls that take turns, in opposite order every other round.
std::vector<std::vector<double>> take_turns(const std::vector<std::function<void()>>& calls,
                                            double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr size_t kLeastRounds = 3, kMostRounds = 99;
  std::vector<std::vector<double>> times(calls.size());
  for (const auto& call : calls) call();  // the first call of a kind is slower
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (size_t round = 0; round < kMostRounds; ++round) {
    if (round >= kLeastRounds && Clock::now() >= end) break;
    for (size_t n = 0; n < calls.size(); ++n) {
      throw_if_interrupted();
      const size_t at = round % 2 == 0 ? n : calls.size() - 1 - n;
      const auto start = Clock::now();
      calls[at]();
      times[at].push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    }
  }
  return times;
}

// The q quantile, interpolated; `values` is not empty.
double quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  const double place = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(place);
  const size_t high = std::min(low + 1, values.size() - 1);
  return std::lerp(values[low], values[high], place - static_cast<double>(low));
}

Json comparison_json(const std::vector<double>& plain, const std::vector<double>& scheme) {
  std::vector<double> ratios;
  for (size_t n = 0; n < plain.size(); ++n) ratios.push_back(scheme[n] / plain[n]);
  return {{"ms", quantile(scheme, 0.5)},          {"plain_ms", quantile(plain, 0.5)},
          {"ratio", quantile(ratios, 0.5)},       {"ratio_low", quantile(ratios, 0.25)},
          {"ratio_high", quantile(ratios, 0.75)}, {"rounds", ratios.size()}};
}

// The scheme with its defaults; sizes that must be given are those of the call, else its length.
Position smallest_position(const Scheme& scheme, int64_t length) {
  GivenOptions given;
  for (const OptionSpec& spec : scheme.options) {
    if (!spec.required) continue;
    OptionValue value = spec.name == "heads" ? kHeads : spec.name == "head_dim" ? kDim : length;
    if (!spec.choices.empty()) value = spec.choices.front();
    if (spec.type == OptionType::kValues)
      value = std::floor(std::sqrt(static_cast<double>(length)));
    given.emplace_back(spec.name, value);
  }
  return parse_position(scheme.name, given);
}

// A scheme that these sizes do not fit says why in place of its times.
Json measure(const Scheme& scheme, const BenchInputs& inputs, const BenchArguments& a) {
  Json row = {{"scheme", scheme.name}};
  try {
    Position position = smallest_position(scheme, a.length);
    row["position"] = position_text(position);
    TimedAttention with(inputs, std::move(position)), plain(inputs, {});
    const auto times = take_turns({[&] { plain.forward(); }, [&] { with.forward(); },
                                   [&] { plain.backward(); }, [&] { with.backward(); }},
                                  a.seconds);
    row["forward"] = comparison_json(times[0], times[1]);
    row["backward"] = comparison_json(times[2], times[3]);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCancelled) throw;
    row["error"] = error.what();
  }
  return row;
}

std::string head_text(const Json& report) {
  const Json& machine = report.at("machine");
  return "relpos " RELPOS_VERSION " on " + machine.at("cpu").get<std::string>() + "\nSIMD target " +
         machine.at("target").get<std::string>() +
         text_of(", %d threads: %.0f GFLOP/s of multiply-adds, %.1f GB/s read\n\n",
                 machine.at("threads").get<int>(), machine.at("peak_gflops").get<double>(),
                 machine.at("read_gb_per_s").get<double>()) +
         text_of("float32, B 1, H %d, L %d, D %d%s. Plain: the same call without a position.\n",
                 static_cast<int>(kHeads), report.at("length").get<int>(), static_cast<int>(kDim),
                 report.at("causal").get<bool>() ? ", causal" : "") +
         "Milliseconds and their ratio are medians of rounds, in brackets quartiles.\n\n" +
         text_of("%-50s%-9s%9s%9s%7s\n", "position", "pass", "ms", "plain", "ratio");
}

std::string row_text(const Json& row) {
  if (row.contains("error")) {
    return row.at("scheme").get<std::string>() + ": " + row.at("error").get<std::string>() + "\n";
  }
  std::string text, name = row.at("position").get<std::string>();
  for (const char* pass : {"forward", "backward"}) {
    const auto number = [&](const char* field) { return row.at(pass).at(field).get<double>(); };
    text += text_of("%-50s%-9s%9.2f%9.2f%7.2f (%.2f to %.2f)\n", name.c_str(), pass, number("ms"),
                    number("plain_ms"), number("ratio"), number("ratio_low"), number("ratio_high"));
    name.clear();
  }
  return text;
}

std::vector<const Scheme*> timed_schemes(const std::string& name) {
  std::vector<const Scheme*> chosen;
  std::vector<std::string> names;
  for (const Scheme& scheme : schemes()) {
    if (name.empty() || scheme.name == name) chosen.push_back(&scheme);
    names.push_back(scheme.name);
  }
  check_value(!chosen.empty(), "--scheme: expected one of ", join(names), "; got ", name);
  return chosen;
}

int bench(const BenchArguments& a) {
  check_value(std::isfinite(a.seconds), "--seconds: expected a finite number, got ", a.seconds);
  const std::vector<const Scheme*> chosen = timed_schemes(a.scheme);
  const std::string measured = config_value("target of float32");
  const int threads = granted_threads(thread_count(a.threads));
  const BenchInputs inputs(a);
  Json report = {{"version", RELPOS_VERSION},
                 {"machine",
                  {{"cpu", cpu_name()},
                   {"target", config_value("target")},
                   {"threads", threads},
                   {"peak_gflops", peak_gflops(measured, threads)},
                   {"read_gb_per_s", read_bandwidth(measured, threads)}}},
                 {"length", a.length},
                 {"causal", a.causal},
                 {"schemes", Json::array()}};
  if (!a.json) print(head_text(report));
  for (const Scheme* scheme : chosen) {
    const Json& row = report["schemes"].emplace_back(measure(*scheme, inputs, a));
    if (!a.json) print(row_text(row));
  }
  if (a.json) print_json(report);
  return kOk;
}

}  // namespace

void add_bench(CLI::App& tool, Run& run) {
  CLI::App* app = tool.add_subcommand("bench", "Time every scheme against attention without one");
  app->footer(
      "  relpos bench                            every scheme, 2 seconds each\n"
      "  relpos bench --scheme t5 --length 4096 --causal\n"
      "  RELPOS_TARGET=avx2 relpos bench         another SIMD target of this machine\n"
      "  relpos bench --threads 1 --json >bench.json");
  BenchArguments& a = add_arguments(*app, run, bench);
  app->add_option("--scheme", a.scheme, "only this one, of `relpos list` [all]")->type_name("NAME");
  add_number(*app, "--length", a.length, "number of queries and of keys [2048]")
      ->check(CLI::Range(1, 1 << 20));
  app->add_flag("--causal", a.causal, "a query sees no later keys");
  add_number(*app, "--threads", a.threads, "threads of every call [all]")
      ->check(CLI::Range(0, 4096));
  add_number(*app, "--seconds", a.seconds, "time for each scheme; at least three rounds [2]")
      ->check(CLI::PositiveNumber);
  app->add_flag("--json", a.json, "print the report as JSON");
}

}  // namespace relpos::cli
