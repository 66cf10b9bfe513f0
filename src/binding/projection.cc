#include "binding/projection.h"

#include <algorithm>
#include <memory>

#include "base/buffer.h"
#include "base/table_math.h"
#include "base/zeros.h"
#include "binding/by_distance.h"

namespace relpos {
namespace {

constexpr int64_t kPiece = 64;  // distances of one task

// Features of `count` distances from first + from on, rows of `stride`, zeros past the width.
template <typename T>
void fill_features(const Projection& p, int64_t from, int64_t count, int64_t stride, T* rows) {
  const Buffer<double> made(count * p.width);
  p.features(p.first + from, count, made.get());
  for (int64_t m = 0; m < count; ++m) {
    check_cancelled();
    const double* one = made.get() + m * p.width;
    T* row = rows + m * stride;
    for (int64_t w = 0; w < p.width; ++w) row[w] = static_cast<T>(one[w]);
    std::fill(row + p.width, row + stride, T{0});
  }
}

template <typename T>
TermData owned_table(const Projection& p, std::shared_ptr<Buffer<T>> memory, DType dtype,
                     int64_t stride) {
  TermData data;
  data.view =
      TensorView(memory->get(), dtype, {p.heads, p.span, p.head_dim}, {p.head_dim, stride, 1});
  data.owned = std::move(memory);
  return data;
}

int64_t pieces(const Projection& p) { return (p.span + kPiece - 1) / kPiece; }

TermData table_in_double(const Projection& p, const std::vector<double>& weight) {
  const int64_t rows = p.heads * p.head_dim;
  auto memory = std::make_shared<Buffer<double>>(p.span * rows);
  in_parallel(p.threads, pieces(p), [&](int64_t piece) {
    const int64_t from = piece * kPiece, count = std::min(kPiece, p.span - from);
    std::vector<double> features(static_cast<size_t>(count * p.width));
    fill_features(p, from, count, p.width, features.data());
    CancelTicks tick;
    for (int64_t m = 0; m < count; ++m) {
      for (int64_t n = 0; n < rows; ++n) {
        tick(p.width);
        double sum = 0.0;
        for (int64_t w = 0; w < p.width; ++w) {
          sum += features[static_cast<size_t>(m * p.width + w)] *
                 weight[static_cast<size_t>(n * p.width + w)];
        }
        (*memory)[(from + m) * rows + n] = sum;
      }
    }
  });
  return owned_table(p, std::move(memory), DType::kFloat64, rows);
}

TermData table_in_float(const Projection& p, const std::vector<double>& weight) {
  const int64_t rows = p.heads * p.head_dim, padded = round_up(rows, kLanes);
  const Buffer<float> turned(p.width * padded);  // weight transposed
  in_parallel(p.threads, (p.width + kLanes - 1) / kLanes, [&](int64_t strip) {
    const int64_t first = strip * kLanes, end = std::min(first + kLanes, p.width);
    CancelTicks tick;
    for (int64_t n = 0; n < padded; ++n) {
      tick(end - first);
      for (int64_t w = first; w < end; ++w) {
        turned[w * padded + n] =
            n < rows ? static_cast<float>(weight[static_cast<size_t>(n * p.width + w)]) : 0.0F;
      }
    }
  });
  auto memory = std::make_shared<Buffer<float>>(p.span * padded);
  in_parallel(p.threads, pieces(p), [&](int64_t piece) {
    const int64_t from = piece * kPiece, count = std::min(kPiece, p.span - from);
    const Buffer<float> features(count * p.width);
    fill_features(p, from, count, p.width, features.get());
    matrix_product(count, padded, p.width, features.get(), p.width, 1, turned.get(), padded,
                   memory->get() + from * padded, padded);
  });
  return owned_table(p, std::move(memory), DType::kFloat32, padded);
}

}  // namespace

TermData Projection::blank() const {
  TermData data;
  auto zero = std::make_shared<double>(0.0);
  data.view = TensorView(zero.get(), DType::kFloat64, {heads, span, head_dim}, {0, 0, 0});
  data.owned = std::move(zero);
  return data;
}

std::vector<double> Projection::features_of_all() const {
  std::vector<double> rows(static_cast<size_t>(span * width));
  fill_features(*this, 0, span, width, rows.data());
  return rows;
}

TermData Projection::table(const std::vector<double>& weight) const {
  return in_double ? table_in_double(*this, weight) : table_in_float(*this, weight);
}

std::vector<double> Projection::weight_gradient(const std::vector<double>& table_gradient) const {
  const int64_t padded = round_up(width, kLanes);
  std::vector<double> sums = zeros(heads * head_dim * width);
  constexpr int64_t kSmall = int64_t{1} << 20;  // products that are too few to round for speed
  if (in_double || heads * head_dim * width <= kSmall / std::max<int64_t>(span, 1)) {
    std::vector<double> all = zeros(span * width);
    in_parallel(threads, pieces(*this), [&](int64_t piece) {
      const int64_t from = piece * kPiece;
      fill_features(*this, from, std::min(kPiece, span - from), width, all.data() + from * width);
    });
    in_parallel(threads, heads * head_dim, [&](int64_t n) {
      const int64_t h = n / head_dim, d = n % head_dim;
      double* sum = sums.data() + n * width;
      CancelTicks tick;
      for (int64_t m = 0; m < span; ++m) {
        tick(width);
        const double upstream = table_gradient[static_cast<size_t>((h * span + m) * head_dim + d)];
        for (int64_t w = 0; w < width; ++w)
          sum[w] += upstream * all[static_cast<size_t>(m * width + w)];
      }
    });
    return sums;
  }
  // Float products of some distances at a time, added up in double.
  constexpr int64_t kAtATime = 4 * kPiece;
  const Buffer<float> all(kAtATime * padded);
  for (int64_t from = 0; from < span; from += kAtATime) {
    const int64_t count = std::min(kAtATime, span - from);
    in_parallel(threads, (count + kPiece - 1) / kPiece, [&](int64_t piece) {
      const int64_t at = piece * kPiece;
      fill_features(*this, from + at, std::min(kPiece, count - at), padded,
                    all.get() + at * padded);
    });
    in_parallel(threads, heads, [&](int64_t h) {
      const double* upstream = table_gradient.data() + (h * span + from) * head_dim;
      const Buffer<float> narrow(count * head_dim), product(head_dim * padded);
      for (int64_t n = 0; n < count * head_dim; ++n) narrow[n] = static_cast<float>(upstream[n]);
      matrix_product(head_dim, padded, count, narrow.get(), 1, head_dim, all.get(), padded,
                     product.get(), padded);
      CancelTicks tick;
      for (int64_t d = 0; d < head_dim; ++d) {
        tick(width);
        double* sum = sums.data() + (h * head_dim + d) * width;
        for (int64_t w = 0; w < width; ++w) sum[w] += static_cast<double>(product[d * padded + w]);
      }
    });
  }
  return sums;
}

}  // namespace relpos
