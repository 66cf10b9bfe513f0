#include "kernels/plan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/angles.h"

namespace relpos {
namespace {

// Slopes are expanded over every distance that occurs while those stay this close to Lq + Lk.
constexpr int64_t kExpandFactor = 4, kExpandFloor = 4096;

float widen_bfloat16(uint16_t bits) noexcept {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Angles of consecutive or arbitrary positions: exp(i (64 c + f) w) = exp(i 64 c w) exp(i f w), so
// that a run of positions costs one complex product each, in double, rounded once.
class AngleTable {
 public:
  explicit AngleTable(const Rotation& rotation)
      : r_(rotation),
        pairs_(rotation.dims / 2),
        fine_cos_(static_cast<size_t>(kTile * pairs_)),
        fine_sin_(fine_cos_.size()),
        coarse_cos_(static_cast<size_t>(pairs_)),
        coarse_sin_(coarse_cos_.size()) {
    for (int64_t f = 0; f < kTile; ++f) {
      angle_table(r_, f, &fine_cos_[static_cast<size_t>(f * pairs_)],
                  &fine_sin_[static_cast<size_t>(f * pairs_)]);
    }
  }

  void write(int64_t position, float* cos, float* sin) {
    if (r_.float32_angles) {
      angle_table(r_, position, cos, sin);
      scale(cos, sin);
      return;
    }
    const int64_t coarse = position & ~(kTile - 1);
    if (!ready_ || coarse != coarse_) {
      angle_table(r_, coarse, coarse_cos_.data(), coarse_sin_.data());
      coarse_ = coarse;
      ready_ = true;
    }
    const auto fine = static_cast<size_t>((position - coarse) * pairs_);
    for (size_t n = 0; n < static_cast<size_t>(pairs_); ++n) {
      const double c = fine_cos_[fine + n], s = fine_sin_[fine + n];
      cos[n] = static_cast<float>(coarse_cos_[n] * c - coarse_sin_[n] * s);
      sin[n] = static_cast<float>(coarse_sin_[n] * c + coarse_cos_[n] * s);
    }
    scale(cos, sin);
  }

 private:
  void scale(float* cos, float* sin) const {
    if (r_.magnitude == 1.0) return;
    for (int64_t n = 0; n < pairs_; ++n) {
      cos[n] = static_cast<float>(cos[n] * r_.magnitude);
      sin[n] = static_cast<float>(sin[n] * r_.magnitude);
    }
  }

  const Rotation& r_;
  int64_t pairs_;
  std::vector<double> fine_cos_, fine_sin_, coarse_cos_, coarse_sin_;
  int64_t coarse_ = 0;
  bool ready_ = false;
};

}  // namespace

bool all_finite(const float* x, int64_t n) noexcept {
  constexpr int kSums = 8;  // independent chains: one would wait four cycles an element
  float sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int s = 0; s < kSums; ++s) sums[s] += x[i + s] * 0.0f;
  }
  for (; i < n; ++i) sums[0] += x[i] * 0.0f;
  return std::accumulate(sums, sums + kSums, 0.0f) == 0.0f;
}

Window::Window(const ClassMap& map, std::pair<int64_t, int64_t> range) {
  const int64_t first = map.first_distance(), last = map.last_distance();
  lo = std::clamp(range.first, first, last);
  width = std::clamp(range.second, lo, last) - lo + 1;
  classes.reserve(static_cast<size_t>(width));
  for (int64_t c = 0; c < width; ++c) classes.push_back(map(lo + c));
  left = map(first - 1);
  right = map(last + 1);
}

Runs::Runs(const Window& window) : lo(window.lo - 1) {
  const auto add = [&](int64_t m) {
    if (classes.empty() || classes.back() != m) classes.push_back(m);
    index.push_back(static_cast<int32_t>(classes.size() - 1));
  };
  add(window.left);
  for (const int64_t m : window.classes) add(m);
  add(window.right);
}

