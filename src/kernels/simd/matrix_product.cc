#include "base/matrix_product.h"

#include "kernels/block/long_product.h"

namespace relpos {

void matrix_product(int64_t M, int64_t N, int64_t K, const float* a, int64_t row_stride,
                    int64_t k_stride, const float* b, int64_t ldb, float* c, int64_t ldc) {
  long_product(tile_kernels(), M, N, K, a, row_stride, k_stride, b, ldb, c, ldc, false);
}

}  // namespace relpos
