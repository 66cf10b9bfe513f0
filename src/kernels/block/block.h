// The contract between the drivers (plain C++) and the kernels (compiled once a SIMD target).
//
// A block is up to kRows query rows of one batch row that share a key head. A tile is kTile keys.
// Every additive term of a tile is read as kTile floats at a pointer; every gradient of one is added
// to kTile floats at a pointer. Scores are in units of log2: exp(x) = exp2(x log2(e)).
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/block/matrix_unit.h"
#include "kernels/plan/coordinate_tiles.h"
#include "kernels/problem.h"

namespace relpos {

inline constexpr double kLog2e = 1.4426950408889634;
inline constexpr double kLn2 = 0.6931471805599453;

// A term of a score, in natural units, as kernels add it: times log2(e). What is finite stays finite
// and keeps its order, for only -inf hides: beyond kLinear, where a mask's lowest float lies, the
// slope is smaller.
inline constexpr double kLinear = 2.2e38;
inline constexpr double kSqueeze =
    (double{FLT_MAX} - kLinear * kLog2e) / (double{FLT_MAX} - kLinear);
inline double to_log2(double term) noexcept {
  const double size = std::fabs(term);
  if (!(size > kLinear) || std::isinf(size)) return term * kLog2e;
  const double scaled = kLinear * kLog2e + (size - kLinear) * kSqueeze;
  return std::copysign(std::min(scaled, double{FLT_MAX}), term);
}
inline double from_log2(double score) noexcept {
  const double size = std::fabs(score);
  if (!(size > kLinear * kLog2e) || std::isinf(size)) return score * kLn2;
  return std::copysign(kLinear + (size - kLinear * kLog2e) / kSqueeze, score);
}

inline constexpr int kRows = 96;  // a multiple of kGroup; a tile's loads serve 16 groups
inline constexpr int kGroup = 6;  // rows of a register tile: 6 x 4 vectors fill 29 of 32 registers
inline constexpr int64_t kPad = kTile;  // cells beside a window, for what lies outside it
inline constexpr int64_t kLanes = 16;   // row lengths are multiples of the widest vector, in floats

// A window of distances, one cell each: cells [kPad][width][kPad], so that any tile of consecutive
// keys is kTile cells at one offset, wherever it lies.
struct Panel {
  int64_t lo = 0, width = 0;
  // Rows of cells start `stride` apart with their left pad.
  int64_t stride = 0;
  const float* cells = nullptr;     // read; null: nothing to read
  float* gradient = nullptr;        // added to; null: nothing to add
  const int64_t* row_of = nullptr;  // the row of cells that a row of the block reads; null: its own
  bool takes_turns = false;         // row r adds to row r % kGroup of the gradient, else to r
  bool once = false;                // one tile of a block writes each inner cell of the gradient
  const int64_t* shift = nullptr;   // per row, taken from its distances; null: nothing
  const CoordinateTiles* at = nullptr;  // what it is read by; null: positions
  // Of tiles that lie left or right of the window for all rows of a block: the number that a row reads
  // there [2, kRows], null: it is read from the pad; and sums in lanes of what it adds there
  // [2, kRows, kLanes], null: it is added to the pad. Rows of pads lie pages apart.
  const float* far_cells = nullptr;
  float* far_sums = nullptr;

  const float* row_cells(int row) const noexcept {
    return cells + (row_of == nullptr ? row : row_of[row]) * stride;
  }
  float* row_gradient(int row) const noexcept {
    return gradient + (takes_turns ? row % kGroup : row) * stride;
  }
  int64_t offset(int64_t distance) const noexcept {
    const int64_t cell = distance - lo + kPad;
    return cell < 0 ? 0 : cell > width + kPad ? width + kPad : cell;
  }
  int64_t offset(int row, int64_t distance) const noexcept {
    return offset(distance - shift_of(row));
  }
  int64_t shift_of(int row) const noexcept { return shift == nullptr ? 0 : shift[row]; }
};

// past * min(delta, 0) + future * max(delta, 0), less its value at the row's shift: for distances too
// far apart for a window, and for rows that see far keys on both sides.
struct Ramp {
  int64_t bias = 0;                                     // of Plan::biases
  double past[kRows] = {}, future[kRows] = {};          // times log2(e)
  double shift[kRows] = {};                             // the value that is taken off
  double past_sum[kRows] = {}, future_sum[kRows] = {};  // gradients: sum of dscore * delta

