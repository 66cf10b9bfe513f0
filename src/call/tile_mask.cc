#include "call/tile_mask.h"

#include "base/parallel.h"
#include "relpos/error.h"
#include "values/views.h"

namespace relpos {
namespace {

constexpr const char* kName = "attn_mask";

void check_part(const TensorView& view, int rank, const char* what, const char* shape) {
  check_value(view.given(), kName, ": expected ranges, entries and words of a TileMask, got no ",
              what);
  if (view.dtype != DType::kInt64) {
    throw_error(ErrorKind::kType, kName, ": expected int64 ", what, " of a TileMask, got ",
                dtype_name(view.dtype));
  }
  check_value(view.rank == rank, kName, ": expected ", what, " of a TileMask, ", shape, ", got ",
              Shape{view});
}

void check_gapless(const TensorView& view, const char* what) {
  const bool gapless = view.shape[0] == 0 || view.shape[1] == 0 ||
                       ((view.shape[1] == 1 || view.strides[1] == 1) &&
                        (view.shape[0] == 1 || view.strides[0] == view.shape[1]));
  check_value(gapless && reinterpret_cast<uintptr_t>(view.data) % sizeof(int64_t) == 0, kName,
              ": expected contiguous ", what, " of a TileMask");
}

// The entries of one block.
void check_entries(std::span<const SeenTiles::Entry> entries, int64_t tiles, int64_t words) {
  CancelTicks tick;
  int64_t before = -1;
  for (const SeenTiles::Entry& entry : entries) {
    tick();
    check_value(entry.tile > before && entry.tile < tiles, kName,
                ": expected tiles of a TileMask that ascend from 0 to ", tiles - 1, ", got ",
                entry.tile, " after ", before);
    check_value(entry.at >= SeenTiles::kAll && entry.at < words, kName,
                ": expected rows of words of a TileMask from -1 to ", words - 1, ", got ",
                entry.at);
    before = entry.tile;
  }
}

}  // namespace

SeenTiles read_tile_mask(const TileMask& mask, const Problem& p) {
  const TensorView &ranges = mask.ranges, &entries = mask.entries, &words = mask.words;
  if (!ranges.given() && !entries.given() && !words.given()) return {};
  check_part(ranges, 4, "ranges", "[B, H, blocks, 2]");
  check_part(entries, 2, "entries", "[n, 2]");
  check_part(words, 2, "words", "[m, R]");
  const int64_t rows = words.shape[1];
  check_value(rows >= 1 && entries.shape[1] == 2 && ranges.shape[3] == 2, kName,
              ": expected entries [n, 2], ranges [B, H, blocks, 2] and words [m, R] of a TileMask, "
              "R at least 1, got ",
              Shape{entries}, ", ", Shape{ranges}, " and ", Shape{words});
  const int64_t batch = ranges.shape[0], heads = ranges.shape[1];
  check_value((batch == 1 || batch == p.batch) && (heads == 1 || heads == p.heads) &&
                  mask.queries == p.queries && mask.keys == p.keys,
              kName, ": expected a TileMask that broadcasts to [", p.batch, ", ", p.heads, ", ",
              p.queries, ", ", p.keys, "], got one of [", batch, ", ", heads, ", ", mask.queries,
              ", ", mask.keys, "]");
  const int64_t blocks = (p.queries + rows - 1) / rows;
  check_value(ranges.shape[2] == blocks, kName, ": expected ranges of ", blocks,
              " blocks of a TileMask, got ", ranges.shape[2]);
  check_gapless(entries, "entries");
  check_gapless(words, "words");
  const SeenTiles seen(broadcast_view(ranges, {p.batch, p.heads, blocks, 2}, kName), entries,
                       words);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t first = ranges.load_int(ranges.offset({b, h, block, 0}));
        const int64_t end = ranges.load_int(ranges.offset({b, h, block, 1}));
        check_value(0 <= first && first <= end && end <= entries.shape[0], kName,
                    ": expected ranges of a TileMask from 0 to ", entries.shape[0], ", got [",
                    first, ", ", end, ")");
        check_entries(seen.of(b, h, block * rows), p.tiles(), words.shape[0]);
      }
    }
  }
  return seen;
}

}  // namespace relpos
