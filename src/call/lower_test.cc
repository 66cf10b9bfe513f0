#include "relpos/lower.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "relpos/error.h"
#include "relpos/scheme.h"

namespace relpos {
namespace {

// Zeros of no memory, as those of tensors elsewhere.
TensorView blank(const std::vector<int64_t>& shape, DType dtype = DType::kFloat32) {
  static double zero = 0.0;
  return TensorView(&zero, dtype, shape, std::vector<int64_t>(shape.size()));
}

Position of_shapes(const std::string& text) {
  Position position = parse_position(text);
  for (Part& part : position.parts) {
    for (const ParameterSpec& spec : part.specs()) {
      part.parameters.push_back(
          blank(spec.shape, spec.integers() ? spec.integer : DType::kFloat32));
    }
  }
  return position;
}

LoweredCall lowered(const std::string& text, const Options& options = {}) {
  const TensorView qkv = blank({1, 2, 8, 4});
  return lower(qkv, qkv, qkv, text.empty() ? Position{} : of_shapes(text), options);
}

// A term's numbers, of the type that its kind has.
template <typename What>
const What& what(const LoweredTerm& term) {
  return std::get<What>(term.what);
}

TEST(Lower, ATableWithItsMapAndWhereItIsRead) {
  const LoweredCall call = lowered("bias_rpe(heads=2, max_distance=3)+t5(heads=2, bias_scale=0.5)");
  EXPECT_EQ(call.scale, 0.5);
  EXPECT_TRUE(call.consecutive);
  ASSERT_EQ(call.terms.size(), 2U);
  const LoweredTerm &near = call.terms[0], &t5 = call.terms[1];
  EXPECT_EQ(near.scheme, "bias_rpe");
  EXPECT_EQ(near.kind, "distance bias");
  const auto& of_near = what<LoweredBias>(near);
  EXPECT_EQ(of_near.map.starts, (std::vector<int64_t>{-1, 0, 1, 2}));
  EXPECT_EQ(of_near.map.classes, (std::vector<int64_t>{4, 3, 2, 1, 0}));
  EXPECT_EQ(of_near.table.parameter, 0);
  EXPECT_EQ(of_near.table.axes, (std::vector<int>{0, 1}));
  EXPECT_EQ(of_near.table.multiplier, 1.0);
  EXPECT_EQ(t5.scheme, "t5");
  const auto& of_t5 = what<LoweredBias>(t5);
  EXPECT_EQ(of_t5.table.parameter, 1);
  EXPECT_EQ(of_t5.table.axes, (std::vector<int>{1, 0}));
  EXPECT_EQ(of_t5.table.multiplier, 0.5);
  EXPECT_EQ(of_t5.map.classes.size(), of_t5.map.starts.size() + 1);
}

TEST(Lower, SinksAreParameters) {
  const LoweredCall call = lowered("t5(heads=2)+attention_sink(heads=2)");
  ASSERT_EQ(call.terms.size(), 2U);
  const LoweredTerm& sink = call.terms[1];
  EXPECT_EQ(sink.scheme, "attention_sink");
  EXPECT_EQ(sink.kind, "sink");
  EXPECT_EQ(what<LoweredNumbers>(sink).parameter, 1);
  EXPECT_EQ(what<LoweredNumbers>(sink).multiplier, 1.0);
}

TEST(Lower, RotationsSayWhatTheyTurnBy) {
  const LoweredCall rope = lowered("rope(head_dim=4, layout=half, base=16)");
  ASSERT_EQ(rope.terms.size(), 1U);
  EXPECT_EQ(rope.terms[0].kind, "rotation");
  EXPECT_FALSE(rope.reads_positions);
  const auto& turn = what<LoweredTurn>(rope.terms[0]);
  EXPECT_EQ(turn.by, "position");
  EXPECT_EQ(turn.start, 0);
  EXPECT_EQ(turn.dims, 4);
  EXPECT_FALSE(turn.interleaved);
  EXPECT_EQ(turn.axes, 1);
  EXPECT_EQ(turn.frequency, (std::vector<double>{1.0, 0.25}));

  const LoweredCall mixed = lowered("t5(heads=2)+rope_mixed(heads=2, head_dim=4, grid=[2, 4])");
  ASSERT_EQ(mixed.terms.size(), 2U);
  EXPECT_TRUE(mixed.reads_positions);
  const auto& by_head = what<LoweredTurn>(mixed.terms[1]);
  EXPECT_EQ(by_head.by, "coordinates");
  EXPECT_TRUE(by_head.interleaved);
  EXPECT_TRUE(by_head.frequency.empty());
  ASSERT_EQ(by_head.numbers.size(), 1U);
  EXPECT_EQ(by_head.numbers[0].parameter, 1);
  EXPECT_EQ(by_head.numbers[0].axes, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(by_head.q, (std::vector<int64_t>{0, 1, 2, 3, 0, 1, 2, 3, 0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(by_head.k, by_head.q);
}

TEST(Lower, RotationsSayWhereInputsLie) {
  Position mrope = parse_position("mrope(head_dim=8, layout=half, section=[1, 1, 2])");
  for (int n = 0; n < 2; ++n) {
    mrope.parts[0].parameters.push_back(blank({1, 3, 8}, DType::kInt64));
  }
  const TensorView qkv = blank({1, 2, 8, 8});
  const LoweredCall call = lower(qkv, qkv, qkv, mrope, {});
  ASSERT_EQ(call.terms.size(), 1U);
  EXPECT_FALSE(call.reads_positions);
  const auto& turn = what<LoweredTurn>(call.terms[0]);
  EXPECT_EQ(turn.by, "inputs");
  EXPECT_EQ(turn.axes, 3);
  ASSERT_EQ(turn.frequency.size(), 12U);
  for (const size_t zero : {1U, 2U, 3U, 4U, 6U, 7U, 8U, 9U}) {
    EXPECT_EQ(turn.frequency[zero], 0.0);
  }
  EXPECT_EQ(turn.frequency[0], 1.0);
  ASSERT_EQ(turn.numbers.size(), 2U);
  EXPECT_EQ(turn.numbers[0].parameter, 0);
  EXPECT_EQ(turn.numbers[1].parameter, 1);

  Position tables = parse_position("rotary_tables(head_dim=8, layout=half, rotary_dim=4)");
  for (int n = 0; n < 4; ++n) tables.parts[0].parameters.push_back(blank({1, 8, 2}));
  const LoweredCall given = lower(qkv, qkv, qkv, tables, {});
  const auto& by_tables = what<LoweredTurn>(given.terms[0]);
  EXPECT_EQ(by_tables.by, "tables");
  ASSERT_EQ(by_tables.numbers.size(), 4U);
  EXPECT_EQ(by_tables.numbers[3].parameter, 3);
}

TEST(Lower, RowsOfATableAndWhatMeetsThem) {
  const LoweredTerm of_shaw = lowered("shaw(head_dim=4, max_distance=2, values=False)").terms.at(0);
  EXPECT_EQ(of_shaw.kind, "row table");
  const auto& shaw = what<LoweredRows>(of_shaw);
  EXPECT_EQ(shaw.map.starts, (std::vector<int64_t>{-1, 0, 1, 2}));
  EXPECT_EQ(shaw.table.parameter, 0);
  EXPECT_EQ(shaw.table.axes, (std::vector<int>{0, 1}));
  EXPECT_EQ(shaw.factor.parameter, -1);
  EXPECT_EQ(shaw.scale, 0.5);
  Position position =
      parse_position("shaw(head_dim=4, max_distance=2, values=False)+wavlm(heads=2)");
  position.parts[0].parameters = {blank({5, 4})};
  position.parts[1].parameters = {blank({320, 2}), blank({1, 2, 8, 1})};
  const TensorView qkv = blank({1, 2, 8, 4});
  const auto gated = what<LoweredRows>(lower(qkv, qkv, qkv, position, {}).terms.at(1));
  EXPECT_EQ(gated.table.parameter, 1);
  EXPECT_EQ(gated.table.axes, (std::vector<int>{1, 0, -1}));
  EXPECT_EQ(gated.factor.parameter, 2);
  EXPECT_EQ(gated.added.parameter, -1);
  EXPECT_EQ(gated.scale, 1.0);
  const auto vits = what<LoweredRows>(lowered("vits(head_dim=4, window_size=2)").terms.at(0));
  EXPECT_EQ(vits.table.chosen, (std::vector<std::pair<int, int64_t>>{{0, 0}}));
  EXPECT_EQ(vits.table.axes, (std::vector<int>{1, 2}));
}

TEST(Lower, SlopesOfEitherSide) {
  const LoweredTerm alibi = lowered("alibi(heads=2)").terms.at(0);
  EXPECT_EQ(alibi.kind, "slopes");
  const auto& same = what<LoweredSlopes>(alibi);
  EXPECT_EQ(same.past.parameter, 0);
  EXPECT_EQ(same.past.multiplier, 1.0);
  EXPECT_EQ(same.future.parameter, 0);
  EXPECT_EQ(same.future.multiplier, -1.0);
  const LoweredTerm past_alone = lowered("alibi(heads=2, symmetric=False)").terms.at(0);
  EXPECT_EQ(what<LoweredSlopes>(past_alone).future.parameter, -1);
  const auto own =
      what<LoweredSlopes>(lowered("t5(heads=2)+alibi(heads=2, sides=own)").terms.at(1));
  EXPECT_EQ(own.past.parameter, 1);
  EXPECT_EQ(own.past.chosen, (std::vector<std::pair<int, int64_t>>{{0, 0}}));
  EXPECT_EQ(own.future.chosen, (std::vector<std::pair<int, int64_t>>{{0, 1}}));
}

TEST(Lower, NumbersOfKeysMayBeSums) {
  Position gates = parse_position("forgetting");
  gates.parts[0].parameters.push_back(blank({1, 2, 8}));
  const TensorView qkv = blank({1, 2, 8, 4});
  const LoweredTerm term = lower(qkv, qkv, qkv, gates, {}).terms.at(0);
  EXPECT_EQ(term.kind, "key bias");
  const auto& bias = what<LoweredKeyBias>(term);
  EXPECT_TRUE(bias.cumulative);
  EXPECT_EQ(bias.values.parameter, 0);
  EXPECT_EQ(bias.values.multiplier, -1.0);
  EXPECT_EQ(bias.values.axes, (std::vector<int>{0, 1, 2}));
}

TEST(Lower, RowsThatMeetKeysAndThatJoinValues) {
  const LoweredCall call = lowered("axial_deeplab(span=3, head_dim=4)");
  ASSERT_EQ(call.terms.size(), 3U);
  const char* kinds[] = {"row table", "column table", "value table"};
  for (size_t n = 0; n < 3; ++n) {
    const LoweredTerm& term = call.terms[n];
    EXPECT_EQ(term.kind, kinds[n]);
    const auto& rows = what<LoweredRows>(term);
    EXPECT_EQ(rows.map.classes, (std::vector<int64_t>{-1, 0, 1, 2, 3, 4, -1}));
    EXPECT_EQ(rows.table.parameter, static_cast<int64_t>(n));
    EXPECT_EQ(rows.scale, n == 2 ? 1.0 : call.scale);
  }
}

TEST(Lower, ProjectedRowsAndAVectorBesideTheQuery) {
  const LoweredCall call = lowered("conformer(heads=2, head_dim=4, width=2)");
  ASSERT_EQ(call.terms.size(), 2U);
  EXPECT_TRUE(call.reads_positions);
  const LoweredTerm& added = call.terms[1];
  EXPECT_EQ(call.terms[0].kind, "row table");
  const auto& rows = what<LoweredRows>(call.terms[0]);
  EXPECT_EQ(rows.table.axes.size(), 2U);
  EXPECT_NE(rows.added.parameter, -1);
  EXPECT_EQ(rows.width, 2);
  ASSERT_EQ(rows.features.size(), 2 * 15U);  // of distances -7 to 7
  EXPECT_EQ(rows.features[2 * 7], 0.0);      // sin 0 and cos 0
  EXPECT_EQ(rows.features[2 * 7 + 1], 1.0);
  EXPECT_EQ(added.kind, "vector added to the query");
  EXPECT_NE(what<LoweredNumbers>(added).parameter, rows.added.parameter);
}

TEST(Lower, TablesThatAreComputed) {
  const LoweredCall call = lowered("t5(heads=2)+kerple_log(heads=2)");
  ASSERT_EQ(call.terms.size(), 2U);
  EXPECT_TRUE(call.reads_positions);
  const LoweredTerm& term = call.terms[1];
  EXPECT_EQ(term.kind, "computed table");
  const auto& table = what<LoweredComputedTable>(term);
  EXPECT_EQ(table.heads, 2);
  EXPECT_EQ(table.first, 1);
  EXPECT_EQ(table.last, 3);
  EXPECT_EQ(table.map.classes.size(), 15U);  // of the distances from -7 to 7

  Position kerple = parse_position("kerple_log(heads=2)");
  std::vector<double> p = {1.0, 2.0}, a = {1.0, 0.5};
  kerple.parts[0].parameters = {TensorView(p.data(), DType::kFloat64, {2, 1, 1}),
                                TensorView(a.data(), DType::kFloat64, {2, 1, 1})};
  const TensorView qkv = blank({1, 2, 8, 4});
  const std::vector<std::vector<double>> tables = computed_tables(qkv, qkv, qkv, kerple, {});
  ASSERT_EQ(tables.size(), 1U);
  ASSERT_EQ(tables[0].size(), 30U);
  for (int n = 0; n < 15; ++n) {  // -p log(1 + a |distance|)
    EXPECT_NEAR(tables[0][static_cast<size_t>(n)], -std::log1p(std::abs(n - 7)), 1e-12);
    EXPECT_NEAR(tables[0][static_cast<size_t>(15 + n)], -2.0 * std::log1p(0.5 * std::abs(n - 7)),
                1e-12);
  }
  std::vector<double> dp(2), da(2), gradient(30, 0.0);
  gradient[7 + 3] = 2.0;
  computed_tables_backward(qkv, qkv, qkv, kerple, {}, {gradient},
                           {{TensorView(dp.data(), DType::kFloat64, {2, 1, 1}),
                             TensorView(da.data(), DType::kFloat64, {2, 1, 1})}});
  EXPECT_NEAR(dp[0], -2.0 * std::log(4.0), 1e-12);
  EXPECT_NEAR(da[0], -2.0 * 3.0 / 4.0, 1e-12);
  EXPECT_EQ(dp[1], 0.0);
  EXPECT_THROW(computed_tables_backward(qkv, qkv, qkv, kerple, {}, {{1.0}}, {{{}, {}}}), Error);
}

TEST(Lower, BiasesOfCoordinatesThatAreGiven) {
  Position layout = parse_position("layout(heads=2, buckets=4, buckets_2d=6)");
  layout.parts[0].parameters = {blank({2, 4}), blank({2, 6}), blank({2, 6}),
                                blank({1, 2, 8}, DType::kInt64), blank({1, 2, 8}, DType::kInt64)};
  const TensorView qkv = blank({1, 2, 8, 4});
  const LoweredCall call = lower(qkv, qkv, qkv, layout, {});
  ASSERT_EQ(call.terms.size(), 3U);
  EXPECT_EQ(call.terms[0].kind, "distance bias");
  EXPECT_TRUE(std::holds_alternative<std::monostate>(what<LoweredBias>(call.terms[0]).delta));
  for (const int axis : {0, 1}) {
    const LoweredTerm& term = call.terms[static_cast<size_t>(1 + axis)];
    EXPECT_EQ(term.kind, "distance bias");
    const auto& bias = what<LoweredBias>(term);
    EXPECT_EQ(bias.table.parameter, 1 + axis);
    const auto& along = std::get<LoweredCoordinates>(bias.delta);
    EXPECT_EQ(along.of_queries.parameter, 3);
    EXPECT_EQ(along.of_keys.parameter, 4);
    EXPECT_EQ(along.axis, axis);
    EXPECT_TRUE(along.q.empty());
  }
  EXPECT_FALSE(call.reads_positions || call.reads_inputs);
}

TEST(Lower, RowsOfCoordinatesThatFollowFromPositions) {
  Options options;
  options.q_offset = Offset(3);
  options.k_offset = Offset(0);
  const TensorView query = blank({1, 2, 5, 4}), key = blank({1, 2, 8, 4});
  const Position image = of_shapes("decomposed(head_dim=4, grid=[2, 4])");
  const LoweredCall call = lower(query, key, key, image, options);
  EXPECT_TRUE(call.reads_positions);
  EXPECT_FALSE(call.reads_inputs);
  ASSERT_EQ(call.terms.size(), 2U);
  const auto &height = what<LoweredRows>(call.terms[0]), &width = what<LoweredRows>(call.terms[1]);
  const auto &rows = std::get<LoweredCoordinates>(height.delta),
             &columns = std::get<LoweredCoordinates>(width.delta);
  EXPECT_EQ(rows.of_queries.parameter, -1);
  EXPECT_EQ(rows.q, (std::vector<int64_t>{0, 1, 1, 1, 1}));
  EXPECT_EQ(columns.q, (std::vector<int64_t>{3, 0, 1, 2, 3}));
  EXPECT_EQ(rows.k, (std::vector<int64_t>{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(columns.k, (std::vector<int64_t>{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(height.table.parameter, 0);
  EXPECT_EQ(width.table.parameter, 1);
}

TEST(Lower, CoordinatesThatFollowFromInputsAreReadWhereTheyAreThere) {
  std::vector<int64_t> q_segments{0, 2, 1}, k_segments{1, 0};
  Position cpm =
      parse_position("cpm_ant(heads=2, segments=3, buckets=4, max_distance=8, max_length=16)");
  cpm.parts[0].parameters = {blank({13, 2}), TensorView(q_segments.data(), DType::kInt64, {1, 3}),
                             TensorView(k_segments.data(), DType::kInt64, {1, 2})};
  const TensorView query = blank({1, 2, 3, 4}), key = blank({1, 2, 2, 4});
  Options options;
  options.q_offset = Offset(0);
  const LoweredCall call = lower(query, key, key, cpm, options);
  EXPECT_TRUE(call.reads_positions && call.reads_inputs);
  ASSERT_EQ(call.terms.size(), 2U);
  const auto along = [&](size_t term) {
    return std::get<LoweredCoordinates>(what<LoweredBias>(call.terms[term]).delta);
  };
  const LoweredCoordinates within = along(0), pairs = along(1);
  EXPECT_EQ(within.q, (std::vector<int64_t>{0, 2 * 64 + 1, 64 + 2}));
  EXPECT_EQ(within.k, (std::vector<int64_t>{64, 1}));
  EXPECT_EQ(pairs.q, (std::vector<int64_t>{0, -6, -3}));
  EXPECT_EQ(pairs.k, (std::vector<int64_t>{1, 0}));

  q_segments[1] = 3;  // segments are 0, 1, 2
  EXPECT_THROW(lower(query, key, key, cpm, options), Error);
}

TEST(Lower, ClassesOfPairsAreRowsOfATable) {
  Position pairs = parse_position("pair_bias(hidden=4)+pair_rows(by_row=true, by_head=true)");
  pairs.parts[0].parameters = {blank({2, 3}), blank({8, 8}, DType::kUInt8)};
  pairs.parts[1].parameters = {blank({2, 5, 4}), blank({1, 8, 8}, DType::kUInt8)};
  const TensorView qkv = blank({1, 2, 8, 4});
  const LoweredCall call = lower(qkv, qkv, qkv, pairs, {});
  EXPECT_FALSE(call.reads_positions || call.reads_inputs);
  ASSERT_EQ(call.terms.size(), 2U);
  EXPECT_EQ(call.terms[0].kind, "pair bias");
  EXPECT_EQ(call.terms[1].kind, "pair rows");
  const auto& bias = what<LoweredBias>(call.terms[0]);
  const auto& rows = what<LoweredRows>(call.terms[1]);
  EXPECT_EQ(bias.map.starts, (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(bias.map.classes, (std::vector<int64_t>{-1, 0, 1, 2, -1}));
  EXPECT_EQ(bias.table.parameter, 0);
  const auto &of_bias = std::get<LoweredClasses>(bias.delta),
             &of_rows = std::get<LoweredClasses>(rows.delta);
  EXPECT_EQ(of_bias.parameter, 1);
  EXPECT_EQ(of_bias.hidden, 4);
  EXPECT_EQ(of_rows.parameter, 3);
  EXPECT_EQ(of_rows.hidden, -1);
  EXPECT_EQ(rows.map.starts.size(), 6U);
  EXPECT_EQ(rows.scale, 0.5);
}

TEST(Lower, MapsThatAreGivenAreReadWhereTheyAreThere) {
  std::vector<int64_t> first{-2}, starts{0, 3}, classes{1, -1, 0};
  Position given = parse_position("distance_bias+distance_bias(map=runs)");
  given.parts[0].parameters = {blank({2, 3}), TensorView(first.data(), DType::kInt64, {1})};
  given.parts[1].parameters = {blank({1, 2}), TensorView(starts.data(), DType::kInt64, {2}),
                               TensorView(classes.data(), DType::kInt64, {3})};
  const TensorView qkv = blank({1, 2, 8, 4});
  const LoweredCall call = lower(qkv, qkv, qkv, given, {});
  EXPECT_TRUE(call.reads_inputs);
  EXPECT_FALSE(call.reads_positions);
  const auto &near = what<LoweredBias>(call.terms[0]), &runs = what<LoweredBias>(call.terms[1]);
  EXPECT_EQ(near.map.starts, (std::vector<int64_t>{-1, 0}));
  EXPECT_EQ(near.map.classes, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(runs.map.starts, starts);
  EXPECT_EQ(runs.map.classes, classes);
}

// A bias of coordinates whose numbers are bounded.
struct Bounded {
  void options(OptionList&) {}
  void terms(Builder& b) const {
    const Source table = b.parameter("table", {2, 3}, Init::normal(1.0), "");
    const Source q = b.integers("q_at", {kBatch, kQueries}, 1, ""),
                 k = b.integers("k_at", {kBatch, kKeys}, 1, "");
    b.bias(ClassMap::clamp(-1, 1), table.at_most(5.0), Along::given(q, k, 0));
  }
};

TEST(Lower, NumbersThatAreNotAParametersAsTheyAreHaveAKindOfTheirOwn) {
  const Scheme scheme = make_scheme<Bounded>("bounded", "Bounded", "", "");
  Position bounded;
  bounded.parts.push_back(make_part(scheme, {}));
  bounded.parts[0].parameters = {blank({2, 3}), blank({1, 8}, DType::kInt64),
                                 blank({1, 8}, DType::kInt64)};
  const TensorView qkv = blank({1, 2, 8, 4});
  const LoweredCall call = lower(qkv, qkv, qkv, bounded, {});
  ASSERT_EQ(call.terms.size(), 1U);
  EXPECT_EQ(call.terms[0].kind, "computed distance bias");
  EXPECT_TRUE(std::holds_alternative<std::monostate>(call.terms[0].what));
}

TEST(Lower, KindsOfOtherTerms) {
  for (const auto& [text, kind] : std::vector<std::pair<std::string, std::string>>{
           {"xpos(head_dim=4, layout=half)", "decaying rotation"}}) {
    const LoweredCall call = lowered(text);
    ASSERT_FALSE(call.terms.empty()) << text;
    EXPECT_EQ(call.terms.back().kind, kind) << text;
    EXPECT_TRUE(std::holds_alternative<std::monostate>(call.terms.back().what)) << text;
  }
  EXPECT_TRUE(lowered("").terms.empty());
  EXPECT_FALSE(lowered("swin(heads=2, window=[3])").consecutive);
}

TEST(Lower, RefusesWhatAttentionRefuses) {
  Options options;
  options.k_offset = Offset(3);
  EXPECT_THROW(lowered("t5(heads=2)", options), Error);
  EXPECT_THROW(lowered("t5(heads=3)"), Error);
}

}  // namespace
}  // namespace relpos