  double operator()(int row, int64_t delta) const noexcept {
    return (delta < 0 ? past[row] : future[row]) * static_cast<double>(delta) - shift[row];
  }
};

// The keys and values of a tile in bfloat16, as pairs (bfloat16/unit.h); sizes rounded up to
// kUnitDepth, zeros beyond the last of each.
struct PairTile {
  const uint16_t* kt = nullptr;  // [D, kTile] rotated keys
  const uint16_t* k = nullptr;   // [kTile, Dp] the same (backward)
  const uint16_t* v = nullptr;   // [kTile, Dvp] values (forward)
  const uint16_t* vt = nullptr;  // [Dv, kTile] the same (backward)
};

struct KeyTile {
  const float* kt = nullptr;      // [D, kTile] rotated keys, transposed; columns as of transpose()
  const float* k = nullptr;       // [kTile, Dp] rotated keys (backward)
  const float* v = nullptr;       // [kTile, Dvp] (forward), readable up to the last key
  const float* vt = nullptr;      // [Dv, kTile] (backward), columns as those of kt
  PairTile pairs;                 // instead of these four, where a unit multiplies
  const float* memory = nullptr;  // of the whole tile: what the offsets of a plan count from
  // v_finite: or every query sees every value.
  bool k_finite = true, v_finite = true, factors_finite = true;
  float norm = 0.0f;  // the largest of a key, where the plan skips tiles
  bool run = true;    // consecutive positions from first_position
  int64_t first_position = 0;
  const int64_t* positions = nullptr;  // [kTile] where not a run
};

struct Kernels;

// Whether the rows of a dense mask are read by vectors: aligned elements one after another.
inline bool has_vector_rows(const TensorView& mask) noexcept {
  const auto size = static_cast<uintptr_t>(item_size(mask.dtype));
  return mask.strides[3] == 1 && mask.dtype != DType::kFloat64 &&
         (reinterpret_cast<uintptr_t>(mask.data) & (size - 1)) == 0;
}

struct Block {
  const Problem* problem = nullptr;
  const Kernels* kernels = nullptr;
  int64_t D = 0, Dp = 0, Dv = 0, Dvp = 0;  // head sizes, and rounded up to kLanes
  int64_t batch = 0;
  // Rows in use, those of one head at consecutive queries; the rest of the last group is zero rows
  // that see nothing.
  int rows = 0;
  int64_t head[kRows], index[kRows], position[kRows], lo[kRows], hi[kRows];
  int64_t first_position[kRows / kGroup],
      last_position[kRows / kGroup];  // lowest, highest of a group
  int64_t first_of_all, last_of_all;  // of all rows
  // Where the row of a dense mask starts that a row reads, in padded rows as in the last, and bytes of a
  // tile of it. In place: float32 that has_vector_rows().
  const std::byte* mask_row[kRows];
  int64_t mask_step = 0;
  bool mask_in_place = false;
  int64_t shift[kRows];       // of distances at which slopes are read (shift.h)
  double score_shift[kRows];  // what all scores of the row are less by, natural units
  bool shifted = false;       // a row's `shift` is not 0

