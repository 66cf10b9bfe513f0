#include <gtest/gtest.h>

#include "kernels/problem.h"
#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::Made;

// A grid of 4 x 5; `sign`: of the offset by which a row of the tables is found.
void expect_rows_and_columns(const char* scheme, int64_t sign, std::optional<double> scale) {
  const Made made(scheme, {{"head_dim", int64_t{3}}, {"grid", std::vector<double>{4, 5}}});
  EXPECT_EQ(made.specs()[0].shape, (std::vector<int64_t>{7, 3}));
  EXPECT_EQ(made.specs()[1].shape, (std::vector<int64_t>{9, 3}));
  TokenPositions at;
  at.consecutive = false;
  at.queries = at.keys = 20;
  for (int64_t t = 0; t < 20; ++t) at.q.push_back(made.place()(t));
  at.k = at.q;
  const Terms terms = made.lower(at);
  for (int64_t n = 0; n < 2; ++n) {
    const RowTable& term = terms.row_tables[static_cast<size_t>(n)];
    EXPECT_EQ(term.table.view.data, made.parameters()[static_cast<size_t>(n)].data);
    EXPECT_EQ(term.scale, scale);
    for (int64_t i = 0; i < 20; ++i) {
      for (int64_t j = 0; j < 20; ++j) {
        const int64_t apart = n == 0 ? sign * (j / 5 - i / 5) + 3 : sign * (j % 5 - i % 5) + 4;
        const int64_t delta =
            term.coordinates->key(term.axis, 0, j) - term.coordinates->query(term.axis, 0, i);
        ASSERT_EQ(term.map(delta), apart);
      }
    }
  }
}

TEST(BoTNet, TablesAreReadByRowsAndColumns) { expect_rows_and_columns("botnet", 1, {}); }

TEST(Decomposed, TablesAreReadByRowsAndColumns) { expect_rows_and_columns("decomposed", -1, 1.0); }

}  // namespace
}  // namespace relpos
