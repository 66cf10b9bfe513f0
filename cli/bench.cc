// relpos bench: the C++ side measured on this machine, against the floors of the speed targets.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/thread_grant.h"
#include "bench_cases.h"
#include "bench_machine.h"
#include "commands.h"
#include "common.h"
#include "outputs.h"
#include "relpos/attention.h"
#include "relpos/error.h"
#include "relpos/version.h"

namespace relpos::cli {
namespace {

using Json = nlohmann::ordered_json;

struct BenchArguments {
  std::string json, only, target;
  bool wants_json = false, list = false, machine = false, skip_once = false, quiet = false,
       watch = false;
  int threads = 0;
  int64_t memory_probe = 0;
  double best_look = 0;
  Budget budget;
};

struct Row {
  const BenchCase* about = nullptr;
  Measured measured;
  std::string error;  // instead of a measurement
};

std::string lower_case(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

std::vector<const BenchCase*> chosen_cases(const std::string& only) {
  std::vector<const BenchCase*> chosen;
  for (const BenchCase& one : bench_cases()) {
    if (lower_case(one.name).find(lower_case(only)) != std::string::npos) chosen.push_back(&one);
  }
  check_value(!chosen.empty(), "--case: no row's name contains ", only,
              "; relpos bench --list names them");
  return chosen;
}

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g", value);
  return text.data();
}

// Shares of the machine become percentages.
void settle(Row& row, const Machine& machine) {
  if (!row.measured.of_peak) return;
  for (double& value : row.measured.values) value *= 100 / machine.peak_all;
  row.measured.of_peak = false;
}

Counted counted(const Row& row, const IssueSlots& slots) {
  return counted(row.measured.values, row.measured.looks, &slots);
}

std::string verdict(const BenchCase& about, double value) {
  if (std::isinf(about.floor)) return "";
  const auto reaches = [&](double bar) { return about.higher_wins ? value >= bar : value <= bar; };
  return reaches(about.stretch) ? "stretch" : reaches(about.floor) ? "floor" : "missed";
}

Json bar_json(double bar) { return std::isinf(bar) ? Json() : Json(bar); }

std::string bar_text(double bar) { return std::isinf(bar) ? "" : number(bar); }

Json about_json(const BenchCase& about) {
  return {{"place", about.place},
          {"name", about.name},
          {"unit", about.unit},
          {"better", about.higher_wins ? "higher" : "lower"},
          {"floor", bar_json(about.floor)},
          {"stretch", bar_json(about.stretch)}};
}

Json row_json(const Row& row, const IssueSlots& slots) {
  Json object = about_json(*row.about);
  if (!row.error.empty()) {
    object["error"] = row.error;
    return object;
  }
  const Counted kept = counted(row, slots);
  object["value"] = quantile(kept.values, 0.5);
  object["low"] = quantile(kept.values, 0.25);
  object["high"] = quantile(kept.values, 0.75);
  object["noisy"] = kept.noisy;
  object["values"] = row.measured.values;
  object["looks"] = row.measured.looks;
  object["milliseconds"] = Json::object();
  for (const auto& [side, time] : row.measured.milliseconds) object["milliseconds"][side] = time;
  if (!row.measured.note.empty()) object["note"] = row.measured.note;
  return object;
}

Json machine_json(const Machine& machine) {
  const std::string reason = void_reason(machine);
  return {{"cpu", machine.cpu},
          {"family", machine.family},
          {"model", machine.model},
          {"target", machine.target},
          {"threads", machine.threads},
          {"peak_one", machine.peak_one},
          {"peak_all", machine.peak_all},
          {"read_bandwidth", machine.bandwidth},
          {"look", machine.look},
          {"best_look", machine.best_look},
          {"issue_share", machine.issue_share()},
          {"counts", reason.empty()},
          {"void", reason}};
}

std::string machine_text(const Machine& machine) {
  const std::string reason = void_reason(machine);
  std::array<char, 256> numbers{};
  std::snprintf(numbers.data(), numbers.size(),
                "family %d model %d, target %s, %d threads: %.0f GFLOP/s of multiply-adds (one "
                "thread %.0f), %.1f GB/s read, %.0f %% of the issue slots ours",
                machine.family, machine.model, machine.target.c_str(), machine.threads,
                machine.peak_all, machine.peak_one, machine.bandwidth, 100 * machine.issue_share());
  return machine.cpu + ", " + numbers.data() + "\n" +
         (reason.empty() ? "The run counts.\n" : "The run is void: " + reason + ".\n");
}

std::string table_line(const std::vector<std::string>& cells) {
  constexpr std::array<int, 5> kWidths{9, 9, 11, 20, 9};
  std::array<char, 160> text{};
  std::string line;
  for (size_t n = 1; n < cells.size(); ++n) {
    std::snprintf(text.data(), text.size(), "%-*s", kWidths[n - 1], cells[n].c_str());
    line += text.data();
  }
  return line + cells[0] + "\n";
}

std::string row_text(const Row& row, const IssueSlots& slots) {
  const BenchCase& about = *row.about;
  const std::string name = about.name + " [" + about.unit + "]";
  const std::string floor = bar_text(about.floor), stretch = bar_text(about.stretch);
  if (!row.error.empty())
    return table_line({name + ": " + row.error, floor, stretch, "-", "", "-"});
  const Counted kept = counted(row, slots);
  const std::vector<double>& values = kept.values;
  const double value = quantile(values, 0.5);
  std::string times;
  for (const auto& [side, time] : row.measured.milliseconds) {
    times += (times.empty() ? "; " : ", ") + side + " " + number(time) + " ms";
  }
  if (!row.measured.note.empty()) times += "; " + row.measured.note;
  if (kept.noisy) times += "; noisy";
  return table_line({name + times, floor, stretch, number(value),
                     number(quantile(values, 0.25)) + " to " + number(quantile(values, 0.75)),
                     verdict(about, value)});
}

int list_cases(const std::vector<const BenchCase*>& chosen, bool json) {
  if (json) {
    Json rows = Json::array();
    for (const BenchCase* one : chosen) rows.push_back(about_json(*one));
    print_json({{"rows", rows}});
    return kOk;
  }
  std::string text = table_line({"row [unit]", "floor", "stretch"});
  for (const BenchCase* one : chosen) {
    text += table_line(
        {one->name + " [" + one->unit + "]", bar_text(one->floor), bar_text(one->stretch)});
  }
  print(text);
  return kOk;
}

// For another process that times calls of its own.
int watch(IssueSlots& slots) {
  for (std::string line; std::getline(std::cin, line);) print(number(slots.look()) + "\n");
  return kOk;
}

Row measure(const BenchCase& about, const BenchSetup& setup) {
  Row row{&about, {}, ""};
  try {
    row.measured = about.run(setup);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCancelled) throw;
    row.error = error.what();
  }
  return row;
}

void check_numbers(const BenchArguments& a) {
  for (const double number : {a.budget.seconds, a.budget.patience, a.best_look}) {
    check_value(std::isfinite(number), "--seconds, --patience: expected a finite number, got ",
                number);
  }
}

int bench(const BenchArguments& a) {
  check_numbers(a);
  if (!a.target.empty()) ::setenv("RELPOS_TARGET", a.target.c_str(), 1);
  if (a.memory_probe > 0) {
    const MemoryProbe probe = probe_memory(a.memory_probe, a.threads);
    print_json({{"peak_bytes", probe.peak_bytes},
                {"input_bytes", probe.input_bytes},
                {"seconds", probe.seconds}});
    return kOk;
  }
  std::vector<const BenchCase*> chosen;
  if (!a.machine) chosen = chosen_cases(a.only);
  if (a.list) return list_cases(chosen, a.wants_json);
  Outputs outputs;
  io::Sink* file = a.json.empty() ? nullptr : &outputs.add(a.json);

  BenchSetup setup{.target = "", .threads = a.threads, .budget = a.budget};
  for (const auto& [name, value] : show_config()) {
    if (name == "target") setup.target = value;
  }
  setup.threads = granted_threads(thread_count(setup.threads));
  IssueSlots slots(setup.threads, a.best_look);
  if (a.watch) return watch(slots);
  setup.budget.slots = &slots;
  Machine machine = measure_machine(setup.target, setup.threads, slots);
  std::vector<Row> rows;
  for (const BenchCase* one : chosen) {
    if (one->once && a.skip_once) continue;
    rows.push_back(measure(*one, setup));
    if (a.quiet) continue;
    Row row = rows.back();
    settle(row, machine);
    note(one->name + ": " +
         (row.error.empty() ? number(quantile(counted(row, slots).values, 0.5)) : row.error));
  }
  keep_higher(machine, measure_machine(setup.target, setup.threads, slots));
  for (Row& row : rows) settle(row, machine);

  Json report = {{"version", RELPOS_VERSION}, {"machine", machine_json(machine)}};
  report["rows"] = Json::array();
  for (const Row& row : rows) report["rows"].push_back(row_json(row, slots));
  if (a.wants_json && a.json.empty()) {
    print_json(report);
    return kOk;
  }
  if (file != nullptr) {
    const std::string text = report.dump(1) + "\n";
    file->write(text.data(), text.size());
    outputs.commit();
    if (outputs.uses_stdout()) return kOk;
  }
  std::string text = "relpos " RELPOS_VERSION " on " + machine_text(machine);
  if (!rows.empty()) {
    text += "\n" + table_line({"row [unit]; medians", "floor", "stretch", "measured", "quartiles",
                               "reached"});
  }
  for (const Row& row : rows) text += row_text(row, slots);
  print(text);
  return kOk;
}

}  // namespace

