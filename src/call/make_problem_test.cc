// What calls of C++ refuse: tensors of the wrong dtype or shape, and options that do not go together. Python's
// front end has checks of its own before many of these.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "relpos/relpos.h"
#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::expect_error;

constexpr int64_t kBatch = 2, kHeads = 2, kQueries = 3, kKeys = 5, kDim = 8;

// A small call; a test changes one thing about it.
struct Call {
  Tensor query{DType::kFloat32, {kBatch, kHeads, kQueries, kDim}},
      key{DType::kFloat32, {kBatch, kHeads, kKeys, kDim}}, value = key, out = query;
  TensorView q = query.view(), k = key.view(), v = value.view();
  Position position;
  Options options;
  std::vector<Tensor> memory;

  explicit Call(const char* text = "rope(head_dim=8, layout=half)")
      : position(parse_position(text)) {
    options.q_offset = 0;
  }
  TensorView made(DType dtype, std::vector<int64_t> shape) {
    return memory.emplace_back(dtype, std::move(shape)).view();
  }
  void run() { attention(q, k, v, position, options, out.view()); }
};

using Change = std::function<void(Call&)>;

// Each change of a call that runs is refused with these words.
void expect_refusals(std::span<const std::pair<Change, const char*>> rows) {
  for (const auto& [change, words] : rows) {
    Call call;
    change(call);
    expect_error([&] { call.run(); }, words);
  }
}

TEST(CallRefusals, OfDtypes) {
  const std::pair<Change, const char*> rows[] = {
      {[](Call& c) { c.q = c.made(DType::kInt64, {kBatch, kHeads, kQueries, kDim}); },
       "query: expected float32, float64, bfloat16 or float16, got int64"},
      {[](Call& c) { c.k = c.made(DType::kFloat64, {kBatch, kHeads, kKeys, kDim}); },
       "key: expected the dtype of query, float32, got float64"},
      {[](Call& c) { c.options.attn_mask = c.made(DType::kInt64, {kQueries, kKeys}); },
       "attn_mask: expected bool (True = attend) or a floating dtype, got int64"},
      {[](Call& c) { c.options.key_padding_mask = c.made(DType::kUInt8, {kBatch, kKeys}); },
       "key_padding_mask: expected bool, got uint8"},
      {[](Call& c) {
         c.options.q_offset.reset();
         c.options.q_positions = c.made(DType::kInt32, {kQueries});
         c.options.k_positions = c.made(DType::kInt32, {kKeys});
       },
       "positions: expected int64, got int32"},
      {[](Call& c) {
         c.options.key_lo = c.made(DType::kFloat32, {kQueries});
         c.options.key_hi = c.made(DType::kFloat32, {kQueries});
       },
       "key_range lo: expected int64, got float32"},
      {[](Call& c) { c.options.q_offset = Offset(c.made(DType::kInt32, {kBatch})); },
       "q_offset: expected int64, got int32"},
      {[](Call& c) {
         c.options.tile_mask.ranges = c.made(DType::kInt32, {1, 1, 1, 2});
         c.options.tile_mask.entries = c.made(DType::kInt64, {1, 2});
         c.options.tile_mask.words = c.made(DType::kInt64, {1, kQueries});
       },
       "expected int64 ranges of a TileMask, got int32"},
  };
  expect_refusals(rows);
}

TEST(CallRefusals, OfShapesAndOptions) {
  const std::pair<Change, const char*> rows[] = {
      {[](Call& c) { c.q = c.made(DType::kFloat32, {kHeads, kQueries, kDim}); }, "query: expected"},
      {[](Call& c) { c.k = c.made(DType::kFloat32, {kBatch, 1, kKeys, kDim}); },
       "key: has 1 heads"},
      {[](Call& c) { c.options.key_padding_mask = c.made(DType::kBool, {kBatch, kQueries}); },
       "key_padding_mask: expected"},
      {[](Call& c) { c.options.q_positions = c.made(DType::kInt64, {kQueries}); }, "k_positions"},
      {[](Call& c) { c.options.q_offset = Offset(c.made(DType::kInt64, {kBatch + 1})); },
       "q_offset: expected"},
      {[](Call& c) { c.options.window = {-2, 0}; }, "window: expected"},
      {[](Call& c) { c.options.scale = HUGE_VAL; }, "scale: expected"},
      {[](Call& c) { c.options.softcap = 1e-31; }, "softcap: expected"},
      {[](Call& c) { c.options.first_head = 1; }, "first_head: expected"},
      {[](Call& c) { c.options.all_heads = INT64_MIN; }, "first_head: expected the 2 heads"},
      {[](Call& c) {
         c.options.tile_mask.ranges = c.made(DType::kInt64, {1, 1, 1, 2});
         c.options.tile_mask.ranges.store(1, 2);
         c.options.tile_mask.entries = c.made(DType::kInt64, {2, 2});  // tile 0, twice
         c.options.tile_mask.words = c.made(DType::kInt64, {1, kQueries});
         c.options.tile_mask.queries = kQueries;
         c.options.tile_mask.keys = kKeys;
       },
       "tiles of a TileMask that ascend from 0 to 0, got 0 after 0"},
      {[](Call& c) {
         c.position = parse_position("rope_dynamic(head_dim=8, layout=half, factor=2)");
         c.options.length = 2;
       },
       "length: expected"},
  };
  expect_refusals(rows);
}

// Rotations of a sum may share a head, each in dims of its own.
TEST(CallRefusals, OfRotationsThatOverlap) {
  const std::string first = "rope(head_dim=8, layout=half, rotary_dim=4)";
  Call apart((first + " + rope(head_dim=8, layout=half, rotary_dim=4, start=4)").c_str());
  apart.run();
  Call both((first + " + rope(head_dim=8, layout=half, rotary_dim=4, start=2)").c_str());
  expect_error([&] { both.run(); }, "two rotations turn the same dims of a head");
}

TEST(CallRefusals, OfDtypesOfDenseForms) {
  const Position rope = parse_position("rope(head_dim=8, layout=half)");
  Position t5 = parse_position("t5(heads=2)");
  Call call;
  for (const ParameterSpec& spec : t5.parts[0].specs()) {
    t5.parts[0].parameters.push_back(call.made(DType::kFloat32, spec.shape));
  }
  const TensorView table = call.made(DType::kFloat32, {kQueries, kDim}),
                   half = call.made(DType::kFloat16, {kQueries, kDim}),
                   integers = call.made(DType::kInt64, {kQueries, kDim});
  expect_error([&] { rotary_tables(rope.parts[0], kQueries, 0, table, half); },
               "sin: expected float32 or float64, got float16");
  expect_error([&] { rotate(rope.parts[0], integers, 0, {}, false, integers); },
               "x: expected a floating dtype, got int64");
  const TensorView places = call.made(DType::kInt32, {kQueries});
  expect_error([&] { rotate(rope.parts[0], table, 0, places, false, table); },
               "positions: expected int64, got int32");
}

}  // namespace
}  // namespace relpos
