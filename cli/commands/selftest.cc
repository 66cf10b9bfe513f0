// relpos selftest: every scheme of the registry, the fused path against the reference path.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/nearest.h"
#include "cli/commands/commands.h"
#include "cli/commands/selftest_trial.h"
#include "cli/common.h"
#include "cli/files/signals.h"
#include "cli/options/help.h"
#include "cli/options/parameters.h"
#include "relpos/attention.h"
#include "relpos/error.h"
#include "relpos/family.h"
#include "relpos/version.h"

namespace relpos::cli {
namespace {

using namespace trials;  // NOLINT: cases and trials

using Json = nlohmann::ordered_json;

constexpr double kRoundings = 16;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double epsilon(DType dtype) {
  return dtype == DType::kBFloat16 ? 0x1p-8 : dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-24;
}

// Whether calls in bfloat16 are multiplied in it.
bool has_unit() {
  return config_value("target") != config_value("target of float32") &&
         config_value("RELPOS_BF16") == "not set";
}

// Largest difference over `bar`.
double ratio(const TensorView& got, const TensorView& want, double bar) {
  double difference = 0.0;
  for (int64_t n = 0; n < want.numel(); ++n) {
    const double w = want.load(n), g = got.load(n);
    if (w == g) continue;  // also two equal infinities
    const bool finite = std::isfinite(w) && std::isfinite(g);
    difference = std::max(difference, finite ? std::abs(w - g) : kInfinity);
  }
  return difference == 0 ? 0 : difference / bar;
}

// A bound for a user's machine that needs no sizes of addends, unlike that of docs/accuracy.md:
// a score s carries a rounding of |s|, which exp hands on, so results may differ by kRoundings (1 +
// max |s|) of their size: of its own for out and lse; for gradients, where a sum may cancel to
// nothing, of the largest one, with sqrt(rows) more of them: a parameter's gradient sums over all
// batch x query rows, and one of a formula of distances over their keys, too, each times a number as
// large as a distance may be. 16-bit results differ by one of theirs where two float32 results
// straddle a tie. `narrow`: a unit has rounded weights to bfloat16, and queries and keys that turn,
// so that every result may differ by two such roundings times (1 + max |s|).
double worst_ratio(const std::vector<Tensor>& got, const std::vector<Tensor>& want,
                   double largest_score, double rows, bool gradients, bool narrow) {
  double largest = 0.0, worst = 0.0;
  for (const Tensor& tensor : want) largest = std::max(largest, largest_finite(tensor.view()));
  for (size_t n = 0; n < want.size(); ++n) {
    const TensorView& view = want[n].view();
    double roundings = 2.0;
    if (narrow) {
      roundings *= 1.0 + largest_score;
    } else if (view.dtype == DType::kFloat32) {
      roundings = kRoundings * (1.0 + largest_score) * (gradients ? std::sqrt(rows) : 1.0);
    }
    const double size = gradients ? largest : largest_finite(view);
    const double step = epsilon(narrow ? DType::kBFloat16 : view.dtype);
    worst = std::max(worst, ratio(got[n].view(), view, roundings * step * size));
  }
  return worst;
}

bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (size_t n = 0; n < a.size(); ++n) {
    const auto bytes = static_cast<size_t>(a[n].view().numel() * item_size(a[n].view().dtype));
    if (bytes > 0 && std::memcmp(a[n].view().data, b[n].view().data, bytes) != 0) return false;
  }
  return true;
}

struct CaseResult {
  double forward = 0.0, backward = 0.0;  // over the bar: at most 1
  bool same_bits = true;                 // one thread and two
  std::string error, position;

  bool ok() const { return error.empty() && forward <= 1 && backward <= 1 && same_bits; }
  void join(const CaseResult& other) {
    forward = std::max(forward, other.forward);
    backward = std::max(backward, other.backward);
    same_bits = same_bits && other.same_bits;
  }
};

CaseResult run_case(const Scheme* scheme, size_t n, uint64_t seed) {
  CaseResult outcome;
  Position position;
  const Case& c = cases()[n];
  try {
    if (scheme != nullptr) position.parts.push_back(make_variant(*scheme, c, n));
    outcome.position = scheme != nullptr ? position_text(position) : "none";
    Trial trial(c, position, seed + n);
    const std::vector<Tensor> out = trial.forward(Path::kReference, 0),
                              fused_out = trial.forward(Path::kFused, 2),
                              gradients = trial.backward(Path::kReference, 0, out),
                              fused_gradients = trial.backward(Path::kFused, 2, out);
    outcome.same_bits = same_bits(fused_out, trial.forward(Path::kFused, 1)) &&
                        same_bits(fused_gradients, trial.backward(Path::kFused, 1, out));
    const double score = trial.largest_score();
    const auto rows =
        static_cast<double>(c.batch * c.queries * (reads_distances(position) ? c.keys : 1));
    const bool narrow = c.dtype == DType::kBFloat16 && has_unit();
    outcome.forward = worst_ratio(fused_out, out, score, rows, false, narrow);
    outcome.backward = worst_ratio(fused_gradients, gradients, score, rows, true, narrow);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCancelled) throw;
    // Terms may end before far positions.
    if (c.q_offset < 100000 || !has_reach(position)) outcome.error = error.what();
  }
  return outcome;
}

