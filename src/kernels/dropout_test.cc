// The generator against its published answers, and masks against what independent bits would do.
#include "kernels/dropout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/block/kernels.h"

namespace relpos {
namespace {

using Words = Threefry4x32::Words;

// kat_vectors of Random123: counter and key of zeros, of ones, of digits of pi.
TEST(Threefry, GivesThePublishedWords) {
  constexpr uint32_t kOnes = 0xFFFFFFFFU;
  const Words zero{}, ones{kOnes, kOnes, kOnes, kOnes};
  const Words pi{0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344};
  const Words more_pi{0xA4093822, 0x299F31D0, 0x082EFA98, 0xEC4E6C89};
  EXPECT_EQ(Threefry4x32::words(zero, zero),
            (Words{0x531C7E4F, 0x39491EE5, 0x2C855A92, 0x3D6ABF9A}));
  EXPECT_EQ(Threefry4x32::words(ones, ones),
            (Words{0xC4189358, 0x1C9CC83A, 0xD5881C67, 0x6A0A89E0}));
  EXPECT_EQ(Threefry4x32::words(pi, more_pi),
            (Words{0x4AA71D8F, 0x734738C2, 0x431FC6A8, 0xAE6DEBF1}));
  EXPECT_EQ(Threefry4x32::words(zero, zero, 20),
            (Words{0x9C6CA96A, 0xE17EAE66, 0xFC10ECD4, 0x5256A7D8}));
}

constexpr int64_t kHeads = 3, kQueries = 40, kColumns = 4096;

// Kept columns of a row, as bits.
std::vector<uint64_t> row_bits(const Dropout& dropout, int64_t b, int64_t h, int64_t i,
                               int64_t columns = kColumns) {
  std::vector<uint64_t> bits(columns / 64);
  for (int64_t j = 0; j < columns; ++j) {
    bits[j / 64] |= uint64_t{dropout.keeps(b, h, i, j)} << (j % 64);
  }
  return bits;
}

// Columns where two rows agree, of `columns`, the second read `shift` columns further.
int64_t agreements(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b, int64_t shift,
                   int64_t columns) {
  int64_t same = 0;
  for (int64_t j = 0; j < columns; ++j) {
    const int64_t k = j + shift;
    const bool x = (a[j / 64] >> (j % 64)) & 1U;
    const bool y = (b[k / 64] >> (k % 64)) & 1U;
    same += x == y;
  }
  return same;
}

// That `count` of `total` fair coins is within six deviations: one of 10^9 fails by chance.
void expect_half(int64_t count, int64_t total, const std::string& what) {
  const double deviation = 0.5 * std::sqrt(static_cast<double>(total));
  EXPECT_LT(std::fabs(static_cast<double>(count) - 0.5 * static_cast<double>(total)),
            6.0 * deviation)
      << what;
}

TEST(Dropout, KeepsAtItsRateInEveryRowAndColumn) {
  for (const double p : {0.01, 0.1, 0.5, 0.9}) {
    const Dropout dropout(p, 7);
    std::vector<int64_t> of_column(256);
    const int64_t rows = 2 * kHeads * kQueries;
    for (int64_t row = 0; row < rows; ++row) {
      int64_t kept = 0;
      for (int64_t j = 0; j < 256; ++j) {
        const bool keeps =
            dropout.keeps(row / (kHeads * kQueries), row / kQueries % kHeads, row % kQueries, j);
        kept += keeps;
        of_column[j] += keeps;
      }
      EXPECT_NEAR(static_cast<double>(kept), 256 * (1 - p), 6 * std::sqrt(256 * p * (1 - p)) + 1);
    }
    for (const int64_t kept : of_column) {
      const auto n = static_cast<double>(rows);
      EXPECT_NEAR(static_cast<double>(kept), n * (1 - p), 6 * std::sqrt(n * p * (1 - p)) + 1);
    }
  }
}

TEST(Dropout, ScalesWhatItKeepsToTheSameMean) {
  for (const double p : {0.0, 0.25, 0.5, 0.75})
    EXPECT_EQ(Dropout(p, 7).keep_scale() * (1 - p), 1.0);
  EXPECT_EQ(Dropout(1.0, 7).keep_scale(), 0.0);
}

TEST(Dropout, RowsSeedsAndShiftsAgreeByChanceOnly) {
  const auto bits = [](uint64_t seed, int64_t b, int64_t h, int64_t i) {
    return row_bits(Dropout(0.5, seed), b, h, i);
  };
  constexpr uint64_t kSeed = 0x9E3779B97F4A7C15ULL;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{41}, kSeed, ~uint64_t{0}}) {
    const std::vector<uint64_t> row = bits(seed, 1, 1, 20);
    const std::vector<std::pair<const char*, std::vector<uint64_t>>> others = {
        {"next batch row", bits(seed, 2, 1, 20)},
        {"next head", bits(seed, 1, 2, 20)},
        {"next query", bits(seed, 1, 1, 21)},
        {"next seed", bits(seed + 1, 1, 1, 20)},
        {"next seed, row before", bits(seed + 1, 0, 1, 20)},
        {"next seed, query before", bits(seed + 1, 1, 1, 19)},
        {"other half of the seed", bits(seed ^ (uint64_t{1} << 32), 1, 1, 20)},
    };
    for (const auto& [name, other] : others) {
      for (const int64_t shift : {0, 1, 2, 3, 4, 16, 17, 63, 64, 65, 256, 1024}) {
        expect_half(agreements(row, other, shift, kColumns - 1024), kColumns - 1024,
                    std::string(name) + ", shift " + std::to_string(shift));
      }
    }
    for (const int64_t shift : {1, 2, 3, 4, 15, 16, 17, 32, 48, 64, 128, 1024}) {
      expect_half(agreements(row, row, shift, kColumns - 1024), kColumns - 1024,
                  "itself, shift " + std::to_string(shift));
    }
  }
}

