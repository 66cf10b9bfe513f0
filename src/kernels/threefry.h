// Threefry4x32, a counter-based generator: four words from a 128-bit counter and a 128-bit key.
// Salmon et al.: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), of Random123.
// Additions, rotations and exclusive ors only: cheap in lanes on every target.
#pragma once

#include <array>
#include <cstdint>

namespace relpos {

struct Threefry4x32 {
  using Words = std::array<uint32_t, 4>;

  // Its authors know of no statistical flaws with 12 rounds or more; Random123 publishes answers for 13.
  static constexpr int kRounds = 13;
  static constexpr int kRotations[8][2] = {{10, 26}, {11, 21}, {13, 27}, {23, 5},
                                           {6, 20},  {17, 11}, {25, 10}, {18, 20}};
  // The key, and a fifth word that depends on all of it.
  static constexpr std::array<uint32_t, 5> schedule(const Words& key) noexcept {
    return {key[0], key[1], key[2], key[3], 0x1BD11BDAU ^ key[0] ^ key[1] ^ key[2] ^ key[3]};
  }

  static constexpr Words words(const Words& counter, const Words& key,
                               int rounds = kRounds) noexcept {
    const std::array<uint32_t, 5> keys = schedule(key);
    Words x = counter;
    for (size_t n = 0; n < 4; ++n) x[n] += keys[n];
    for (int round = 0; round < rounds; ++round) {
      const auto& turn = kRotations[round % 8];
      const size_t first = round % 2 == 0 ? 1 : 3, second = 4 - first;
      mix(x[0], x[first], turn[0]);
      mix(x[2], x[second], turn[1]);
      if (round % 4 != 3) continue;
      const auto step = static_cast<uint32_t>(round / 4 + 1);
      for (uint32_t n = 0; n < 4; ++n) x[n] += keys[(step + n) % 5];
      x[3] += step;
    }
    return x;
  }

 private:
  static constexpr void mix(uint32_t& a, uint32_t& b, int turn) noexcept {
    a += b;
    b = (b << turn | b >> (32 - turn)) ^ a;
  }
};

}  // namespace relpos
