// Eight threads that call every entry at once, each with threads of its own: the bits of one caller alone.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "relpos/error.h"
#include "testing/entries.h"
#include "testing/held.h"

namespace relpos {
namespace {

using entries::Case;
using entries::Entry;
using entries::Held;

constexpr std::array kPositions{"", "t5+rope(layout=half)", "shaw(max_distance=9)", "dynamic_bias",
                                "xlnet(segments=true)"};

Case case_of(uint64_t n, int threads) {
  Case c;
  c.seed = n;
  c.position = kPositions[n % kPositions.size()];
  c.dtype = std::array{DType::kFloat32, DType::kFloat64, DType::kBFloat16}[n % 3];
  c.heads = 4;
  c.queries = c.keys = 70 + static_cast<int64_t>(n);
  c.head_dim = c.value_dim = 8;
  c.threads = threads;
  return c;
}

// Of an entry's results; nothing where it refuses the case.
std::vector<uint64_t> bits_of(const Entry& entry, const Case& c) {
  Held held;
  try {
    entry.prepare(c, held)();
  } catch (const Error&) {
    return {};
  }
  return held.bits();
}

TEST(Callers, EightAtOnceHaveTheBitsOfOne) {
  constexpr uint64_t kCases = 15;
  std::vector<std::pair<const Entry*, uint64_t>> calls;
  std::vector<std::vector<uint64_t>> alone;
  for (const Entry& entry : entries::kEntries) {
    for (uint64_t n = 0; n < kCases; ++n) {
      if (entry.of_part() && case_of(n, 1).position.empty()) continue;
      std::vector<uint64_t> bits = bits_of(entry, case_of(n, 1));
      if (bits.empty()) continue;
      calls.emplace_back(&entry, n);
      alone.push_back(std::move(bits));
    }
  }
  ASSERT_GT(calls.size(), 4 * kCases);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (size_t caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&, caller] {
      // Each begins at another call, so that different ones meet.
      for (size_t n = 0; n < calls.size(); ++n) {
        const size_t at = (n + caller * calls.size() / 8) % calls.size();
        wrong += bits_of(*calls[at].first, case_of(calls[at].second, 2)) != alone[at] ? 1 : 0;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace relpos
