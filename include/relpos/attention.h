// Attention with relative positions: forward, backward, and the dense views of both.
//
// Layout: query [B, H, Lq, D], key [B, Hk, Lk, D], value [B, Hk, Lk, Dv], any strides; Hk divides H.
// float32, bfloat16 and float16 inputs are computed in float32, float64 inputs in double.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "relpos/cancel.h"
#include "relpos/export.h"
#include "relpos/position.h"
#include "relpos/tensor.h"

RELPOS_EXPORT_BEGIN
namespace relpos {

// An offset of positions: one for all rows, or int64 [B].
struct Offset {
  int64_t value = 0;
  TensorView per_row;  // given: overrides value

  Offset() = default;
  Offset(int64_t v) : value(v) {}  // NOLINT: an int is an offset
  explicit Offset(const TensorView& rows) : per_row(rows) {}
};

// Which pairs attend, by tiles of 64 keys: for blocks of R queries of a head, those tiles that one of them
// sees. int64, `entries` and `words` without gaps. Time and memory are those of the tiles, so R = 96, the
// rows that the kernels take at a time, or Lq where that is less, is best; any R from 1 on is right.
struct TileMask {
  // [B or 1, H or 1, ceil(Lq / R), 2]: of each block, its entries [first, end).
  TensorView ranges{};
  // [n, 2]: a tile, ascending in a block, and the row of its words, or -1: all R see all 64 keys.
  TensorView entries{};
  TensorView words{};  // [m, R]: bit c of word r: query r of the block sees key c of the tile
  int64_t queries = 0, keys = 0;  // what it was made for
};

enum class Path { kAuto, kFused, kReference };

struct Options {
  // bool (true = attend) or floating (added), broadcastable to [B, H, Lq, Lk].
  TensorView attn_mask{};
  TileMask tile_mask{};           // beside attn_mask, too: a key must pass both
  TensorView key_padding_mask{};  // bool [B, Lk], true = padding
  double dropout_p = 0.0;
  bool is_causal = false;           // pos_k <= pos_q
  std::optional<double> scale{};    // 1 / sqrt(D)
  std::optional<double> softcap{};  // c > 0: scores become c tanh(score / c) before attn_mask
  bool float32_products = false;  // of a call in bfloat16, whatever the CPU can (docs/accuracy.md)
  bool enable_gqa = false;        // Hk != H is an error without it
  std::optional<std::pair<int64_t, int64_t>>
      window{};  // -left <= pos_k - pos_q <= right; -1: no bound
  std::optional<Offset> q_offset{};
  Offset k_offset{};
  TensorView q_positions{}, k_positions{};  // int64 [L] or [B, L]; both or neither
  TensorView key_lo{}, key_hi{};            // key_range: int64 [Lq] or [B, Lq], keys lo <= j < hi
  uint64_t seed = 0;                        // of dropout; counter = (b, h, i, j)
  // For a call that is a piece of a larger one. Its heads are [first_head, first_head + H) of so many as
  // the position has parameters for (all_heads, 0: H; inputs are the call's own). `length` is one more
  // than the last position of the larger call, for positions that depend on it (0: of this one).
  // dropout_rows [Lq] and dropout_columns [Lk], int64, are the i and j by which dropout counts.
  // Sinks join the softmax of one piece: of the others adds_sinks is false.
  int64_t first_head = 0, all_heads = 0, length = 0;
  TensorView dropout_rows{}, dropout_columns{};
  bool adds_sinks = true;
  CancelToken* cancel = nullptr;
  Path path = Path::kAuto;
  // 0 means the runtime's default. Never more are used than there are cores for this process, or than
  // the system grants. The number changes no bit of the result.
  int threads = 0;
};

// out: [B, H, Lq, Dv] in the dtype of query. lse: [B, H, Lq], the natural log of each row's sum before
// dropout, float32 (float64 for float64 inputs). softmax: [B, H, Lq, 2] in the dtype of lse, for
// `attention_backward` and `attention_weights`: a reference and a sum, which give the weights of a row
// to the last bits however large the scores are. lse or softmax is skipped where its view is not given;
// lse may be float64 for any query, and then fits the scores of attention_backward to its last bits:
// keys are packed for it, also for few queries, of which workspace_bytes does not know.
// Throws Error before anything is written.
void attention(const TensorView& query, const TensorView& key, const TensorView& value,
               const Position& position, const Options& options, const TensorView& out,
               const TensorView& lse = {}, const TensorView& softmax = {});

struct Gradients {
  TensorView query, key, value;                     // a view that is not given is not computed
  std::vector<std::vector<TensorView>> parameters;  // [part][parameter]
  TensorView attn_mask;                             // of a floating mask, in the mask's own shape
};

// Overwrites every given gradient. `dlse` is optional. out and softmax come from `attention` with the
// same arguments. `softmax` may also be the lse [B, H, Lq]; the relative error of each weight is then
// larger by up to eps |lse|, eps = 2^-24 (2^-53 for a float64 lse). Where out and lse are those of a call
// over more keys, these keys' gradients, and their share of the others, are those of that call. In a
// fused call no weight counts as more than 2^127, whatever lse is given.
void attention_backward(const TensorView& query, const TensorView& key, const TensorView& value,
                        const TensorView& out, const TensorView& softmax, const TensorView& dout,
                        const TensorView& dlse, const Position& position, const Options& options,
                        const Gradients& gradients);

// Dense [B, H, Lq, Lk]: the weights after dropout. `softmax` as above.
void attention_weights(const TensorView& query, const TensorView& key, const TensorView& softmax,
                       const Position& position, const Options& options, const TensorView& weights);

// Dense scores before the softmax, [B, H, Lq, Lk]; -inf for masked pairs. Value tables are not used.
void scores(const TensorView& query, const TensorView& key, const Position& position,
            const Options& options, const TensorView& out);
void scores_backward(const TensorView& query, const TensorView& key, const TensorView& dscores,
                     const Position& position, const Options& options, const Gradients& gradients);

// Peak bytes beyond inputs and outputs, by the formula of docs/memory.md.
int64_t workspace_bytes(const TensorView& query, const TensorView& key, const TensorView& value,
                        const Position& position, const Options& options, bool backward);

// The SIMD target, threads, state after a fork and what runs on the reference path, as (name, value).
std::vector<std::pair<std::string, std::string>> show_config();

}  // namespace relpos
RELPOS_EXPORT_END