Plan::Plan(const Problem& problem, bool backward)
    : p(problem),
      D(p.head_dim),
      Dp(round_up(D, kLanes)),
      Dv(p.value_dim),
      Dvp(round_up(Dv, kLanes)),
      tiles(p.tiles()),
      range(p.distance_range()),
      backward_(backward) {
  if (range.first > range.second) range = {0, 0};
  for (const DistanceBias& term : p.terms.biases) expand_bias(term);
  for (const RowTable& term : p.terms.row_tables) {
    row_tables.push_back(expand_table(Window(term.map, range), term.table, backward_, true));
    row_tables.back().scale = term.scale.value_or(p.scale);
  }
  for (const ValueTable& term : p.terms.value_tables) {
    if (p.value.given()) {
      value_tables.push_back(expand_table(Window(term.map, range), term.table, !backward_, backward_));
    }
  }
  if (!p.terms.key_biases.empty()) {
    for (const KeyBias& term : p.terms.key_biases) {
      if (term.values.view.rank == 3) key_bias_rows = p.batch;
    }
    key_bias = Buffer<float>(key_bias_rows * p.heads * tiles * kTile);
    std::fill_n(key_bias.get(), key_bias.size(), 0.0f);
    for (int64_t b = 0; b < key_bias_rows; ++b) {
      for (int64_t h = 0; h < p.heads; ++h) {
        float* row = key_bias.get() + (b * p.heads + h) * tiles * kTile;
        for (const KeyBias& term : p.terms.key_biases) {
          const TensorView& view = term.values.view;
          for (int64_t j = 0; j < p.keys; ++j) {
            const int64_t at = view.rank == 3 ? view.offset({b, h, j}) : view.offset({h, j});
            row[j] += static_cast<float>(view.load(at) * term.values.multiplier * kLog2e);
          }
        }
      }
    }
  }
  tile_floats_ = D * kTile + (backward_ ? kTile * Dp + Dv * kTile : kTile * Dvp);
  for (const ColumnTable& term : p.terms.column_tables) {
    ColumnPlan plan;
    plan.runs = Runs(Window(term.map, range));
    Window window;
    window.classes = plan.runs.classes;
    window.width = round_up(static_cast<int64_t>(window.classes.size()), kLanes);
    window.classes.resize(static_cast<size_t>(window.width), ClassMap::kNone);
    plan.table = expand_table(std::move(window), term.table, true, true);
    plan.table.scale = term.scale.value_or(p.scale);
    plan.factors_at = tile_floats_;
    tile_floats_ += kTile * plan.table.padded_rank;
    columns.push_back(std::move(plan));
  }

  find_peaks();
  for (const Rotation& rotation : p.terms.rotations) {
    Rotary rotary{&rotation, {}, {}, {}, {}};
    AngleTable table(rotation);
    const int64_t pairs = rotation.dims / 2;
    const auto fill = [&](int64_t rows, int64_t length, bool query, Buffer<float>& cos,
                          Buffer<float>& sin) {
      cos = Buffer<float>(rows * length * pairs);
      sin = Buffer<float>(rows * length * pairs);
      for (int64_t b = 0; b < rows; ++b) {
        for (int64_t i = 0; i < length; ++i) {
          const int64_t at = (b * length + i) * pairs;
          table.write(query ? p.positions.query(b, i) : p.positions.key(b, i), cos.get() + at,
                      sin.get() + at);
        }
      }
    };
    fill(p.positions.q_rows, p.queries, true, rotary.q_cos, rotary.q_sin);
    fill(p.positions.k_rows, p.keys, false, rotary.k_cos, rotary.k_sin);
    rotary_.push_back(std::move(rotary));
  }
}

void Plan::find_peaks() {
  constexpr float kUnderflow = 126.0f;
  if (!p.positions.consecutive || !row_tables.empty() || !columns.empty() ||
      key_bias.size() > 0 || p.visible.floating_mask()) {
    return;
  }
  for (const BiasPlan& bias : biases) {
    if (bias.ramp) return;
    for (int64_t h = 0; h < p.heads; ++h) {
      const float* row = bias.cells.get() + h * bias.row_size();
      const auto [low, high] = std::minmax_element(row, row + bias.row_size());
      skips_tiles = skips_tiles || *high - *low > kUnderflow;
    }
  }
  for (BiasPlan& bias : biases) {
    if (!skips_tiles) return;
    bias.peaks = Buffer<float>(p.heads * bias.peaks_per_head());
    for (int64_t h = 0; h < p.heads; ++h) {
      const float* row = bias.cells.get() + h * bias.row_size();
      for (int64_t n = 0; n < bias.peaks_per_head(); ++n) {
        float& peak = bias.peaks[h * bias.peaks_per_head() + n];
        peak = -HUGE_VALF;
        for (int64_t c = n * kTile; c < std::min((n + 1) * kTile, bias.row_size()); ++c) {
          peak = std::isnan(row[c]) ? HUGE_VALF : std::max(peak, row[c]);
        }
      }
    }
  }
}

