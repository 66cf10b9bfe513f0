// Corners of the fused path that random cases seldom meet.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "base/sanitized.h"
#include "kernels/drive/query_block.h"
#include "kernels/reference/reference.h"
#include "testing/random_results.h"
#include "testing/random_terms.h"

namespace relpos {
namespace {

using random_terms::add_term;

void fast_forward(const Problem& p, const ForwardResults& to) { fused_forward(p, to); }
// The reference twins with the arguments of the fused passes.
void plain_backward(const Problem& p, const TensorView& out, const TensorView&,
                    const TensorView& dout, const TensorView& dlse, const ProblemGradients& to) {
  reference_backward(p, out, {}, dout, dlse, to);
}
void plain_weights(const Problem& p, const TensorView&, const TensorView& weights) {
  reference_weights(p, weights);
}

struct Plain : random_terms::PlainCall {
  template <typename... Sizes>
  explicit Plain(Sizes... sizes) : PlainCall(3, sizes...) {}

  template <typename Pass>
  std::vector<double> results(Pass pass) {
    pass(p, {out.view(), lse.view(), {}});
    return {out.data<float>(), out.data<float>() + out.view().numel()};
  }

  // Of row tables, value tables, queries, keys and values.
  template <typename Pass>
  std::vector<double> gradients(Pass pass) {
    pass(p, out.view(), lse.view(), dout.view(), TensorView(), PlainCall::gradients());
    std::vector<double> all;
    const auto add = [&all](const std::vector<double>& part) {
      all.insert(all.end(), part.begin(), part.end());
    };
    for (const auto& rows : terms.row_tables) {
      for (const auto* part : {&rows.table, &rows.factor, &rows.added}) add(*part);
    }
    for (const auto& values : terms.value_tables) add(values.table);
    for (const Tensor* x : {&dq, &dk, &dv}) {
      all.insert(all.end(), x->data<float>(), x->data<float>() + x->view().numel());
    }
    return all;
  }
};

TEST(Edges, WeightsOfZeroMeetNoNan) {
  for (const int64_t queries : {3, 20, 130}) {
    for (const int64_t dim : {8, 16}) {
      Plain a(queries, 70, dim);
      std::fill_n(a.q.data<float>(), queries * dim, 1.0f);
      std::fill_n(a.k.data<float>(), 70 * dim, -INFINITY);
      a.v.data<float>()[5] = NAN;
      a.v.data<float>()[dim] = INFINITY;
      a.forward();
      for (int64_t n = 0; n < queries * dim; ++n) ASSERT_EQ(a.out.data<float>()[n], 0.0f) << n;
      for (int64_t n = 0; n < queries; ++n) ASSERT_EQ(a.lse.data<float>()[n], -INFINITY);
    }
  }
}

// Keys start at position 100: under a causal boundary the first block sees none of them, and the
// table's window is far wider than the keys.
struct Late : Plain {
  static constexpr int64_t kQueries = 900, kKeys = 8, kDim = 16;

  Late() : Plain(kQueries, kKeys, kDim) {
    p.positions.k = {100};
    for (int64_t i = 0; i < kQueries; ++i) {
      p.visible.span.emplace_back(0, std::clamp<int64_t>(i - 99, 0, kKeys));
    }
    const ClassMap map = ClassMap::zero_outside(1 - kQueries, 0);
    add_term(p.terms.row_tables, map, trained({kQueries, kDim}));
    add_term(p.terms.value_tables, map, trained({kQueries, kDim}));
  }
};

// The first block of a call's first head.
struct FirstBlock {
  Workspace memory;
  const Plan plan;
  QueryBlock x;
  const RowTables tables;

  explicit FirstBlock(const Problem& p)
      : plan(p, false, memory), x(plan, memory), tables(plan, memory) {
    x.begin(0);
    x.add_rows(0, 0, kRows);
    x.load();
  }
};

TEST(Edges, ABlindBlockStaysInItsCells) {
  Late a;
  const FirstBlock first(a.p);
  const TablePlan& values = first.plan.value_tables[0];
  EXPECT_LE(values.multiplied(values.window.cut(first.x.block.range)).width,
            first.plan.most_cells(values.window));
  EXPECT_LE(first.tables.reach(first.x.block, 0, 0, 1).width + 2 * kPad,
            RowTables::stride(first.plan, first.plan.row_tables[0]));

  const std::vector<double> got = a.results(fast_forward), want = a.results(reference_forward);
  for (size_t n = 0; n < want.size(); ++n) ASSERT_NEAR(got[n], want[n], 1e-5) << n;

  const std::vector<double> fused = a.gradients(fused_backward),
                            plain = a.gradients(plain_backward);
  for (size_t n = 0; n < plain.size(); ++n) {
    ASSERT_NEAR(fused[n], plain[n], 1e-3 * (1 + std::fabs(plain[n]))) << n;
  }
}

// Windows of row tables too wide to be there at once: their cells slide with the tiles. Two batch rows
// at different offsets, four heads of which two share a key head.
struct Wide : Plain {
  static constexpr int64_t kKeys = 1700, kDim = 8;

