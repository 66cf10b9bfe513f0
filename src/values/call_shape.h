// The sizes of an attention call, of its own heads alone.
#pragma once

#include <cstdint>

namespace relpos {

struct CallShape {
  int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, head_dim = 0, value_dim = 0;

  // Query heads that share a key head.
  int64_t group() const noexcept { return kv_heads == 0 ? 0 : heads / kv_heads; }
};

}  // namespace relpos