void Plan::expand_bias(const DistanceBias& term) {
  BiasPlan plan;
  const bool sloped = term.slopes.view.given();
  const int64_t span = range.second - range.first + 1;
  plan.ramp = sloped && span > kExpandFactor * (p.queries + p.keys) + kExpandFloor;
  if (term.map) plan.window = Window(*term.map, range);
  if (sloped && !plan.ramp) {
    Window wide;
    wide.lo = range.first;
    wide.width = span;
    wide.classes.assign(static_cast<size_t>(span), ClassMap::kNone);
    if (term.map) {
      for (int64_t c = 0; c < span; ++c)
        wide.classes[static_cast<size_t>(c)] = (*term.map)(wide.lo + c);
      wide.left = wide.classes.front();
      wide.right = wide.classes.back();
    }
    plan.window = std::move(wide);
  }
  if (term.map || !plan.ramp) {
    const TensorView &table = term.table.view, &slopes = term.slopes.view;
    const auto value = [&](int64_t h, int64_t distance, int64_t row) {
      double sum = row == ClassMap::kNone ? 0.0 : table.at({h, row}) * term.table.multiplier;
      if (sloped && !plan.ramp) {
        sum += slopes.at({distance < 0 ? 0 : 1, h}) * term.slopes.multiplier *
               static_cast<double>(distance);
      }
      return static_cast<float>(sum * kLog2e);
    };
    const Window& w = plan.window;
    plan.cells = Buffer<float>(p.heads * plan.row_size());
    for (int64_t h = 0; h < p.heads; ++h) {
      float* row = plan.cells.get() + h * plan.row_size();
      std::fill_n(row, kPad, value(h, w.lo, w.left));
      for (int64_t c = 0; c < w.width; ++c) {
        row[kPad + c] = value(h, w.lo + c, w.classes[static_cast<size_t>(c)]);
      }
      std::fill_n(row + kPad + w.width, kPad, value(h, w.lo + w.width - 1, w.right));
    }
  }
  biases.push_back(std::move(plan));
}

TablePlan Plan::expand_table(Window window, const TermData& table, bool rows, bool transposed) {
  TablePlan plan;
  const TensorView& view = table.view;
  const bool per_head = view.rank == 3;
  plan.window = std::move(window);
  plan.heads = per_head ? view.shape[0] : 1;
  plan.rank = view.shape[per_head ? 2 : 1];
  plan.padded_rank = round_up(plan.rank, kLanes);
  const int64_t width = plan.window.width, panel_size = plan.rank * kTile;
  if (rows) plan.rows = Buffer<float>(plan.heads * width * plan.padded_rank);
  if (transposed) plan.transposed = Buffer<float>(plan.heads * plan.panels() * panel_size);
  std::fill_n(plan.transposed.get(), plan.transposed.size(), 0.0f);
  std::vector<float> row(static_cast<size_t>(plan.padded_rank), 0.0f);
  for (int64_t h = 0; h < plan.heads; ++h) {
    for (int64_t c = 0; c < width; ++c) {
      const int64_t m = plan.window.classes[static_cast<size_t>(c)];
      for (int64_t x = 0; x < plan.rank; ++x) {
        const int64_t at = m == ClassMap::kNone ? 0
                           : per_head           ? view.offset({h, m, x})
                                                : view.offset({m, x});
        row[static_cast<size_t>(x)] =
            m == ClassMap::kNone ? 0.0f : static_cast<float>(view.load(at) * table.multiplier);
      }
      plan.finite = plan.finite && all_finite(row.data(), plan.rank);
      if (rows) {
        std::copy(row.begin(), row.end(), plan.rows.get() + (h * width + c) * plan.padded_rank);
      }
      if (transposed) {
        float* panel =
            plan.transposed.get() + (h * plan.panels() + c / kTile) * panel_size + c % kTile;
        for (int64_t x = 0; x < plan.rank; ++x) panel[x * kTile] = row[static_cast<size_t>(x)];
      }
    }
  }
  return plan;
}

int64_t Plan::bytes() const noexcept {
  int64_t floats = key_bias.size();
  for (const BiasPlan& bias : biases) {
    floats += bias.cells.size() + bias.peaks.size() + 2 * bias.window.width;
  }
  const auto add_table = [&](const TablePlan& t) {
    floats += t.rows.size() + t.transposed.size() + 2 * t.window.width;
  };
  for (const TablePlan& t : row_tables) add_table(t);
  for (const TablePlan& t : value_tables) add_table(t);
  for (const ColumnPlan& c : columns) {
    add_table(c.table);
    floats += static_cast<int64_t>(c.runs.index.size() + 2 * c.runs.classes.size());
  }
  for (const Rotary& r : rotary_) {
    floats += r.q_cos.size() + r.q_sin.size() + r.k_cos.size() + r.k_sin.size();
  }
  return 4 * floats;
}