// Pairs of many rows, as the pairs that a 32-bit hash of a row brings close are one in thousands.
TEST(Dropout, NoTwoOfManyRowsShareTheirStart) {
  constexpr int64_t kMany = 1 << 17;
  const Dropout dropout(0.5, 3);
  std::vector<std::pair<uint64_t, int64_t>> starts;
  for (int64_t i = 0; i < kMany; ++i) {
    const uint64_t word = row_bits(dropout, 0, 0, i, 64)[0];
    starts.emplace_back(word, i);
  }
  std::sort(starts.begin(), starts.end());
  for (size_t n = 1; n < starts.size(); ++n) {
    EXPECT_NE(starts[n].first, starts[n - 1].first)
        << "rows " << starts[n].second << " and " << starts[n - 1].second;
  }
}

TEST(Dropout, CountersOfFarAwayPairsDiffer) {
  constexpr int64_t kFar = int64_t{1} << 40;
  const Dropout dropout(0.5, 3);
  std::vector<std::pair<Words, Words>> counters;
  for (const int64_t b : {int64_t{0}, int64_t{1}, int64_t{4095}}) {
    for (const int64_t h : {0, 1, 15}) {
      for (const int64_t i : {int64_t{0}, int64_t{1}, int64_t{1} << 32, kFar - 1}) {
        for (const int64_t j : {int64_t{0}, int64_t{1}, int64_t{64}, int64_t{1} << 34, kFar}) {
          counters.emplace_back(dropout.key(b, h), Dropout::counter(i, j));
        }
      }
    }
  }
  std::sort(counters.begin(), counters.end());
  EXPECT_EQ(std::adjacent_find(counters.begin(), counters.end()), counters.end());
}

// Calls f(target, key, factor) for what every target gives query 33 of head 2 and batch row 5.
template <typename F>
void for_each_factor(const Problem& p, const std::vector<int64_t>& tiles, const F& f) {
  Block block;
  block.problem = &p;
  block.batch = 5;
  block.rows = 1;
  block.head[0] = 2;
  block.index[0] = 33;
  for (const Kernels& kernels : usable_kernels()) {
    for (const int64_t t : tiles) {
      alignas(64) float factors[kTile];
      kernels.dropout(block, 0, t, factors);
      for (int64_t c = 0; c < kTile; ++c) f(kernels.name, t * kTile + c, factors[c]);
    }
  }
}

TEST(Dropout, IsTheSameInLanesOfEveryTarget) {
  Problem p;
  p.heads = kHeads;
  p.queries = kQueries;
  p.dropout = Dropout(0.3, 0x123456789ABCDEFULL);
  const std::vector<int64_t> tiles = {0, 1, 999, int64_t{1} << 28, int64_t{1} << 40};
  for_each_factor(p, tiles, [&](const char* target, int64_t key, float factor) {
    const bool keeps = p.dropout.keeps(5, 2, 33, key);
    EXPECT_EQ(factor, keeps ? static_cast<float>(p.dropout.keep_scale()) : 0.0f)
        << target << ", key " << key;
  });
}

// A piece of a call drops what the whole call drops, wherever its rows and columns are.
TEST(Dropout, CountsThePiecesOfACallByTheirPlacesInIt) {
  const Dropout whole(0.4, 17);
  for (const auto& [first, step] :
       {std::pair{0, 1}, std::pair{128, 1}, std::pair{37, 1}, std::pair{5, 3}}) {
    std::vector<int64_t> columns(150), rows(40);
    for (size_t j = 0; j < columns.size(); ++j) columns[j] = first + step * static_cast<int64_t>(j);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = 90 + 2 * static_cast<int64_t>(i);
    Problem p;
    p.dropout = Dropout(0.4, 17);
    p.dropout.place(3, rows, columns);
    for_each_factor(p, {0, 1, 2}, [&, from = first](const char* target, int64_t key, float factor) {
      if (key >= 150) return;
      const bool keeps = whole.keeps(5, 5, rows[33], columns[static_cast<size_t>(key)]);
      EXPECT_EQ(factor != 0.0f, keeps) << target << ", from " << from << ", key " << key;
      EXPECT_EQ(p.dropout.keeps(5, 2, 33, key), keeps);
    });
  }
}

}  // namespace
}  // namespace relpos
