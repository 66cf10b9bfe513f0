#include "bench_machine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "bench_probes.h"
#include "relpos/error.h"

namespace relpos::cli {
namespace {

Machine machine(double one, double all) {
  Machine m;
  m.target = "avx512";
  m.threads = 2;
  m.peak_one = one;
  m.peak_all = all;
  return m;
}

TEST(BenchMachine, VoidWhereTwoThreadsShareACore) {
  EXPECT_NE(void_reason(machine(120, 175)), "");
  EXPECT_EQ(void_reason(machine(120, 235)), "");  // 256-bit units
  EXPECT_NE(void_reason(machine(250, 379)), "");
  EXPECT_EQ(void_reason(machine(250, 381)), "");
  Machine alone = machine(120, 120);
  alone.threads = 1;
  EXPECT_EQ(void_reason(alone), "");
}

TEST(BenchMachine, QuietIsMeasuredByTheBestLook) {
  IssueSlots slots(2);
  const double first = slots.look();
  EXPECT_GT(first, 0.0);
  EXPECT_GE(slots.best(), std::max(first, slots.look()));
  const IssueSlots told(1, 40);
  EXPECT_EQ(told.best(), 40);
  EXPECT_TRUE(told.quiet(34.1));
  EXPECT_FALSE(told.quiet(33.9));
}

TEST(BenchMachine, TheHigherMeasurementCounts) {
  Machine first = machine(120, 200);
  first.bandwidth = 30;
  Machine second = machine(110, 230);
  second.bandwidth = 20;
  first.look = first.best_look = 40;
  second.look = 20;
  second.best_look = 50;
  keep_higher(first, second);
  EXPECT_EQ(first.issue_share(), 0.6);
  EXPECT_EQ(first.peak_one, 120);
  EXPECT_EQ(first.peak_all, 230);
  EXPECT_EQ(first.bandwidth, 30);
}

TEST(BenchMachine, ProbesComputeWhatTheySay) {
  std::vector<float> memory(1024 + 16);
  float* aligned = memory.data();
  while (reinterpret_cast<uintptr_t>(aligned) % 64 != 0) ++aligned;
  for (int n = 0; n < 1024; ++n) aligned[n] = static_cast<float>(n);
  for (const Probes& probes : compiled_probes()) {
    if (std::string(probes.target) != "baseline") continue;  // others may not run here
    EXPECT_EQ(probes.sum(aligned, 1024), 1023 * 1024 / 2);
    // x <- 0.999 x + 0.001 brings every sum to 1.
    EXPECT_NEAR(probes.multiply_adds(100000), static_cast<float>(probes.flops / 2), 0.01);
  }
  IssueSlots slots(1);
  EXPECT_THROW(measure_machine("nothing", 1, slots), Error);
}

}  // namespace
}  // namespace relpos::cli