void Plan::load_row(const TensorView& view, int64_t b, int64_t h, int64_t i, int64_t n,
                    int64_t padded, float* row) {
  const int64_t at = view.offset({b, h, i, 0}), stride = view.strides[3];
  const auto* bytes = static_cast<const unsigned char*>(view.data);
  if (view.dtype == DType::kFloat32 && stride == 1) {
    std::memcpy(row, bytes + at * 4, static_cast<size_t>(n) * 4);
  } else if (view.dtype == DType::kFloat32) {
    for (int64_t d = 0; d < n; ++d) std::memcpy(row + d, bytes + (at + d * stride) * 4, 4);
  } else if (view.dtype == DType::kBFloat16) {
    for (int64_t d = 0; d < n; ++d) {
      uint16_t bits;
      std::memcpy(&bits, bytes + (at + d * stride) * 2, 2);
      row[d] = widen_bfloat16(bits);
    }
  } else {
    for (int64_t d = 0; d < n; ++d) row[d] = static_cast<float>(view.load(at + d * stride));
  }
  std::fill(row + n, row + padded, 0.0f);
}

void Plan::store_row(const TensorView& view, int64_t b, int64_t h, int64_t i, int64_t n,
                     const float* row) {
  const int64_t at = view.offset({b, h, i, 0}), stride = view.strides[3];
  if (view.dtype == DType::kFloat32) {
    auto* bytes = static_cast<unsigned char*>(view.data);
    if (stride == 1) {
      std::memcpy(bytes + at * 4, row, static_cast<size_t>(n) * 4);
    } else {
      for (int64_t d = 0; d < n; ++d) std::memcpy(bytes + (at + d * stride) * 4, row + d, 4);
    }
    return;
  }
  for (int64_t d = 0; d < n; ++d) view.store(at + d * stride, static_cast<double>(row[d]));
}

void Plan::rotate(bool query, int64_t b, int64_t i, float* row, float direction) const {
  for (const Rotary& rotary : rotary_) {
    const Rotation& r = *rotary.rotation;
    const int64_t pairs = r.dims / 2;
    const int64_t rows = query ? p.positions.q_rows : p.positions.k_rows;
    const int64_t at = ((rows == 1 ? 0 : b) * (query ? p.queries : p.keys) + i) * pairs;
    const float* cos = (query ? rotary.q_cos : rotary.k_cos).get() + at;
    const float* sin = (query ? rotary.q_sin : rotary.k_sin).get() + at;
    float* x = row + r.start;
    const int64_t step = r.layout == PairLayout::kHalf ? 1 : 2;
    float* y = x + (r.layout == PairLayout::kHalf ? pairs : 1);
    for (int64_t n = 0; n < pairs; ++n) {
      const float first = x[n * step], second = y[n * step], s = direction * sin[n];
      x[n * step] = first * cos[n] - second * s;
      y[n * step] = second * cos[n] + first * s;
    }
  }
}

KeyTile Plan::pack_tile(int64_t b, int64_t kv_head, int64_t t, float* memory, int64_t* positions,
                        float* row) const {
  KeyTile tile;
  const int64_t first = t * kTile, keys = std::min(kTile, p.keys - first);
  float* kt = memory;
  float* second = kt + D * kTile;  // forward: v [kTile, Dvp]; backward: k [kTile, Dp], then vt
  tile.kt = kt;
  for (int64_t c = 0; c < kTile; ++c) {
    float* k = backward_ ? second + c * Dp : row;
    if (c < keys) {
      load_row(p.key, b, kv_head, first + c, D, Dp, k);
      rotate_key(b, first + c, k);
      tile.k_finite = tile.k_finite && all_finite(k, D);
    } else {
      std::fill_n(k, Dp, 0.0f);
    }
    for (int64_t d = 0; d < D; ++d) kt[d * kTile + c] = k[d];
  }
  float* vt = second + kTile * Dp;
  for (int64_t c = 0; p.value.given() && c < kTile; ++c) {
    float* v = backward_ ? row : second + c * Dvp;
    if (c < keys) {
      load_row(p.value, b, kv_head, first + c, Dv, Dvp, v);
      tile.v_finite = tile.v_finite && all_finite(v, Dv);
    } else {
      std::fill_n(v, Dvp, 0.0f);
    }
    if (backward_) {
      for (int64_t d = 0; d < Dv; ++d) vt[d * kTile + c] = v[d];
    }
  }
  if (backward_) {
    tile.k = second;
    tile.vt = vt;
  } else {
    tile.v = second;
  }
  pack_factors(b, kv_head, t, tile, memory);
  tile.first_position = p.positions.key(b, first);
  if (!p.positions.consecutive) {
    for (int64_t c = 0; c < kTile; ++c) {
      positions[c] = c < keys ? p.positions.key(b, first + c) : tile.first_position + c;
      tile.run = tile.run && positions[c] == tile.first_position + c;
    }
    tile.positions = positions;
  }
  return tile;
}