  // `reach`: the keys behind that a query sees, of kKeys in all.
  Wide(int64_t queries, const ClassMap& map, int64_t reach, bool per_head, bool own_factor)
      : Plain(queries, kKeys, kDim, 2, 4, 2) {
    const int64_t rank = own_factor ? 20 : kDim, offset = kKeys - queries;
    p.threads = 2;
    p.positions.q = {offset, offset - 333};
    p.positions.q_rows = 2;
    for (int64_t i = 0; i < queries; ++i) {
      p.visible.span.emplace_back(std::max<int64_t>(0, offset + i - reach),
                                  std::min(kKeys, offset + i + 1 + kKeys - reach));
    }
    const std::vector<int64_t> shared{map.classes(), rank}, own{4, map.classes(), rank};
    RowTable& term = add_term(p.terms.row_tables, map, trained(per_head ? own : shared));
    if (!own_factor) return;
    term.factor = trained({2, 4, queries, rank});
    term.added = trained({4, rank});
  }

  template <typename Pass>
  std::vector<double> weights(Pass pass) {
    Tensor dense(DType::kFloat32, {2, 4, p.queries, kKeys});
    pass(p, lse.view(), dense.view());
    return {dense.data<float>(), dense.data<float>() + dense.view().numel()};
  }
};

void expect_near(const std::vector<double>& got, const std::vector<double>& want, double share) {
  double most = 0;
  for (const double x : want) most = std::isnan(x) ? most : std::max(most, std::fabs(x));
  ASSERT_EQ(got.size(), want.size());
  for (size_t n = 0; n < want.size(); ++n) {
    ASSERT_EQ(std::isnan(got[n]), std::isnan(want[n])) << n;
    if (std::isnan(want[n])) continue;
    ASSERT_NEAR(got[n], want[n], share * most) << n;
  }
}

TEST(Edges, CellsOfWideRowTablesSlide) {
  const std::vector<ClassMap> maps = {ClassMap::clamp(-1200, 30), ClassMap::clamp(-450, 450, true),
                                      ClassMap::zero_outside(-1650, 1650)};
  for (size_t n = 0; n < maps.size(); ++n) {
    const ClassMap& map = maps[n];
    for (const int64_t queries : {1, 12, 100}) {  // one row of keys after the other, packed, blocks
      for (const bool causal : {true, false}) {   // or a band
        if (random_terms::few_cases() && (causal == (n == 1) || queries == 12)) continue;
        SCOPED_TRACE(testing::Message() << n << ", " << queries << ", " << causal);
        Wide a(queries, map, causal ? Wide::kKeys : 900, n != 0, causal == (n == 1));
        expect_near(a.results(fast_forward), a.results(reference_forward), 1e-5);
        expect_near(a.gradients(fused_backward), a.gradients(plain_backward), 1e-5);
        expect_near(a.weights(fused_emit), a.weights(plain_weights), 1e-5);
        if (kSanitized) continue;  // a NaN moves no address
        // One class that is NaN: only those who meet it notice.
        const TensorView& rows = a.p.terms.row_tables[0].table.view;
        rows.store((map.classes() - 40) * rows.shape[rows.rank - 1], NAN);
        expect_near(a.results(fast_forward), a.results(reference_forward), 1e-5);
        expect_near(a.gradients(fused_backward), a.gradients(plain_backward), 1e-5);
      }
    }
  }
}

// A distance bias too wide to be written out for a few queries. Cells inside a row of floats are read there,
// the others are written with the tiles, and are those of the same table in double, which is read number by
// number. So are those beside a number so large that log2 units squeeze it.
TEST(Edges, CellsOfAWideBiasAreReadInPlaceOrWrittenWithTheTiles) {
  constexpr int64_t kKeys = Wide::kKeys;
  const std::vector<ClassMap> maps = {
      ClassMap::clamp(-1200, 30), ClassMap::clamp(-1690, 450, true),
      ClassMap::zero_outside(-1500, 1650), ClassMap::zero_outside(-1500, 1650, true),
      ClassMap::thresholds({-1400, -900, -40, -39, 3}, {-1, 2, 0, 3, 1, 4})};
  for (const ClassMap& map : maps) {
    for (const int64_t queries : {1, 7}) {
      for (const int form : {0, 1, 2}) {
        const bool transposed = form == 1, squeezed = form == 2;
        SCOPED_TRACE(testing::Message() << map.first_distance() << ", " << queries << ", " << form);
        Plain a(queries, kKeys, 8, 2, 4, 2);
        a.p.threads = 2;
        a.p.positions.q = {kKeys - queries, kKeys - queries - 333};
        a.p.positions.q_rows = 2;
        a.p.visible.rows = 2;
        for (int64_t row = 0; row < 2 * queries; ++row) {
          const int64_t at = a.p.positions.q[row / queries] + row % queries;
          a.p.visible.span.emplace_back(row < queries ? 0 : 70, at + 1);
        }
        const std::vector<int64_t> shape{4, map.classes()}, other{map.classes(), 4};
        TermData table = a.trained(transposed ? other : shape);
        std::vector<double> numbers(table.view.numel());
        if (transposed) {
          std::swap(table.view.shape[0], table.view.shape[1]);
          std::swap(table.view.strides[0], table.view.strides[1]);
        }
        table.view.store(table.view.offset({1, map.classes() / 2}), -INFINITY);
        table.view.store(table.view.offset({2, map.classes() / 2}), 3e38);
        table.multiplier = squeezed ? 1.0 : 0.5;
        for (int64_t n = 0; n < std::ssize(numbers); ++n) {
          numbers[n] = table.view.at({n / map.classes(), n % map.classes()});
        }
        add_term(a.p.terms.biases, map, table);
        const std::vector<double> got = a.results(fast_forward);
        expect_near(got, a.results(reference_forward), 1e-5);
        a.p.threads = 1;
        EXPECT_EQ(got, a.results(fast_forward));
        a.p.terms.biases[0].table = TermData::computed(numbers, shape, false);
        a.p.terms.biases[0].table.multiplier = table.multiplier;
        if (transposed) {
          EXPECT_EQ(got, a.results(fast_forward));
        } else {
          expect_near(got, a.results(fast_forward), 1e-6);
        }
      }
    }
  }
}

// An image of 18 rows of a tile each, with two tables by its rows and one by its columns.
struct Image : Plain {
  static constexpr int64_t kHeight = 18, kTokens = kHeight * kTile, kDim = 16;

