// What schemes refuse: options without a meaning, and calls that are not what the options say.
#include <gtest/gtest.h>

#include <limits>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::expect_error;
using plain::Made;

TEST(Refusals, OfOptions) {
  const std::pair<const char*, const char*> rows[] = {
      {"alibi(heads=2, slopes=[1])",
       "alibi: slopes: expected one number for each of heads=2, got 1"},
      {"alibi(heads=2, slopes=[1, nan])", "alibi: slopes: expected finite numbers, got nan"},
      {"alibi(heads=2, sides=own, symmetric=false)", "alibi: sides"},
      {"bias_rpe(heads=2, max_distance=0)", "bias_rpe: max_distance: expected 1"},
      {"conformer(heads=888888, head_dim=8)",
       "conformer: width: expected up to 131072, got 7111104"},
      {"deberta(heads=1, head_dim=2, buckets=7)", "deberta: buckets: expected 0 or an even number"},
      {"deberta(heads=1, head_dim=2, max_distance=100)",
       "deberta: max_distance: expected more than"},
      {"mrope(head_dim=128, layout=half, section=[1, 2, 3])", "mrope: section"},
      {"music_transformer(max_length=0, head_dim=3)", "music_transformer: max_length"},
      {"rope(head_dim=8)", "rope: layout"},
      {"rope(head_dim=7, layout=half)", "rope: head_dim: expected an even number, got 7"},
      {"rope(head_dim=8, layout=half, rotary_dim=3)", "rope: rotary_dim"},
      {"rope(head_dim=8, layout=half, rotary_dim=10)", "rope: rotary_dim"},
      {"rope(head_dim=8, layout=half, base=0)", "rope: base"},
      {"rope(head_dim=8, layout=half, base=nan)", "rope: base"},
      {"rope(head_dim=8, layout=half, start=8)", "rope: start"},
      {"rope(head_dim=8, layout=half, start=3)", "head_dim - start"},
      {"rope_dynamic(head_dim=8, layout=half, factor=0.5)", "rope_dynamic: factor"},
      {"rope_linear(head_dim=8, layout=half, factor=0)", "rope_linear: factor"},
      {"rope_llama3(head_dim=8, layout=half, high_freq_factor=1)", "rope_llama3: high_freq_factor"},
      {"rope_longrope(head_dim=8, layout=half, long_factor=[1, 1, 1])",
       "rope_longrope: long_factor: expected a number for each of 4 pairs, got 3"},
      {"rope_mixed(heads=2, head_dim=6, grid=[2, 3])", "multiple of 4, got 6"},
      {"rope_mixed(heads=2, head_dim=4, grid=[2, 3], kv_heads=3)",
       "rope_mixed: kv_heads: expected a divisor of heads=2, got 3"},
      {"rope_soft_clipped(head_dim=8, layout=half, clipped=-1)", "rope_soft_clipped: clipped"},
      {"rope_yarn(head_dim=8, layout=half, factor=4, beta_fast=0.5)", "rope_yarn: beta_fast"},
      {"shaw(max_distance=-1, head_dim=3)", "shaw: max_distance"},
      {"shaw(max_distance=4611686018427387904, head_dim=3)", "shaw: max_distance"},
      {"shaw(max_distance=9, head_dim=2, rows=20)", "shaw: rows: expected an odd number"},
      {"shaw(max_distance=9, head_dim=2, rows=17)", "shaw: rows: expected an odd number"},
      {"shaw(max_distance=3, right=9, head_dim=2, rows=17)", "shaw: rows: expected an odd number"},
      {"swin(heads=1, window=[])", "swin: window: expected one or two whole numbers"},
      {"swin(heads=1, window=[1, 2, 3])", "swin: window: expected one or two whole numbers"},
      {"swin(heads=1, window=[0])", "swin: window: expected one or two whole numbers"},
      {"swin(heads=1, window=[2.5])", "swin: window: expected one or two whole numbers"},
      {"swin(heads=1, window=[-1, 2])", "swin: window: expected one or two whole numbers"},
      {"t5(heads=0)", "t5: heads: expected 1"},
      {"t5(heads=4611686018427387904)", "t5: heads"},
      {"t5(heads=3, buckets=31)", "t5: buckets"},
      {"t5(heads=3, scale=nan)", "t5: bias_scale"},
      {"udop(heads=2, unit=1099511627776)", "udop: unit"},
      {"xlnet(heads=1, head_dim=8, width=3)", "xlnet: width: expected an even number, got 3"},
  };
  for (const auto& [text, words] : rows) {
    SCOPED_TRACE(text);
    expect_error([&, text = text] { parse_position(text); }, words);
  }
}

struct Call {
  const char* text;
  CallSizes sizes;
  const char* words;  // empty: taken
};

TEST(Refusals, OfCalls) {
  const Call rows[] = {
      {"alibi(heads=2)", {.heads = 2}, ""},
      {"alibi(heads=2)", {.heads = 3}, "alibi: heads: this position was made with heads=2, the"},
      {"fire(heads=2, init_L=50)", {.last_distance = -1, .last_query = 50}, ""},
      {"fire(heads=2, init_L=50)",
       {.last_distance = -1, .last_query = 51},
       "|L_multiplier| init_L = 50, and this call has query 51"},
      {"kerple_log(heads=8)", {.last_distance = int64_t{1} << 40}, "reach from 0 to 1099511627776"},
      {"rope(head_dim=8, layout=half)", {.heads = 2, .head_dim = 8}, ""},
      {"rope(head_dim=8, layout=half)", {.head_dim = 16}, "head_dim=8, the call has 16"},
      {"rope_mixed(heads=4, head_dim=4, grid=[2], kv_heads=2)",
       {.kv_heads = 1},
       "kv_heads=2, the call has 1"},
      {"shaw(max_distance=2, head_dim=3, value_dim=4)",
       {.value_dim = 5},
       "value_dim=4, the call has 5"},
      {"shaw(max_distance=2, head_dim=3, values=false)", {.value_dim = 99}, ""},
  };
  for (const Call& row : rows) {
    SCOPED_TRACE(row.text);
    const Made made(row.text);
    const auto bind = [&] { made.bind(row.sizes); };
    expect_error(bind, row.words);
    EXPECT_EQ(plain::error_of(bind).empty(), std::string(row.words).empty());
  }
}

TEST(Refusals, OfSlopesThatAreNotFinite) {
  const Made alibi("alibi(heads=2)", {{1.0, std::numeric_limits<double>::infinity()}});
  expect_error([&] { alibi.bind(); }, "slopes: expected finite numbers, got inf for head 1");
}

}  // namespace
}  // namespace relpos
