#include "kernels/simd/targets.h"

#include <algorithm>
#include <cstdlib>

#include "base/cpu.h"
#include "kernels/block/kernels.h"
#include "relpos/error.h"

namespace relpos {
namespace {

struct Choice {
  Target target;
  Kernels kernels;   // of float32 products
  Kernels bfloat16;  // of calls in bfloat16
};

// A unit works with the best of the other targets.
std::vector<Kernels> with_units(const std::vector<Kernels>& usable,
                                const std::vector<MatrixUnit>& units) {
  std::vector<Kernels> all;
  for (const MatrixUnit& unit : units) all.push_back(with_unit(usable.front(), unit));
  return all;
}

// On Intel's CPUs vdpbf16ps computes no more products in a cycle than two float32 ports do, and the
// stored scores cost more: by name alone.
bool pays(const Kernels& kernels) {
#if defined(__x86_64__)
  return kernels.name != std::string("avx512_bf16") || !this_cpu().intel;
#else
  return kernels.unit == nullptr;
#endif
}

// RELPOS_BF16: whether calls in bfloat16 multiply in float32, as other calls do.
bool only_float32() {
  const char* wanted = std::getenv("RELPOS_BF16");
  if (wanted == nullptr || *wanted == '\0') return false;
  check_value(std::string(wanted) == "float32", "RELPOS_BF16: expected float32 or nothing, got ",
              wanted);
  return true;
}

Choice choose() {
  Choice choice;
  const std::vector<Kernels> plain = usable_kernels();
  std::vector<Kernels> usable = with_units(plain, usable_units());
  usable.insert(usable.end(), plain.begin(), plain.end());
  for (const Kernels& kernels : usable) choice.target.available.emplace_back(kernels.name);
  const std::vector<Kernels> emulated = with_units(plain, emulated_units());
  usable.insert(usable.end(), emulated.begin(), emulated.end());  // for tests, by name alone
  choice.bfloat16 = *std::find_if(usable.begin(), usable.end(), pays);
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
    choice.bfloat16 = *found;
  }
  choice.target.name = choice.bfloat16.name;
  choice.kernels = choice.bfloat16.unit == nullptr ? choice.bfloat16 : plain.front();
  choice.target.of_float32 = choice.kernels.name;
  if (only_float32()) choice.bfloat16 = choice.kernels;
  return choice;
}

const Choice& chosen() {
  static const Choice choice = choose();
  return choice;
}

}  // namespace

const Target& current_target() { return chosen().target; }
const Kernels& tile_kernels() { return chosen().kernels; }

const Kernels& tile_kernels(const Problem& problem) {
  if (problem.kernels != nullptr) return *problem.kernels;
  const auto narrow = [](const TensorView& x) { return !x.given() || x.dtype == DType::kBFloat16; };
  const bool all = narrow(problem.query) && narrow(problem.key) && narrow(problem.value);
  return all ? chosen().bfloat16 : chosen().kernels;
}

}  // namespace relpos
