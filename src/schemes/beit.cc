// Bao et al. 2021 (BEiT): Swin's bias of an offset within the image, and three numbers for the token [CLS]
// before it.
//
//   score[h,i,j] += table[(y_q - y_k + H - 1)(2 W - 1) + x_q - x_k + W - 1, h]   of two patches
//   rows N, N + 1, N + 2 of N = (2 H - 1)(2 W - 1): [CLS] to patch, patch to [CLS], [CLS] to [CLS]
//
// Token 0 is [CLS]. It stands far from the image, as a query on the other side than as a key. Calls have
// the tokens of the image and no others.
#include "schemes/common/patch_grid.h"

namespace relpos {

namespace {

struct BeitBias {
  int64_t heads = 0;
  std::vector<double> window;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.required("window", window, "patches on a side of the image, or [height, width]");
  }

  void terms(Builder& b) const {
    const common::PatchGrid patches(b, "window", window);
    patches.require_memory(b, "window");
    const int64_t reach = patches.farthest(), rows = 2 * reach + 1, gap = 2 * reach + 1;
    const Source table =
        b.parameter("relative_position_bias_table", {rows + 3, heads}, Init::constant(0.0),
                    "one number for each offset (y, x) of query - key, from 1 - side up, then of "
                    "[CLS] to patch, patch to [CLS] and [CLS] to [CLS]; and head");
    // Distances, key - query: two [CLS] at -3 gap, patch to [CLS] from -2 gap, [CLS] to patch from
    // -gap, two patches around 0.
    std::vector<int64_t> starts{-3 * gap, -3 * gap + 1, -2 * gap - reach, -2 * gap + 1, -gap};
    const int64_t none = ClassMap::kNone;
    std::vector<int64_t> classes{none, rows + 2, none, rows + 1, none, rows};
    for (int64_t delta = -reach; delta <= reach; ++delta) {
      starts.push_back(delta);
      classes.push_back(reach - delta);
    }
    starts.push_back(reach + 1);
    classes.push_back(none);
    b.bias(ClassMap::thresholds(std::move(starts), std::move(classes)), table.transposed());
    const auto at = [=](int64_t token, int64_t of_cls, int64_t before) {
      return token == 0 ? of_cls : token > 0 ? patches(token - 1) : before + token;
    };
    b.place([=](int64_t token) { return at(token, gap, 5 * gap); },
            [=](int64_t token) { return at(token, -2 * gap, -4 * gap); });
  }
};

}  // namespace

RELPOS_SCHEME(beit, BeitBias, "BeitBias",
              "Swin's bias of an offset within an image, and three numbers for [CLS]",
              "Bao et al. 2021, BEiT; Hugging Face BeitRelativePositionBias")

}  // namespace relpos
