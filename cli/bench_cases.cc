#include "bench_cases.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench_child.h"
#include "relpos/error.h"

namespace relpos::cli {
namespace {

using Json = nlohmann::ordered_json;
using Call = std::function<void()>;
constexpr const char* kBias = "t5";
constexpr bool kForward = false, kBackward = true;

// The median of one call's turns.
double milliseconds(const BenchSetup& setup, const Turns& turns, size_t call) {
  return 1e3 * quantile(counted(turns.seconds[call], turns.looks, setup.budget.slots).values, 0.5);
}

Call call_of(Trial& trial, bool with_backward) {
  return [&trial, with_backward] { trial.run(with_backward); };
}

// value(seconds), for each round.
template <typename F>
Measured timed(const BenchSetup& setup, const Call& call, F&& value) {
  const Turns turns = take_turns({call}, setup.budget);
  Measured measured;
  for (const double seconds : turns.seconds[0]) measured.values.push_back(value(seconds));
  measured.milliseconds = {{"relpos", milliseconds(setup, turns, 0)}};
  measured.looks = turns.looks;
  return measured;
}

Measured share_of_peak(const BenchSetup& setup, const TrialShape& shape, bool with_backward) {
  Trial trial(shape, "", setup.threads);
  Measured measured = timed(setup, call_of(trial, with_backward), [&](double seconds) {
    return 1e-9 * trial.flops(with_backward) / seconds;
  });
  measured.of_peak = true;
  return measured;
}

// value(seconds, seconds of the other side), for each round.
template <typename F>
Measured compared(const BenchSetup& setup, const std::string& name, const Call& call,
                  const std::string& other_name, const Call& other, F&& value) {
  const Turns turns = take_turns({call, other}, setup.budget);
  const auto& seconds = turns.seconds;
  Measured measured;
  measured.looks = turns.looks;
  for (size_t n = 0; n < seconds[0].size(); ++n) {
    measured.values.push_back(value(seconds[0][n], seconds[1][n]));
  }
  measured.milliseconds = {{name, milliseconds(setup, turns, 0)},
                           {other_name, milliseconds(setup, turns, 1)}};
  return measured;
}

double percent_more(double ours, double other) { return 100 * (ours / other - 1); }
double times(double ours, double other) { return ours / other; }
double faster(double ours, double other) { return other / ours; }

struct Table {
  std::vector<BenchCase> rows;

  void add(int place, const std::string& name, const std::string& unit, bool higher_wins,
           double floor, double stretch, std::function<Measured(const BenchSetup&)> run) {
    rows.push_back({place, name, unit, higher_wins, floor, stretch, false, std::move(run)});
  }

  void share(int place, const std::string& name, const TrialShape& shape, bool with_backward,
             double floor, double stretch) {
    add(place, name, "% of peak", true, floor, stretch,
        [=](const BenchSetup& setup) { return share_of_peak(setup, shape, with_backward); });
  }

