// ALiBi in an image (Baevski et al. 2023, data2vec 2.0): a penalty that grows linearly with the distance
// of two patches.
//
//   score[h,i,j] += -slopes[h] (|y_q - y_k| + |x_q - x_k|),   or their Euclidean distance
#include <cmath>

#include "schemes/common/patch_grid.h"
#include "schemes/common/slopes.h"

namespace relpos {

namespace {

struct ALiBi2D {
  int64_t heads = 0;
  std::vector<double> grid;
  std::string distance = "manhattan";
  bool learned = false;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.required("grid", grid, "patches on a side of the image, or [height, width]");
    o.keyword_only();
    o.choice("distance", distance, {"manhattan", "euclidean"}, "of two patches");
    o.flag("learned", learned, "train the slopes");
  }

  void terms(Builder& b) const {
    const common::PatchGrid patches(b, "grid", grid);
    const char* doc = "how fast each head's penalty grows with the distance";
    const Init init = Init::each(common::paper_slopes(heads));
    const Source slopes =
        learned ? b.parameter("slopes", {heads}, init, doc) : b.fixed("slopes", {heads}, init, doc);
    const auto far = [=, straight = distance == "euclidean"](int64_t delta) {
      const auto [y, x] = patches.offset(delta);
      const auto dy = static_cast<double>(y), dx = static_cast<double>(x);
      return straight ? std::hypot(dy, dx) : std::fabs(dy) + std::fabs(dx);
    };
    b.bias_of(far, [](double n, auto slope) { return -slope * n; }, slopes);
    b.place(patches);
  }
};

}  // namespace

RELPOS_SCHEME(alibi_2d, ALiBi2D, "ALiBi2D",
              "a penalty that grows linearly with the distance of two patches of an image",
              "Baevski et al. 2023, Efficient Self-supervised Learning with Contextualized Target "
              "Representations, section 3.2")

}  // namespace relpos
