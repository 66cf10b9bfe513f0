// Random problems for the kernels' tests: sizes, positions, visibility and lists of terms by seed.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "testing/random_problem.h"

namespace relpos::random_terms {

inline std::vector<int64_t> table_shape(Rng& rng, const Problem& p, const ClassMap& map,
                                        int64_t columns) {
  const int64_t rows = std::max<int64_t>(map.classes(), 1) + draw(rng, 0, 2);
  if (chance(rng, 0.5)) return {p.heads, rows, columns};
  return {rows, columns};
}

// Two coordinates of each token: scattered, or the rows and columns of an image.
inline std::shared_ptr<Coordinates> draw_coordinates(Rng& rng, const Problem& p) {
  auto at = std::make_shared<Coordinates>();
  at->axes = 2;
  at->queries = p.queries;
  at->keys = p.keys;
  at->q_rows = chance(rng, 0.5) ? 1 : p.batch;
  at->k_rows = chance(rng, 0.5) ? 1 : p.batch;
  const int64_t width = one_of(rng, {0, 0, 5, 16, 64, 128});  // 0: scattered
  const auto fill = [&](std::vector<int64_t>& values, int64_t rows, int64_t length) {
    for (int64_t n = 0; n < 2 * rows * length; ++n) {
      const int64_t token = n % std::max<int64_t>(length, 1);
      const bool by_row = n < rows * length;
      values.push_back(width == 0 ? draw(rng, -99, 99) : (by_row ? token / width : token % width));
    }
  };
  fill(at->q, at->q_rows, p.queries);
  fill(at->k, at->k_rows, p.keys);
  return at;
}

// Classes of pairs, mostly one of them in a third of the cases; bytes may lie apart, and one class may be
// hidden, which need not be one of the table.
inline PairClasses draw_classes(Rng& rng, Case& c, int64_t classes) {
  const Problem& p = c.p;
  PairClasses pairs;
  const int64_t apart = chance(rng, 0.2) ? 2 : 1;
  std::vector<int64_t> shape{p.queries, p.keys * apart};
  if (chance(rng, 0.5)) shape.insert(shape.begin(), p.batch);
  const TensorView& bytes = c.storage.emplace_back(DType::kUInt8, shape).view();
  if (chance(rng, 0.3)) pairs.hidden = static_cast<int>(draw(rng, 0, kMostPairClasses - 1));
  const double same = chance(rng, 0.3) ? 0.9 : 0.0;
  for (int64_t n = 0; n < bytes.numel(); ++n) {
    const bool hides = pairs.hidden >= 0 && chance(rng, 0.2);
    const int64_t drawn = chance(rng, same) ? 0 : draw(rng, 0, classes - 1);
    bytes.store(n, static_cast<double>(hides ? pairs.hidden : drawn));
  }
  pairs.view = bytes;
  pairs.view.shape[static_cast<size_t>(bytes.rank) - 1] = p.keys;
  pairs.view.strides[static_cast<size_t>(bytes.rank) - 1] = apart;
  if (pairs.hidden >= 0) c.p.visible.classes.push_back(pairs);
  return pairs;
}

inline void draw_pairs(Rng& rng, Case& c) {
  const Problem& p = c.p;
  for (int64_t n = chance(rng, 0.3) ? draw(rng, 1, 2) : 0; n > 0; --n) {
    const int64_t classes = one_of(rng, {1, 7, 32, 33, 64, 100, 256});
    const TermData table = c.term(rng, {chance(rng, 0.3) ? 1 : p.heads, classes});
    c.p.terms.pair_biases.push_back({table, draw_classes(rng, c, classes)});
  }
  for (int64_t n = chance(rng, 0.3) ? draw(rng, 1, 2) : 0; n > 0; --n) {
    const int64_t classes = one_of(rng, {1, 5, 16, 40, 65, 256});
    const int64_t rank = chance(rng, 0.5) ? p.head_dim : draw(rng, 1, 18);
    PairRows rows;
    rows.table = c.term(rng, chance(rng, 0.5) ? std::vector<int64_t>{p.heads, classes, rank}
                                              : std::vector<int64_t>{classes, rank});
    if (rank != p.head_dim || chance(rng, 0.3)) {
      rows.factor = c.term(rng, {p.batch, p.heads, p.queries, rank});
    }
    if (chance(rng, 0.4)) rows.scale = 0.7;
    rows.classes = draw_classes(rng, c, classes);
    c.p.terms.pair_rows.push_back(rows);
  }
}

// Pairs turn by coordinates.
inline void add_axes(Rng& rng, const Problem& p, Rotation& rotation) {
  Rotation::ByCoordinates by;
  by.frequency = rotation.by_position().frequency;
  for (size_t n = 0; n < by.frequency.size(); ++n) {
    by.axis.push_back(static_cast<int>(draw(rng, 0, 1)));
  }
  by.coordinates = draw_coordinates(rng, p);
  rotation.angles = std::move(by);
}

// How many times as long as usual the queries and the keys of a case are, and as large its batch.
struct Longer {
  int64_t queries = 1, keys = 1, batch = 1;
};

inline void draw_tensors(Rng& rng, Case& c, Longer longer) {
  Problem& p = c.p;
  const int64_t batch = draw(rng, 1, 2) * longer.batch, kv_heads = draw(rng, 1, 2);
  const int64_t heads = kv_heads * draw(rng, 1, 2);
  const std::vector<int64_t> lengths{1, 2, 5, 17, 63, 64, 65, 97, 130, 200};
  const int64_t queries = one_of(rng, lengths);
  const int64_t keys = chance(rng, 0.5) ? queries : one_of(rng, lengths);
  set_sizes(p, batch, heads, kv_heads, queries * longer.queries, keys * longer.keys);
  const std::vector<int64_t> sizes{1, 2, 3, 8, 15, 16, 17, 32, 65};
  p.head_dim = one_of(rng, sizes);
  p.value_dim = chance(rng, 0.5) ? p.head_dim : one_of(rng, sizes);
  p.scale = chance(rng, 0.5) ? 1.0 : 0.3;
  c.draw_inputs(rng);
}

// Returns the widest gap between two positions.
inline int64_t draw_positions(Rng& rng, Problem& p) {
  TokenPositions& at = p.positions;
  at.consecutive = chance(rng, 0.6);
  at.q_rows = chance(rng, 0.5) ? 1 : p.batch;
  at.k_rows = chance(rng, 0.5) ? 1 : p.batch;
  const int64_t far = chance(rng, 0.2) ? int64_t{1} << 30 : 0;
  const int64_t gap = chance(rng, 0.3) ? 9000 : 40;  // 9000: too wide a span to expand slopes
  const auto fill = [&](std::vector<int64_t>& values, int64_t rows, int64_t length) {
    values.clear();
    for (int64_t b = 0; b < rows; ++b) {
      int64_t position = draw(rng, -30, 30) + far;
      for (int64_t i = 0; i < (at.consecutive ? 1 : length); ++i) {
        values.push_back(position);
        position += chance(rng, 0.95) ? 1 : draw(rng, 0, gap);
      }
    }
  };
  fill(at.q, at.q_rows, p.queries);
  fill(at.k, at.k_rows, p.keys);
  return gap;
}

inline void draw_visible(Rng& rng, Case& c) {
  Problem& p = c.p;
  Visibility& visible = p.visible;
  if (chance(rng, 0.6)) {
    visible.rows = std::max(p.positions.q_rows, p.positions.k_rows);
    const int64_t shift = draw(rng, -5, p.keys);
    for (int64_t b = 0; b < visible.rows; ++b) {
      for (int64_t i = 0; i < p.queries; ++i) {
        const int64_t hi = std::clamp<int64_t>(i + shift, 0, p.keys);
        const int64_t lo = chance(rng, 0.5) ? 0 : std::clamp<int64_t>(hi - 70, 0, hi);
        visible.span.emplace_back(lo, hi);
      }
    }
  }
  if (chance(rng, 0.3)) {
    for (int64_t n = 0; n < p.batch * p.tiles(); ++n) visible.key_bits.push_back(rng() | rng());
  }
  if (chance(rng, 0.3)) {
    const std::vector<int64_t> shape{chance(rng, 0.5) ? 1 : p.batch, chance(rng, 0.5) ? 1 : p.heads,
                                     p.queries, p.keys};
    c.mask = float_tensor(rng, shape);
    for (int64_t n = 0; n < c.mask.view().numel(); ++n) {
      if (chance(rng, 0.2)) c.mask.data<float>()[n] = -HUGE_VALF;
    }
    visible.mask = c.mask.view();
    visible.mask.shape = {p.batch, p.heads, p.queries, p.keys};
    for (size_t axis = 0; axis < 2; ++axis) {
      if (shape[axis] == 1) visible.mask.strides[axis] = 0;
    }
  }
}

// A mask by tiles: some that nobody sees, some that all see, some in part; blocks of any size.
inline void draw_tiles(Rng& rng, Case& c) {
  Problem& p = c.p;
  const int64_t rows = one_of(rng, {1, 5, 96, 96, 96, 200});
  const int64_t blocks = (p.queries + rows - 1) / rows;
  const int64_t batch = chance(rng, 0.5) ? 1 : p.batch, heads = chance(rng, 0.5) ? 1 : p.heads;
  std::vector<int64_t> ranges, entries, words;
  for (int64_t block = 0; block < batch * heads * blocks; ++block) {
    ranges.push_back(std::ssize(entries) / 2);
    for (int64_t t = 0; t < p.tiles(); ++t) {
      const int64_t kind = draw(rng, 0, 3);
      if (kind == 0) continue;
      entries.push_back(t);
      entries.push_back(kind == 1 ? -1 : std::ssize(words) / rows);
      for (int64_t row = 0; kind != 1 && row < rows; ++row) {
        words.push_back(static_cast<int64_t>(chance(rng, 0.2) ? 0 : rng() | rng()));
      }
    }
    ranges.push_back(std::ssize(entries) / 2);
  }
  const auto keep = [&](const std::vector<int64_t>& numbers, const std::vector<int64_t>& shape) {
    c.storage.emplace_back(DType::kInt64, shape);
    std::copy(numbers.begin(), numbers.end(), c.storage.back().data<int64_t>());
    return c.storage.back().view();
  };
  TensorView of_blocks = keep(ranges, {batch, heads, blocks, 2});
  of_blocks.shape[0] = p.batch;
  of_blocks.shape[1] = p.heads;
  if (batch == 1) of_blocks.strides[0] = 0;
  if (heads == 1) of_blocks.strides[1] = 0;
  p.visible.tiles = SeenTiles(of_blocks, keep(entries, {std::ssize(entries) / 2, 2}),
                              keep(words, {std::ssize(words) / rows, rows}));
}

inline void draw_rotation(Rng& rng, Problem& p) {
  if (p.head_dim >= 2 && chance(rng, 0.4)) {
    Rotation r;
    r.dims = p.head_dim / 2 * 2;
    if (r.dims > 4) r.dims -= 2 * draw(rng, 0, 1);
    r.start = draw(rng, 0, p.head_dim - r.dims);
    r.layout = chance(rng, 0.5) ? PairLayout::kHalf : PairLayout::kInterleaved;
    for (int64_t n = 0; n < r.dims / 2; ++n)
      r.by_position().frequency.push_back(std::pow(100.0, -0.1 * static_cast<double>(n)));
    r.magnitude = chance(rng, 0.3) ? 1.1 : 1.0;
    p.terms.rotations.push_back(r);
  }
}

// Pairs turn by coordinates times frequencies that are trained, those of each key head its own.
inline void add_head_frequency(Rng& rng, Case& c, Rotation& rotation) {
  Rotation::ByHead by;
  by.coordinates = draw_coordinates(rng, c.p);
  const int64_t heads = chance(rng, 0.3) ? 1 : c.p.kv_heads;
  by.frequency = c.term(rng, {2, heads, rotation.dims / 2});
  by.frequency.multiplier = chance(rng, 0.3) ? 0x1p-7 : 0x1p-6;
  rotation.angles = std::move(by);
}

// Cosines and sines that are given and trained; heads may share them.
inline void add_tables(Rng& rng, Case& c, Rotation& rotation) {
  const Problem& p = c.p;
  Rotation::Tables tables;
  const bool shared = chance(rng, 0.5);
  const auto side = [&](int64_t length, TermData& cos, TermData& sin) {
    for (TermData* data : {&cos, &sin}) {
      *data = c.term(rng, {p.batch, shared ? 1 : p.kv_heads, length, rotation.dims / 2});
      data->multiplier = 1.0;
    }
    for (int64_t n = 0; n < cos.view.numel(); ++n) {
      const double angle = cos.view.load(n);
      cos.view.store(n, std::cos(angle));
      sin.view.store(n, std::sin(angle));
    }
    for (TermData* data : {&cos, &sin}) {
      if (shared) data->view.strides[1] = 0;
      data->view.shape[1] = p.kv_heads;
    }
  };
  side(p.queries, tables.q_cos, tables.q_sin);
  side(p.keys, tables.k_cos, tables.k_sin);
  rotation.angles = std::move(tables);
}

// Decay, axes, frequencies of heads or tables for a rotation that was drawn.
inline void draw_turns(Rng& rng, Case& c) {
  Problem& p = c.p;
  if (p.terms.rotations.empty()) return;
  Rotation& rotation = p.terms.rotations[0];
  if (chance(rng, 0.3)) {
    rotation.by_position().log_decay.assign(static_cast<size_t>(rotation.dims / 2), 1e-3);
    for (int64_t& x : p.positions.q) x %= 1000;
    for (int64_t& x : p.positions.k) x %= 1000;
  } else if (chance(rng, 0.4)) {
    add_head_frequency(rng, c, rotation);
  } else if (chance(rng, 0.4)) {
    add_tables(rng, c, rotation);
  } else if (chance(rng, 0.6)) {
    add_axes(rng, p, rotation);
  }
}

inline void draw_biases(Rng& rng, Case& c, int64_t gap) {
  const Problem& p = c.p;
  for (int64_t n = draw(rng, 0, 2); n > 0; --n) {
    DistanceBias bias;
    const bool sloped = chance(rng, 0.5);
    if (!sloped || chance(rng, 0.3)) {
      bias.map = random_map(rng);
      bias.table = c.term(rng, {p.heads, std::max<int64_t>(1, bias.map->classes())});
    }
    if (sloped) {
      bias.slopes = c.term(rng, {2, p.heads});
      bias.slopes.multiplier = gap > 40 ? 1e-3 : 1e-2;
    }
    c.p.terms.biases.push_back(bias);
  }
}

inline void draw_tables(Rng& rng, Case& c) {
  const Problem& p = c.p;
  Terms& t = c.p.terms;
  for (int64_t n = draw(rng, 0, 2); n > 0; --n) {
    const ClassMap map = random_map(rng);
    const int64_t rank = chance(rng, 0.5) ? p.head_dim : draw(rng, 1, 18);
    RowTable& rows = add_term(t.row_tables, map, c.term(rng, table_shape(rng, p, map, rank)));
    if (rank != p.head_dim || chance(rng, 0.3)) {
      rows.factor = c.term(rng, {p.batch, p.heads, p.queries, rank});
    }
    if (chance(rng, 0.4)) rows.added = c.term(rng, {p.heads, rank});
    if (chance(rng, 0.4)) rows.scale = 0.7;
  }
  for (int64_t n = draw(rng, 0, 2); n > 0; --n) {
    const ClassMap map = random_map(rng);
    ColumnTable& column =
        add_term(t.column_tables, map, c.term(rng, table_shape(rng, p, map, p.head_dim)));
    if (chance(rng, 0.4)) column.factor = c.term(rng, {p.batch, p.kv_heads, p.keys, p.head_dim});
  }
}

inline Case random_case(uint64_t seed, Longer longer = {}) {
  Rng rng(seed);
  Case c;
  Problem& p = c.p;
  draw_tensors(rng, c, longer);
  const int64_t gap = draw_positions(rng, p);
  draw_visible(rng, c);
  if (chance(rng, 0.3)) p.dropout = Dropout(0.25, rng());
  draw_rotation(rng, p);
  draw_biases(rng, c, gap);
  draw_tables(rng, c);
  draw_turns(rng, c);
  Terms& t = p.terms;
  if (chance(rng, 0.3)) {
    t.key_biases.push_back({chance(rng, 0.5) ? c.term(rng, {p.heads, p.keys})
                                             : c.term(rng, {p.batch, p.heads, p.keys})});
  }
  for (int64_t n = draw(rng, 0, 2); n > 0; --n) {
    const ClassMap map = random_map(rng);
    add_term(t.value_tables, map, c.term(rng, table_shape(rng, p, map, p.value_dim)));
  }
  if (chance(rng, 0.3)) {
    for (int64_t n = draw(rng, 1, 2); n > 0; --n) {
      t.query_added.push_back(c.term(rng, {p.heads, p.head_dim}));
    }
  }
  for (int64_t n = chance(rng, 0.3) ? draw(rng, 1, 2) : 0; n > 0; --n) {
    t.sinks.push_back(chance(rng, 0.5) ? c.term(rng, {p.heads})
                                       : c.term(rng, {p.batch, p.heads, p.queries}));
  }
  const auto look = [&](auto& term) {
    if (!chance(rng, 0.3)) return;
    term.coordinates = draw_coordinates(rng, p);
    term.axis = static_cast<int>(draw(rng, 0, 1));
  };
  for (DistanceBias& term : t.biases) {
    if (!term.slopes.view.given()) look(term);
  }
  for (RowTable& term : t.row_tables) look(term);
  draw_pairs(rng, c);
  if (chance(rng, 0.2)) p.softcap = chance(rng, 0.5) ? 2.0 : 30.0;
  Rng of_tiles(~seed);
  if (chance(of_tiles, 0.3)) draw_tiles(of_tiles, c);
  return c;
}

}  // namespace relpos::random_terms
