// The CPU's own answers beside those of the compiler's run-time library.
#include "base/cpu.h"

#include <gtest/gtest.h>

namespace relpos {
namespace {

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

TEST(Cpu, OffersWhatTheCompilersLibrarySays) {
  const Cpu& cpu = this_cpu();
  EXPECT_EQ(cpu.intel, __builtin_cpu_is("intel") != 0);
  EXPECT_EQ(cpu.zen4_or_3, __builtin_cpu_is("amdfam19h") != 0);
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  EXPECT_EQ(cpu.avx2, avx2);
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512cd");
  EXPECT_EQ(cpu.avx512, avx512 && avx2);
  EXPECT_EQ(cpu.avx512_bf16, avx512 && avx2 && __builtin_cpu_supports("avx512bf16"));
}

#endif

TEST(Cpu, OffersTheLargerOnlyWithTheSmaller) {
  const Cpu& cpu = this_cpu();
  EXPECT_LE(cpu.avx512, cpu.avx2);
  EXPECT_LE(cpu.avx512_bf16, cpu.avx512);
  EXPECT_LE(cpu.amx_bf16, cpu.avx512_bf16);
}

}  // namespace
}  // namespace relpos