void add_bench(CLI::App& tool, Run& run) {
  CLI::App* app = tool.add_subcommand("bench", "Measure this machine and what relpos makes of it");
  app->footer(
      "  relpos bench                            every row, a few minutes\n"
      "  relpos bench --list                     their names, floors and stretches\n"
      "  relpos bench --case 'forward, causal' --seconds 5\n"
      "  relpos bench --target avx2 --threads 1 --json bench.json");
  auto arguments = std::make_shared<BenchArguments>();
  BenchArguments& a = *arguments;
  CLI::Option* json =
      app->add_option("--json", a.json, "the report as JSON: into FILE beside the table, or alone")
          ->expected(0, 1)
          ->type_name("[FILE]");
  app->add_option("--case", a.only, "rows whose name contains this [all]");
  app->add_option("--target", a.target, "SIMD target, avx512 or avx2 [the best here]");
  app->add_option("--threads", a.threads, "of every call [all]")->check(CLI::Range(0, 4096));
  app->add_option("--seconds", a.budget.seconds, "to spend on each row [2]")
      ->check(CLI::PositiveNumber);
  app->add_option("--rounds", a.budget.rounds, "of each row at most; 0: what --seconds allows [0]")
      ->check(CLI::Range(0, 1000));
  app->add_option("--patience", a.budget.patience,
                  "seconds of a row to wait for neighbours to be quiet [10]")
      ->check(CLI::NonNegativeNumber);
  app->add_flag("--list", a.list, "name the rows, measure nothing");
  app->add_flag("--machine", a.machine, "the machine alone, no row");
  app->add_flag("--quiet", a.quiet, "no progress on stderr");
  app->add_flag("--watch", a.watch, "a look of IssueSlots for each line of input")->group("");
  app->add_flag("--skip-once", a.skip_once, "leave out rows that need no second run")->group("");
  app->add_option("--best-look", a.best_look, "of IssueSlots in earlier processes")
      ->check(CLI::NonNegativeNumber)
      ->group("");
  app->add_option("--memory-probe", a.memory_probe, "of one length")
      ->check(CLI::PositiveNumber)
      ->group("");
  app->callback([&run, arguments, json] {
    arguments->wants_json = json->count() > 0;
    run = [arguments] { return bench(*arguments); };
  });
}

}  // namespace relpos::cli
