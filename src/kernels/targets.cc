#include "kernels/targets.h"

#include <cstdlib>

#include "kernels/kernels.h"
#include "relpos/error.h"

namespace relpos {
namespace {

bool supported(const std::string& name) {
#if defined(__x86_64__)
  if (name == "avx512") {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512cd") && supported("avx2");
  }
  if (name == "avx2") {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  }
#endif
  return name == "baseline" || name == "neon";
}

struct Choice {
  Target target;
  Kernels kernels;
};

Choice choose() {
  Choice choice;
  std::vector<Kernels> usable;
  for (const Kernels& kernels : compiled_kernels()) {
    if (!supported(kernels.name)) continue;
    usable.push_back(kernels);
    choice.target.available.emplace_back(kernels.name);
  }
  choice.kernels = usable.front();
  const char* forced = std::getenv("RELPOS_TARGET");
  if (forced != nullptr && *forced != '\0') {
    choice.target.forced = forced;
    bool found = false;
    std::string names;
    for (const Kernels& kernels : usable) {
      if (kernels.name == choice.target.forced) {
        choice.kernels = kernels;
        found = true;
      }
      names += std::string(names.empty() ? "" : ", ") + kernels.name;
    }
    check_value(found, "RELPOS_TARGET: expected one of ", names, " on this machine, got ", forced);
  }
  choice.target.name = choice.kernels.name;
  return choice;
}

const Choice& chosen() {
  static const Choice choice = choose();
  return choice;
}

}  // namespace

const Target& current_target() { return chosen().target; }
const Kernels& target_kernels() { return chosen().kernels; }

}  // namespace relpos