  std::pair<int64_t, int64_t> range;  // distances of its visible pairs
  int64_t all_from = 0,
          all_to = 0;  // keys that every row sees, without regard to masks and padding
  float* q = nullptr;  // [kRows, Dp] rotated, times scale * log2(e)
  // The same in bfloat16 where a unit multiplies [kRows, Dq], zero rows beyond the last; and what their
  // products with keys are multiplied by, for they are not scaled themselves.
  const uint16_t* narrow_q = nullptr;
  const uint16_t* narrow_qt = nullptr;  // [Dp, unit_rows()], transposed (backward)
  int64_t Dq = 0, Dvq = 0;
  float score_scale = 1.0f;
  std::vector<Panel> scores;  // added to scores; gradient takes dscore
  std::vector<Ramp> ramps;
  // Added to the scores of one tile, row by row: [kTile] each, extra_stride apart; null: nothing.
  const float* extra = nullptr;
  int64_t extra_stride = kTile;
  const double* key_bias[kRows] = {};  // [Lk rounded up to kTile] times log2(e), or null
  double key_shift[kRows];             // taken from it
  std::vector<Panel> values;           // gradient takes weights; backward: cells add to dweight

  const std::byte* mask_tile(int row, int64_t t) const noexcept {
    return mask_row[row] + t * mask_step;
  }
  // Asks for what rows [first, end) read of a dense mask in tile t, in the second level cache: they lie
  // pages apart, where the hardware does not see them coming. Called a whole tile ahead, but not before
  // the products of queries and keys, which it would hold up (docs/kernels.md). Always inline: gcc drops
  // calls of a function that does nothing but fetch.
  __attribute__((always_inline)) void prefetch_mask(int first, int end, int64_t t) const noexcept {
    const TensorView& mask = problem->visible.mask;
    if (!mask.given() || mask.strides[3] != 1 || t >= problem->tiles()) return;
    for (int row = first; row < end; ++row) {
      const std::byte* from = mask_tile(row, t);
      for (int64_t n = 0; n < mask_step; n += 64) __builtin_prefetch(from + n, 0, 2);
    }
  }
  // Rows that a unit sums over.
  int64_t unit_rows() const noexcept { return round_up(rows, kUnitDepth); }
};

// The running softmax of a block's rows.
struct ForwardState {
  float* m = nullptr;  // [kRows], the reference exponent; -inf: nothing seen
  float* l = nullptr;  // [kRows, kLanes], partial sums
  float* o = nullptr;  // [kRows, Dvp], unnormalised output
};

// What the backward pass knows of a block's rows, and where their gradients go. A weight is
// exp2(score - reference) / sum with the sum in [1, 2): dout and delta come divided by it, so that the
// kernels work with exp2(score - reference) alone. Where a unit multiplies, dout is a number of bfloat16
// and stays one, delta is not divided either, and weights are. All rows are of one head.
struct BackwardState {
  const float* dout = nullptr;  // [kRows, Dvp], divided by the row's sum
  float reference[kRows];       // an integer, log2 units; -inf: the row saw nothing
  float inverse[kRows];         // of the row's sum (a unit's)
  float delta[kRows];           // (<dout, out> - dlse) / sum
  bool rows_finite = true;      // q and dout hold no NaN or Inf
  bool bounded = false;         // a score may exceed its reference: weights are at most 2^127
  bool all_weigh = false;       // the rows fill whole groups, and none saw nothing
  // A unit's: [kRows, Dvq], zero rows beyond the last, and transposed [Dvp, unit_rows()].
  const uint16_t *narrow_dout = nullptr, *narrow_dout_t = nullptr;
  float* dq = nullptr;  // [kRows, Dp], of the rotated query before the scale
  // Of a tile [kTile, Dp] and [kTile, Dvp], tile after tile; a unit's transposed, [Dp, kTile]. dk is
  // what Plan::key_gradient_scale() makes the true gradient.
  float *dk = nullptr, *dv = nullptr;
  float* p = nullptr;         // [kRows, kTile] scratch
  float* ds = nullptr;        // [kRows, kTile] scratch
  float* key_bias = nullptr;  // [tiles * kTile], takes dscore; null: not wanted
  // Called once before anything is added to dk, dv and key_bias of tile t; false: nothing may be.
  bool (*take_turn)(void* sums, int64_t t) = nullptr;
  void* sums = nullptr;  // its first argument
  std::vector<double>* mask_gradient = nullptr;
  const TensorView* mask_index = nullptr;
  const TensorView* mask_rows = nullptr;  // in place of the two; null: not wanted
};

// Calls f(head, first row, rows) for each run of rows of one head.
template <typename F>
void for_each_head(const Block& block, F&& f) {
  for (int row = 0; row < block.rows;) {
    int end = row + 1;
    while (end < block.rows && block.head[end] == block.head[row]) ++end;
    f(block.head[row], row, end - row);
    row = end;
  }
}

// Up to kTile rows of keys or values. `dims` is a multiple of Kernels::step(dtype).
struct TensorRows {
  DType dtype = DType::kFloat32;  // float32, bfloat16 or float16
  const void* data = nullptr;
  int64_t stride = 0;  // elements from row to row
  int64_t dims = 0;
  int64_t count = 0;  // rows that exist, at least 1
};

struct Kernels {
  const char* name;
  const MatrixUnit* unit = nullptr;  // multiplies queries, keys and values; null: float32 products
  int64_t lanes;                     // floats of a vector
  // C[M, N] = (accumulate ? C : 0) + A B; A at a[m * row_stride + k * k_stride]; N, ldb and ldc are
  // multiples of kLanes, B and C aligned to them.
  void (*gemm)(int64_t M, int64_t N, int64_t K, const float* a, int64_t row_stride,
               int64_t k_stride, const float* b, int64_t ldb, float* c, int64_t ldc,
               bool accumulate);
  // Rows of `to` [rows, n] = rows of `from` times factors[row * factor_stride]; strides between rows,
  // neither need be aligned.
  void (*scale)(int64_t rows, int64_t n, const float* from, int64_t stride, const float* factors,
                int64_t factor_stride, float* to, int64_t to_stride);
  // to[rows, n] = (accumulate ? to : 0) + from[rows, n] times factors[n], column by column; n is a multiple
  // of kLanes.
  void (*scale_columns)(int64_t rows, int64_t n, const float* from, const float* factors, float* to,
                        bool accumulate);
  // to[row * to_stride] += the sum of the n floats, a multiple of kLanes, at from[row * stride].
  void (*add_row_sums)(int64_t rows, int64_t n, const float* from, int64_t stride, float* to,
                       int64_t to_stride);
  // The sum of a[n] b[n] in double; n is a multiple of kLanes.
  double (*dot)(const float* a, const float* b, int64_t n);
  // Turns pairs of x by the angles, or by minus them (direction -1).
  void (*rotate)(float* x, int64_t pairs, bool interleaved, const float* cos, const float* sin,
                 float direction);
  // to[d, key] = rows[key, d] for `keys` of kTile keys, 0 from there to a multiple of kLanes; false
  // where one is NaN or Inf.
  bool (*transpose)(const float* rows, int64_t stride, int64_t keys, int64_t D, float* to);
  bool (*finite)(const float* x, int64_t n);
  // The largest Euclidean norm of the first `keys` columns of kt [D, kTile], as of transpose().
  float (*largest_norm)(const float* kt, int64_t keys, int64_t D);
  // to[n] = from[index[n]]; `index` ascends by 0 or 1; a vector may be read at from[index[n]].
  void (*expand)(const float* from, const int32_t* index, int64_t n, float* to);
  // extra[row * kTile + key] += products[key * stride + runs[kTile - 1 - key + row]]. `runs` does not
  // ascend, neighbours differ by 1 at most; readable, as products' rows, for kLanes beyond the last.
  void (*read_columns)(int rows, const float* products, int64_t stride, const int32_t* runs,
                       float* extra);
  // The transpose: products[key * stride + run] += the ds [rows, kTile] of the pairs that read it.
  void (*add_columns)(int rows, const float* ds, const int32_t* runs, float* products,
                      int64_t stride);
  // 16-bit floats to and from float32, a row without gaps at a time, at any address. Rounding is to
  // nearest even, as base/half.h does it.
  void (*widen_bfloat16)(const void* half, int64_t n, float* row);
  void (*widen_float16)(const void* half, int64_t n, float* row);
  void (*narrow_bfloat16)(const float* row, int64_t n, void* half);
  void (*narrow_float16)(const float* row, int64_t n, void* half);
  // Bits of the `count` keys, up to kTile, that a row of a mask shows from element `at` on.
  uint64_t (*mask_bits)(const TensorView& mask, int64_t at, int64_t count);
  // Rows read in place: s[rows, kTile] = <q[row], k[c]>, where columns past the last key hold its
  // product or 0, and o[row] += sum over the listed keys of p[row, key] v[key].
  void (*row_scores)(const TensorRows& k, int rows, const float* q, int64_t ldq, float* s);
  void (*add_row_values)(const TensorRows& v, int rows, const float* p, const uint8_t* keys,
                         int count, float* o, int64_t ldo);
  // Columns that those two take at a time.
  int64_t step(DType dtype) const noexcept { return dtype == DType::kBFloat16 ? 2 * lanes : lanes; }
  // What forward() does between its two products: p [rows, kTile], products of rows rounded up to
  // kGroup, become weights after dropout, 0 where hidden.
  void (*weigh)(Block& block, ForwardState& state, const KeyTile& tile, int64_t t, float* p);
  // The same of rows [first, last) from products that a unit has computed, for weights that are rounded
  // to bfloat16. `first` is a multiple of kGroup.
  void (*weigh_narrow)(Block& block, ForwardState& state, const KeyTile& tile, int64_t t, int first,
                       int last, float* p);
  // What backward() does between its products, likewise: those of queries and keys in state.p, those of
  // dout and values in state.ds, become weights after dropout and dscores.
  void (*weigh_gradients)(Block& block, BackwardState& state, const KeyTile& tile, int64_t t,
                          int first, int last);
  // Adds the dscores of a block's rows to state.key_bias, where it is wanted, in the block's turn.
  void (*add_key_bias_gradients)(const Block& block, const BackwardState& state, int64_t t);
  // Advances the state of a block over tiles [first, first + count).
  void (*forward)(Block& block, ForwardState& state, const KeyTile* tiles, int64_t first,
                  int64_t count);
  // Adds what tile t contributes to every gradient of the block. `next`: the tile that follows; null:
  // none is known.
  void (*backward)(Block& block, BackwardState& state, const KeyTile& tile, int64_t t,
                   const KeyTile* next);
  // Writes dense weights of a tile from `reference` and `inverse_sum` [kRows] or, where those are null,
  // dense scores.
  void (*emit)(const Block& block, const KeyTile& tile, int64_t t, const TensorView& dense,
               const float* reference, const float* inverse_sum);
  // y[n] = exp2(x[n]) as the softmax takes it; n is a multiple of kLanes.
  void (*exponentials)(const float* x, int64_t n, float* y);
  // factors[kTile]: 0 where dropout takes a key of tile t from a row, else 1 / (1 - p).
  void (*dropout)(const Block& block, int row, int64_t t, float* factors);
};

// Kernels of a target that multiply bfloat16 numbers in a unit.
Kernels with_unit(Kernels kernels, const MatrixUnit& unit);

// Every target that this build holds, best first, and those of them that this machine runs.
std::vector<Kernels> compiled_kernels();
std::vector<Kernels> usable_kernels();
// Of the target in use (targets.h): for all but the tiles of a call, and for those.
const Kernels& tile_kernels();
const Kernels& tile_kernels(const Problem& problem);

}  // namespace relpos
