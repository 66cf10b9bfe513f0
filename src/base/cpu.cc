#include "base/cpu.h"

#if defined(__x86_64__)

#include <cpuid.h>

#include <initializer_list>

namespace relpos {
namespace {

struct Leaf {
  uint32_t a = 0, b = 0, c = 0, d = 0;
};

// Zeros where the CPU has no such leaf.
Leaf leaf(uint32_t number, uint32_t part = 0) {
  Leaf got;
  if (__get_cpuid_count(number, part, &got.a, &got.b, &got.c, &got.d) == 0) return {};
  return got;
}

bool has(uint32_t word, std::initializer_list<int> bits) {
  for (const int bit : bits) {
    if ((word >> bit & 1U) == 0) return false;
  }
  return true;
}

// The parts of a thread's state that the operating system keeps.
uint32_t kept_state() {
  uint32_t low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

Cpu ask() {
  Cpu cpu;
  const Leaf vendor = leaf(0), basic = leaf(1), extended = leaf(7), more = leaf(7, 1);
  cpu.intel = vendor.b == signature_INTEL_ebx && vendor.c == signature_INTEL_ecx &&
              vendor.d == signature_INTEL_edx;
  const bool amd = vendor.b == signature_AMD_ebx && vendor.c == signature_AMD_ecx &&
                   vendor.d == signature_AMD_edx;
  const uint32_t family = (basic.a >> 8 & 0xF) + (basic.a >> 20 & 0xFF);
  cpu.zen4_or_3 = amd && family == 0x19;
  if (!has(basic.c, {27})) return cpu;  // no xgetbv
  const uint32_t kept = kept_state();
  const bool fma = has(basic.c, {12, 28}), bmi = has(extended.b, {3, 8});
  cpu.avx2 = has(kept, {1, 2}) && fma && bmi && has(extended.b, {5});
  cpu.avx512 = cpu.avx2 && has(kept, {5, 6, 7}) && has(extended.b, {16, 17, 28, 30, 31});
  cpu.avx512_bf16 = cpu.avx512 && has(more.a, {5});
  cpu.amx_bf16 = cpu.avx512_bf16 && has(kept, {17, 18}) && has(extended.d, {22, 24});
  return cpu;
}

}  // namespace

const Cpu& this_cpu() {
  static const Cpu cpu = ask();
  return cpu;
}

}  // namespace relpos

#else

namespace relpos {

const Cpu& this_cpu() {
  static const Cpu none;
  return none;
}

}  // namespace relpos

#endif

namespace relpos {

bool runs_target(const std::string& name) {
  if (name == "avx512") return this_cpu().avx512;
  if (name == "avx2") return this_cpu().avx2;
  return name == "baseline" || name == "neon";
}

}  // namespace relpos