struct SelftestArguments {
  std::string scheme;
  std::optional<uint64_t> only;
  uint64_t seed = 0;
  bool json = false;
};

// The schemes asked for; null is attention without positions.
std::vector<const Scheme*> tested_schemes(const std::string& asked) {
  std::vector<const Scheme*> chosen;
  if (asked.empty() || asked == "none") chosen.push_back(nullptr);
  std::vector<std::string> names{"none"};
  for (const Scheme& scheme : schemes()) {
    names.push_back(scheme.name);
    if (asked.empty() || asked == scheme.name) chosen.push_back(&scheme);
  }
  check_value(!chosen.empty(), "--scheme: unknown scheme ", asked, suggestion(asked, names));
  return chosen;
}

// Says what went wrong in a case; null where nothing did.
Json failure(const CaseResult& outcome, const std::string& name, size_t n, uint64_t seed) {
  if (outcome.ok()) return {};
  const std::string repro = "relpos selftest --scheme " + name + " --case " + std::to_string(n) +
                            " --seed " + std::to_string(seed);
  const std::string why = !outcome.error.empty() ? outcome.error
                          : outcome.same_bits    ? text_of("forward %.3f, backward %.3f",
                                                           outcome.forward, outcome.backward)
                                                 : "one thread and two differ";
  note(join({"FAILED " + outcome.position, why, repro}, ": "));
  return {{"case", n}, {"position", outcome.position}, {"why", why}, {"repro", repro}};
}

// Runs the cases of a scheme, prints its line and returns its part of the report.
Json run_scheme(const Scheme* scheme, const SelftestArguments& a) {
  const std::string name = scheme != nullptr ? scheme->name : "none";
  CaseResult worst;
  Json failures = Json::array();
  long count = 0;
  for (size_t n = 0; n < cases().size(); ++n) {
    if (a.only && *a.only != n) continue;
    const CaseResult outcome = run_case(scheme, n, a.seed);
    throw_if_interrupted();
    ++count;
    worst.join(outcome);
    if (Json found = failure(outcome, name, n, a.seed); !found.is_null()) failures.push_back(found);
  }
  const bool ok = failures.empty();
  if (!a.json) {
    print(text_of("%-19s %-7ld %-9.3f %-9.3f %s\n", name.c_str(), count, worst.forward,
                  worst.backward, ok ? "ok" : "FAILED"));
  }
  return {{"name", name},
          {"cases", count},
          {"forward", json_number(worst.forward)},
          {"backward", json_number(worst.backward)},
          {"same_bits", worst.same_bits},
          {"ok", ok},
          {"failures", failures}};
}

int selftest(const SelftestArguments& a) {
  const std::vector<const Scheme*> chosen = tested_schemes(a.scheme);
  check_value(!a.only || *a.only < cases().size(), "--case: expected 0 to ", cases().size() - 1);
  Json report = {
      {"version", RELPOS_VERSION}, {"config", Json::object()}, {"schemes", Json::array()}};
  std::string head = "relpos " RELPOS_VERSION "\n";
  for (const auto& [name, value] : show_config()) {
    report["config"][name] = value;
    head += text_of("%-19s %s\n", name.c_str(), value.c_str());
  }
  if (!a.json) {
    print(head + text_of("\n%-19s %-7s %-9s %-9s (largest error / allowed error)\n", "scheme",
                         "cases", "forward", "backward"));
  }
  bool all_ok = true;
  for (const Scheme* scheme : chosen) {
    report["schemes"].push_back(run_scheme(scheme, a));
    all_ok = all_ok && report["schemes"].back()["ok"];
  }
  report["ok"] = all_ok;
  if (a.json) print_json(report);
  return all_ok ? kOk : kFailedCheck;
}

}  // namespace

void add_selftest(CLI::App& tool, Run& run) {
  CLI::App* app = tool.add_subcommand(
      "selftest", "Check this machine: compare the fused path with the reference path");
  app->footer(
      "  relpos selftest\n  relpos selftest --json\n"
      "  RELPOS_TARGET=avx2 relpos selftest      use this SIMD target: avx512, avx2 or baseline\n"
      "  relpos selftest --scheme t5 --case 3");
  SelftestArguments& a = add_arguments(*app, run, selftest);
  app->add_option("--scheme", a.scheme,
                  "only this scheme, or 'none' for attention without one [all]");
  add_number(*app, "--case", a.only, "only the case of this number [all]");
  add_number(*app, "--seed", a.seed, "random seed of the inputs [0]");
  app->add_flag("--json", a.json, "print the report as JSON");
}

}  // namespace relpos::cli
