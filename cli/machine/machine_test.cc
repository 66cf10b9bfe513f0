#include "cli/machine/machine.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "base/buffer.h"
#include "cli/machine/probes.h"
#include "relpos/error.h"

namespace relpos::cli {
namespace {

// That of the compiler's own baseline; on ARM it is NEON.
Probes baseline() { return usable_probes().back(); }

TEST(BenchMachine, ProbesComputeWhatTheySay) {
  const Buffer<float> memory(1024);
  for (int n = 0; n < 1024; ++n) memory[n] = static_cast<float>(n);
  const Probes probes = baseline();
  EXPECT_EQ(probes.sum(memory.get(), 1024), 1023 * 1024 / 2);
  // x <- 0.999 x + 0.001 brings every sum to 1.
  EXPECT_NEAR(probes.multiply_adds(100000), static_cast<float>(probes.flops / 2), 0.01);
}

TEST(BenchMachine, MeasuresTheBaseline) {
  EXPECT_GT(peak_gflops(baseline().target, 1), 0.0);
  EXPECT_GT(read_bandwidth(baseline().target, 2), 0.0);
  EXPECT_NE(cpu_name(), "");
  EXPECT_THROW(peak_gflops("nothing", 1), Error);
}

}  // namespace
}  // namespace relpos::cli
