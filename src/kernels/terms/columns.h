// Column tables: what s2 <c_j, r'[m(delta)]> adds to a block's scores of one tile, and its gradients.
//
// Keys times rows of the table are computed for the distances of one block and one tile, over runs:
// neighbouring distances of one class share a product, so that any 16 consecutive distances read at
// most 16 consecutive products, which a load and a permute serve.
// Reference twins: Head::column_factor(), Head::score_row() and HeadGradient::add_column().
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/terms/term.h"

namespace relpos {

class ColumnTables : public Term {
 public:
  struct Sums : TablesSums {
    Sums(const Plan& plan, const TermGradients& wants, SumMemory& memory)
        : TablesSums(plan.columns, wants.column_tables, plan.p.group(), memory) {}
  };
  struct KeySums : TermSums {
    std::vector<float*> factors;  // [tiles * kTile, padded rank], of c_j / s2

    KeySums(const Plan& plan, const TermGradients& wants, SumMemory& memory);
  };

  ColumnTables(const Plan& plan, Workspace& memory);
  static bool by_tile(const Plan& plan) { return !plan.columns.empty(); }
  // Points block.extra at what the terms add to the scores of a tile.
  void before_tile(Block& block, const KeyTile& tile);
  // Adds to the sums of a chunk and to those of the keys, both in the block's turn.
  void after_tile(const BlockGradients& rows, const KeyTile& tile, int64_t t, const Sums& sums,
                  const KeySums& keys);
  static bool reads_dk(const Plan& plan) { return !plan.columns.empty(); }
  // Adds to dk where the key is the factor.
  static void finish_key(const Plan& plan, const KeySums& sums, int64_t pair, int64_t j, float* dk,
                         float* key, TermGradients& to);
  template <typename Reduce>
  static void reduce_tables(const Plan& plan, TermGradients& to, const Reduce& reduce) {
    TablesSums::reduce_each<Sums>(plan.columns, plan.p.terms.column_tables, kLn2, to.column_tables,
                                  reduce);  // sums hold factors times s log2(e)
  }
  static int64_t bytes(const Plan& plan) { return TablesSums::bytes(plan.columns, plan.p.group()); }

 private:
  // What one term reads for some rows of one head and the keys of a tile.
  struct Reach {
    int64_t first = 0, width = 0;   // runs, in multiples of kLanes
    bool ordered = false;           // keys and rows stand one after another: runs_ serves
    int64_t single = -1;            // the run of every pair, less `first`; -1: there are several
    int64_t q_low = 0, q_high = 0;  // positions of the rows
  };
  // With `sums`, `ordered` does not depend on `single`: whether the pairs of a tile read one run
  // depends on the distances of the whole batch, and the order of a sum must not.
  static Reach reach(const ColumnPlan& term, const Block& block, const KeyTile& tile, int row,
                     int rows, bool sums);
  // runs_ = the run of every row - key, less at.first, where `ordered`.
  void write_runs(const ColumnPlan& term, const Reach& at, const KeyTile& tile, int rows);
  // products_[kTile, at.width] = the tile's factors times the rows of the table, where `ordered` only the runs
  // that some row reads with the key.
  void multiply(const ColumnPlan& term, int64_t head, const KeyTile& tile, const Reach& at);
  // products_[kTile, at.width] = ds of the pairs that read each run, summed.
  void sum_runs(const ColumnPlan& term, const Reach& at, const Block& block, const KeyTile& tile,
                const float* ds);
  // += what sum_runs() has left: times the factors for own [runs from at.first on], times the rows of
  // the table for the keys' factors [kTile, padded rank].
  void add_to_table(const ColumnPlan& term, const Reach& at, const KeyTile& tile, float* own);
  void add_to_factors(const ColumnPlan& term, int64_t head, const Reach& at, const KeyTile& tile,
                      float* factors);
  // The run of a pair, less `first`.
  static int64_t run(const ColumnPlan& term, const Reach& at, const Block& block,
                     const KeyTile& tile, int row, int64_t key);
  // The first and the last run that some row reads with a key, where `ordered`.
  static int64_t first_run(const ColumnPlan& term, const Reach& at, const KeyTile& tile,
                           int64_t key) {
    return term.runs(tile.first_position + key - at.q_high);
  }
  static int64_t last_run(const ColumnPlan& term, const Reach& at, const KeyTile& tile,
                          int64_t key) {
    return term.runs(tile.first_position + key - at.q_low);
  }
  // Calls f(key, keys, first run, one past the last) for strips of keys and what they read.
  template <typename F>
  static void for_each_strip(const ColumnPlan& term, const Reach& at, const KeyTile& tile, F&& f) {
    // A strip meets kRows + kStrip - 1 distances, the whole tile kRows + kTile - 1: corners that no row
    // reads are 66 % of what is read there, and 11 % here.
    constexpr int64_t kStrip = int64_t{2} * kGroup;
    for (int64_t key = 0; key < kTile;) {
      const int64_t keys = at.ordered ? std::min(kStrip, kTile - key) : kTile;
      const int64_t first = at.ordered ? first_run(term, at, tile, key) : at.first;
      const int64_t end =
          at.ordered ? last_run(term, at, tile, key + keys - 1) + 1 : at.first + at.width;
      f(key, keys, first, end);
      key += keys;
    }
  }

  int64_t stride_;
  Buffer<float> extra_;     // [kRows, kTile]
  Buffer<float> products_;  // [kTile, stride_]
  Buffer<int32_t> runs_;
};

}  // namespace relpos
