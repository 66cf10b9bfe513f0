// Gemma Team 2025 (audio of Gemma 3n and 4): projected sinusoids of the distance join the keys.
//
//   score[h,i,j] = scale <q_i, k_j + pos_proj_h T(n)>,   n = pos_q - pos_k
//   T(n) = [sin(n f_0), sin(n f_1), ..., cos(n f_0), cos(n f_1), ...]
//   f_p = 10000^(-p / (width / 2 - 1))
//
// The models attend within `window=`, cap scores with `softcap=`, and scale the dims of a query before.
#include <cmath>

#include "schemes/common/projection_sizes.h"
#include "schemes/common/sinusoids.h"

namespace relpos {

namespace {

struct GemmaAudio {
  common::ProjectionSizes sizes;

  void options(OptionList& o) { sizes.options(o); }

  void terms(Builder& b) const {
    const int64_t width = sizes.width(b);
    const Source weight = b.parameter("pos_proj.weight", {sizes.rows(), width},
                                      Init::glorot_uniform(sizes.rows(), width),
                                      "projects the sinusoids of a distance to each head");
    std::vector<double> frequencies;
    const int64_t last = width / 2 - 1;
    for (int64_t p = 0; p <= last; ++p) {
      const double share = p == 0 ? 0.0 : static_cast<double>(p) / static_cast<double>(last);
      frequencies.push_back(std::pow(10000.0, -share));
    }
    b.projected_rows(sizes.heads, weight, common::sinusoids(frequencies));
  }
};

}  // namespace

RELPOS_SCHEME(gemma_audio, GemmaAudio, "GemmaAudio",
              "projected sinusoids of the distance join the keys, within windows of audio",
              "Gemma Team 2025, Gemma 3n; Hugging Face Gemma3nAudioAttention")

}  // namespace relpos