void Plan::pack_factors(int64_t b, int64_t kv_head, int64_t t, KeyTile& tile,
                        float* memory) const {
  tile.memory = memory;
  const int64_t first = t * kTile, keys = std::min(kTile, p.keys - first);
  for (size_t n = 0; n < columns.size(); ++n) {
    const ColumnPlan& column = columns[n];
    const TermData& factor = p.terms.column_tables[n].factor;
    const bool own = factor.view.given();
    const auto scale =
        static_cast<float>(column.table.scale * (own ? factor.multiplier : 1.0) * kLog2e);
    const int64_t rank = column.table.padded_rank;
    float* rows = memory + column.factors_at;
    std::fill_n(rows, kTile * rank, 0.0f);
    for (int64_t c = 0; c < keys; ++c) {
      float* row = rows + c * rank;
      load_row(own ? factor.view : p.key, b, kv_head, first + c, column.table.rank, rank, row);
      for (int64_t d = 0; d < rank; ++d) row[d] *= scale;
    }
    tile.factors_finite = tile.factors_finite && all_finite(rows, kTile * rank);
  }
}

void Plan::add_row(Block& block, int64_t h, int64_t i) const {
  const int row = block.rows++;
  block.head[row] = h;
  block.index[row] = i;
  block.position[row] = p.positions.query(block.batch, i);
  const auto [lo, hi] = p.visible.interval(block.batch, i);
  block.lo[row] = std::max<int64_t>(lo, 0);
  block.hi[row] = std::min(hi, p.keys);
}

std::pair<int64_t, int64_t> Plan::tile_range(const Block& block) const {
  int64_t lo = p.keys, hi = 0;
  for (int row = 0; row < block.rows; ++row) {
    if (block.lo[row] >= block.hi[row]) continue;
    lo = std::min(lo, block.lo[row]);
    hi = std::max(hi, block.hi[row]);
  }
  if (lo >= hi) return {0, 0};
  return {lo / kTile, (hi + kTile - 1) / kTile};
}

void table_products(const TileKernels& kernels, const TablePlan& table, int64_t head, int rows,
                    const float* a, int64_t lda, int64_t first, int64_t width, float* cells,
                    int64_t stride) {
  const float* panels =
      table.transposed.get() + (table.heads == 1 ? 0 : head) * table.panels() * table.rank * kTile;
  alignas(64) float product[kRows * kTile];
  for (int64_t panel = first / kTile; panel * kTile < first + width; ++panel) {
    kernels.gemm(rows, kTile, table.rank, a, lda, 1, panels + panel * table.rank * kTile, kTile,
                 product, kTile, false);
    const int64_t from = std::max(first, panel * kTile);
    const int64_t to = std::min(first + width, (panel + 1) * kTile);
    for (int r = 0; r < rows; ++r) {
      std::copy(product + r * kTile + (from - panel * kTile),
                product + r * kTile + (to - panel * kTile),
                cells + r * stride + kPad + (from - first));
    }
  }
  for (int r = 0; r < rows; ++r) {
    float* row = cells + r * stride;
    std::fill_n(row, kPad, table.window.left == ClassMap::kNone ? 0.0f : row[kPad]);
    std::fill_n(row + kPad + width, kPad,
                table.window.right == ClassMap::kNone ? 0.0f : row[kPad + width - 1]);
  }
}

void fold_pads(const TablePlan& table, int rows, int64_t width, float* cells, int64_t stride) {
  for (int r = 0; r < rows; ++r) {
    float* row = cells + r * stride;
    float left = 0.0f, right = 0.0f;
    for (int64_t c = 0; c < kPad; ++c) {
      left += row[c];
      right += row[kPad + width + c];
    }
    if (table.window.left != ClassMap::kNone) row[kPad] += left;
    if (table.window.right != ClassMap::kNone) row[kPad + width - 1] += right;
  }
}

void skip_zero_product(int64_t M, int64_t N, int64_t K, const float* a, int64_t row_stride,
                       int64_t k_stride, const float* b, int64_t ldb, float* c, int64_t ldc) {
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t k = 0; k < K; ++k) {
      const float factor = a[m * row_stride + k * k_stride];
      if (factor == 0.0f) continue;
      for (int64_t n = 0; n < N; ++n) c[m * ldc + n] += factor * b[k * ldb + n];
    }
  }
}

}  // namespace relpos