  Image() : Plain(kTokens, kTokens, kDim) {
    auto at = std::make_shared<Coordinates>();
    at->axes = 2;
    at->queries = at->keys = kTokens;
    for (int64_t n = 0; n < kTokens; ++n) at->q.push_back(n / kTile);
    for (int64_t n = 0; n < kTokens; ++n) at->q.push_back(n % kTile);
    at->k = at->q;
    for (int n = 0; n < 3; ++n) {
      const int64_t most = n < 2 ? kHeight - 1 : kTile - 1;
      RowTable& term = add_term(p.terms.row_tables, ClassMap::zero_outside(-most, most),
                                trained({2 * most + 1, kDim}));
      term.coordinates = at;
      term.axis = n < 2 ? 0 : 1;
    }
  }
};

// Where a caller's lse makes a weight larger than float32 holds, it is 2^127.
TEST(Edges, AnLseFarBelowTheScoresGivesLargeGradientsOfTheRightSign) {
  Plain call(1, 1, 16);
  call.results(fast_forward);
  const float lse = *call.lse.data<float>();
  for (const float below : {100.0f, 200.0f, 1e4f, 1e30f}) {
    *call.lse.data<float>() = lse - below;
    call.gradients(fused_backward);
    for (int64_t d = 0; d < 16; ++d) {
      const float dout = call.dout.data<float>()[d], dv = call.dv.data<float>()[d];
      EXPECT_GT(dv / dout, 0x1p126f) << "lse " << below << " too low, " << dout << " gave " << dv;
    }
  }
}

TEST(Edges, TablesByTheRowsOfAnImageAddUp) {
  Image a;
  expect_near(a.results(fast_forward), a.results(reference_forward), 1e-5);
  expect_near(a.gradients(fused_backward), a.gradients(plain_backward), 1e-5);
}

TEST(Edges, ABlockReadsOfATableByCoordinatesWhatItsQueriesReach) {
  Image a;
  const FirstBlock first(a.p);
  // Rows 0 and 1 of the image see rows 0 to 17: distances from -1 to 17, of whose 35 cells the 16th is
  // -1. Columns are all there.
  EXPECT_EQ(first.tables.reach(first.x.block, 0, 0, 1), (Cut{kLanes, Image::kHeight + 1}));
  EXPECT_EQ(first.tables.reach(first.x.block, 2, 0, 1).width, 2 * kTile - 1);
}

}  // namespace
}  // namespace relpos
