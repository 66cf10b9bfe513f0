#include "kernels/targets.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/block.h"
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
  const std::vector<Kernels> usable = usable_kernels();
  for (const Kernels& kernels : usable) choice.target.available.emplace_back(kernels.name);
  choice.kernels = usable.front();
  const char* forced = std::getenv("RELPOS_TARGET");
  if (forced != nullptr && *forced != '\0') {
    choice.target.forced = forced;
    const auto found = std::find_if(usable.begin(), usable.end(), [&](const Kernels& kernels) {
      return kernels.name == choice.target.forced;
    });
    std::string names;
    for (const std::string& name : choice.target.available) {
      names += (names.empty() ? "" : ", ") + name;
    }
    check_value(found != usable.end(), "RELPOS_TARGET: expected one of ", names,
                " on this machine, got ", forced);
    choice.kernels = *found;
  }
  choice.target.name = choice.kernels.name;
  return choice;
}

const Choice& chosen() {
  static const Choice choice = choose();
  return choice;
}

}  // namespace

std::vector<Kernels> usable_kernels() {
  std::vector<Kernels> all = compiled_kernels();
  std::erase_if(all, [](const Kernels& kernels) { return !supported(kernels.name); });
  return all;
}

const Target& current_target() { return chosen().target; }
const Kernels& tile_kernels() { return chosen().kernels; }

}  // namespace relpos