  // A position against none, of one shape.
  void against_plain(int place, const std::string& name, const TrialShape& shape,
                     const std::string& position, bool with_backward,
                     double (*value)(double, double), double floor, double stretch) {
    const bool percent = value == percent_more;
    add(place, name, percent ? "% over plain" : "x of plain", false, floor, stretch,
        [=](const BenchSetup& setup) {
          Trial trial(shape, position, setup.threads), plain(shape, "", setup.threads);
          return compared(setup, "relpos", call_of(trial, with_backward), "plain",
                          call_of(plain, with_backward), value);
        });
  }
};

void add_shares(Table& table) {
  const auto causal = [](int64_t length) {
    TrialShape shape = TrialShape::square(length);
    shape.causal = true;
    return shape;
  };
  struct Line {
    int64_t size;
    double floor, stretch;
  };
  for (const Line& l : {Line{1024, 70, 80}, {2048, 77, 85}, {4096, 79, 87}, {8192, 79, 87}}) {
    table.share(1, "forward, L " + std::to_string(l.size), TrialShape::square(l.size), kForward,
                l.floor, l.stretch);
  }
  for (const Line& l : {Line{1024, 60, 72}, {2048, 70, 80}, {4096, 75, 84}, {8192, 77, 85}}) {
    table.share(2, "forward, causal, L " + std::to_string(l.size), causal(l.size), kForward,
                l.floor, l.stretch);
  }
  for (const Line& l : {Line{32, 66, 78}, {80, 70, 80}, {128, 79, 87}, {256, 76, 84}}) {
    TrialShape shape;
    shape.dim = l.size;
    table.share(3, "forward, D " + std::to_string(l.size), shape, kForward, l.floor, l.stretch);
  }
  for (const int64_t length : {2048, 4096}) {
    const std::string end = ", L " + std::to_string(length);
    table.share(4, "backward" + end, TrialShape::square(length), kBackward, 74, 84);
    table.share(4, "backward, causal" + end, causal(length), kBackward, 68, 80);
  }
}

// Positions that are no run. `packed`: documents that each start at 0; else windows of 12 x 12
// patches, y (2 W - 1) + x.
Measured explicit_positions(const BenchSetup& setup, bool packed) {
  constexpr int64_t kSide = 12;
  TrialShape shape;
  if (!packed) {
    shape.batch = 16;
    shape.queries = shape.keys = kSide * kSide;
  }
  Trial trial(shape, packed ? kBias : "bias_rpe(max_distance=265)", setup.threads);
  Trial plain(shape, "", setup.threads);
  const Tensor positions(DType::kInt64, {shape.keys});
  for (int64_t i = 0; i < shape.keys; ++i) {
    positions.data<int64_t>()[i] = packed ? i % 701 : i / kSide * (2 * kSide - 1) + i % kSide;
  }
  trial.options.q_positions = trial.options.k_positions = positions.view();
  return compared(setup, "relpos", call_of(trial, kForward), "plain", call_of(plain, kForward),
                  percent_more);
}

Measured row_and_column(const BenchSetup& setup, bool with_backward) {
  const TrialShape shape;
  Position position;
  const Scheme& scheme = row_and_column_tables();
  position.parts.push_back({&scheme, make_options(scheme, {}), {}});
  Trial trial(shape, std::move(position), setup.threads), plain(shape, "", setup.threads);
  return compared(setup, "relpos", call_of(trial, with_backward), "plain",
                  call_of(plain, with_backward), times);
}

void add_terms(Table& table) {
  const TrialShape full;
  TrialShape causal;
  causal.causal = true;
  table.against_plain(5, "distance bias, forward", full, kBias, kForward, percent_more, 4, 1);
  table.against_plain(5, "distance bias, backward with its gradient", full, kBias, kBackward,
                      percent_more, 6, 2);
  for (const bool packed : {true, false}) {
    table.add(6,
              packed ? "distance bias, packed positions, forward"
                     : "distance bias, Swin windows of 12 x 12, forward",
              "% over plain", false, 25, 5,
              [packed](const BenchSetup& setup) { return explicit_positions(setup, packed); });
  }
  for (const int64_t length : {1024, 2048}) {
    for (const bool with_backward : {kForward, kBackward}) {
      table.against_plain(7,
                          std::string("rotation, ") + (with_backward ? "backward" : "forward") +
                              ", L " + std::to_string(length),
                          TrialShape::square(length), "rope(layout=half)", with_backward,
                          percent_more, 6, 3);
    }
  }
  const std::string shaw = "shaw(max_distance=64)", music = "music_transformer(max_length=2048)";
  table.against_plain(8, "clipped row and value table, m 64, forward", full, shaw, kForward, times,
                      1.2, 1.1);
  table.against_plain(8, "clipped row and value table, m 64, backward", full, shaw, kBackward,
                      times, 1.4, 1.25);
  table.against_plain(9, "unclipped row table, causal, forward", causal, music, kForward, times,
                      1.65, 1.53);
  table.against_plain(9, "unclipped row table, causal, backward", causal, music, kBackward, times,
                      1.8, 1.62);
  table.add(10, "row and column table, 512 classes, forward", "x of plain", false, 2.1, 1.55,
            [](const BenchSetup& setup) { return row_and_column(setup, kForward); });
  table.add(10, "row and column table, 512 classes, backward", "x of plain", false, 2.3, 1.8,
            [](const BenchSetup& setup) { return row_and_column(setup, kBackward); });
}

TrialShape cache_of(DType dtype) {
  TrialShape shape;
  shape.heads = 32;
  shape.queries = 1;
  shape.keys = 32768;
  shape.dim = 128;
  shape.dtype = dtype;
  return shape;
}

Measured decode_bandwidth(const BenchSetup& setup) {
  const TrialShape shape = cache_of(DType::kFloat32);
  Trial trial(shape, "alibi", setup.threads);
  // The same memory, in turns: another block may lie farther away and read half as fast.
  const int64_t floats = shape.key_heads * shape.keys * shape.dim;
  const Reading reading(
      setup.target, setup.threads,
      {{trial.key().data<float>(), floats}, {trial.value().data<float>(), floats}});
  return compared(
      setup, "relpos", call_of(trial, kForward), "plain reading", [&reading] { reading.seconds(); },
      [](double ours, double other) { return 100 * other / ours; });
}

// The same call in 16 bits and in float32.
Measured narrow(const BenchSetup& setup, TrialShape shape, DType dtype,
                const std::string& position) {
  Trial wide(shape, position, setup.threads);
  shape.dtype = dtype;
  Trial trial(shape, position, setup.threads);
  return compared(setup, dtype_name(dtype), call_of(trial, kForward), "float32",
                  call_of(wide, kForward), faster);
}

Measured overhead(const BenchSetup& setup) {
  TrialShape shape = TrialShape::square(12);
  shape.heads = shape.key_heads = 1;
  Trial trial(shape, "", setup.threads);
  return timed(setup, call_of(trial, kForward), [](double seconds) { return 1e6 * seconds; });
}

// The SIMD target of a process is fixed at its first call, hence a process.
Measured on_avx2(const BenchSetup& setup, const std::string& name, bool with_backward) {
  if (setup.target == "avx2") {
    return share_of_peak(setup, TrialShape::square(4096), with_backward);
  }
  const double best = setup.budget.slots == nullptr ? 0 : setup.budget.slots->best();
  const Json report = Json::parse(
      run_self({"bench", "--target", "avx2", "--case", name, "--quiet", "--json", "--threads",
                std::to_string(setup.threads), "--rounds", std::to_string(setup.budget.rounds),
                "--seconds", std::to_string(setup.budget.seconds), "--patience",
                std::to_string(setup.budget.patience), "--best-look", std::to_string(best)}));
  const Json& row = report.at("rows").at(0);
  Measured measured;
  measured.values = row.at("values").get<std::vector<double>>();
  measured.milliseconds = {{"relpos", row.at("milliseconds").at("relpos").get<double>()}};
  measured.looks = row.at("looks").get<std::vector<double>>();
  std::array<char, 64> note{};
  std::snprintf(note.data(), note.size(), "of the AVX2 peak, %.0f GFLOP/s",
                report.at("machine").at("peak_all").get<double>());
  measured.note = note.data();
  return measured;
}

Measured two_threads(const BenchSetup& setup) {
  check_value(setup.threads >= 2, "needs two threads, has one");
  const TrialShape shape;
  Trial two(shape, "", 2), one(shape, "", 1);
  return compared(setup, "two threads", call_of(two, kForward), "one thread",
                  call_of(one, kForward), faster);
}

Measured skipping(const BenchSetup& setup) {
  TrialShape shape = TrialShape::square(16384);
  shape.causal = true;
  Trial alibi(shape, "alibi", setup.threads), plain(shape, "", setup.threads);
  return compared(setup, "ALiBi", call_of(alibi, kForward), "plain", call_of(plain, kForward),
                  faster);
}

Measured memory(const BenchSetup& setup) {
  const Json report = Json::parse(
      run_self({"bench", "--memory-probe", "131072", "--threads", std::to_string(setup.threads)}));
  Measured measured;
  const double bytes = report.at("peak_bytes").get<double>();
  measured.values = {bytes / report.at("input_bytes").get<double>()};
  measured.milliseconds = {{"relpos", 1e3 * report.at("seconds").get<double>()}};
  std::array<char, 64> note{};
  std::snprintf(note.data(), note.size(), "%.1f MB at the peak", 1e-6 * bytes);
  measured.note = note.data();
  return measured;
}

void add_rest(Table& table) {
  table.add(15, "decode, cache 32768, ALiBi", "% of read bandwidth", true, 75, 90,
            decode_bandwidth);
  table.add(15, "decode, bfloat16 cache against float32", "x", true, 1.5, 1.9,
            [](const BenchSetup& setup) {
              return narrow(setup, cache_of(DType::kFloat32), DType::kBFloat16, "alibi");
            });
  TrialShape brief = TrialShape::square(128);
  brief.batch = 8;
  table.share(16, "short: B 8, H 8, L 128, D 64", brief, kForward, 55, 68);
  table.add(17, "call overhead, B 1, H 1, L 12, C++", "us", false, 5, 2, overhead);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    table.add(18, std::string(dtype_name(dtype)) + " forward, L 4096, against our float32", "x",
              true, 0.95, 1, [dtype](const BenchSetup& setup) {
                return narrow(setup, TrialShape::square(4096), dtype, "");
              });
  }
  for (const bool with_backward : {kForward, kBackward}) {
    const std::string name =
        std::string("AVX2 target, L 4096, ") + (with_backward ? "backward" : "forward");
    table.add(19, name, "% of peak", true, with_backward ? 70 : 76, with_backward ? 80 : 82,
              [=](const BenchSetup& setup) { return on_avx2(setup, name, with_backward); });
  }
  table.add(20, "two threads against one", "x", true, 1.88, 1.95, two_threads);
  table.add(22, "ALiBi, causal, L 16384, against plain causal", "x faster", true, 1.7, 2.5,
            skipping);
  table.add(23, "L 131072, H 1, causal, trained bias, forward + backward: peak memory",
            "x of q, k and v", false, 2, 1, memory);
  table.rows.back().once = true;
}

// Any scheme of the registry with its defaults; sizes that must be said are the length.
void add_registry(Table& table) {
  const TrialShape shape;
  for (const Scheme& scheme : schemes()) {
    std::vector<std::pair<std::string, OptionValue>> given;
    for (const OptionSpec& spec : scheme.options) {
      if (!spec.required) continue;
      if (spec.name == "heads") {
        given.emplace_back(spec.name, shape.heads);
      } else if (spec.name == "head_dim") {
        given.emplace_back(spec.name, shape.dim);
      } else if (!spec.choices.empty()) {
        given.emplace_back(spec.name, spec.choices.front());
      } else {
        given.emplace_back(spec.name, shape.queries);
      }
    }
    std::string text;
    try {
      Position position;
      position.parts.push_back({&scheme, make_options(scheme, given), {}});
      scheme.parameters(position.parts[0].options);
      text = position_text(position);
    } catch (const Error&) {
      text = scheme.name;  // its rows say why these sizes do not fit
    }
    for (const bool with_backward : {kForward, kBackward}) {
      table.against_plain(24, text + (with_backward ? ", backward" : ", forward"), shape, text,
                          with_backward, times, HUGE_VAL, HUGE_VAL);
      table.rows.back().once = true;
    }
  }
}

double resident(const char* field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    std::istringstream words(line);
    std::string name;
    double kilobytes = 0;
    if (words >> name >> kilobytes && name == field) return 1024 * kilobytes;
  }
  throw_error(ErrorKind::kIo, "/proc/self/status: no ", field, " to read memory from");
}

}  // namespace

const std::vector<BenchCase>& bench_cases() {
  static const std::vector<BenchCase> rows = [] {
    Table table;
    add_shares(table);
    add_terms(table);
    add_rest(table);
    add_registry(table);
    return std::move(table.rows);
  }();
  return rows;
}

MemoryProbe probe_memory(int64_t length, int threads) {
  const auto shape = [](int64_t n) {
    TrialShape made = TrialShape::square(n);
    made.heads = made.key_heads = 1;
    made.causal = true;
    return made;
  };
  Trial(shape(256), kBias, threads).backward();  // thread stacks and code pages
  const TrialShape large = shape(length);
  Trial trial(large, kBias, threads);
  trial.make_gradients();
  std::ofstream("/proc/self/clear_refs") << "5";  // VmHWM starts anew
  const double before = resident("VmRSS:");
  const auto start = std::chrono::steady_clock::now();
  trial.forward();
  trial.backward();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  return {resident("VmHWM:") - before, static_cast<double>(3 * length * large.dim) * 4,
          spent.count()};
}

}  // namespace relpos::cli
