// Elements more than 2^32 of them apart, in memory of which little is ever used; and sizes near 2^62.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "base/strided.h"
#include "testing/entries.h"
#include "testing/region.h"
#include "testing/schemes.h"

namespace relpos {
namespace {

using entries::Case;

constexpr int64_t kFar = (int64_t{1} << 32) + 9, kHalf = (int64_t{1} << 31) + 5;

// The first axis with several entries reaches beyond 2^32 elements, forwards or backwards; one behind it
// beyond 2^31, where the first has two.
std::vector<int64_t> far_strides(const std::vector<int64_t>& shape, bool backwards) {
  std::vector<int64_t> strides(shape.size(), 1);
  std::vector<size_t> axes;  // with several entries
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] > 1) axes.push_back(axis);
  }
  const size_t far = std::min<size_t>(axes.size(), axes.size() > 1 && shape[axes[0]] == 2 ? 2 : 1);
  int64_t step = 1;
  for (size_t n = axes.size(); n-- > far;) {
    strides[axes[n]] = step;
    step *= shape[axes[n]];
  }
  if (far == 2) strides[axes[1]] = kHalf / (shape[axes[1]] - 1) + 1;
  if (far >= 1) strides[axes[0]] = (far == 2 ? kFar + kHalf : kFar) / (shape[axes[0]] - 1) + 1;
  if (backwards && far >= 1) strides[axes[0]] *= -1;
  return strides;
}

class FarMaker : public entries::Maker {
 public:
  // Tensors lie at these bytes from each other; their rows have fewer.
  static constexpr int64_t kApart = int64_t{1} << 16;
  static constexpr int64_t kReach = kFar + 2 * kHalf + (int64_t{1} << 24);

  explicit FarMaker(const Region* region) : region_(region) {}

  TensorView input(Tensor numbers, bool) override {
    const TensorView to = room(numbers.view().dtype, numbers.view().dims());
    int64_t n = 0;
    for_each_offset(to, [&](int64_t at) { to.store(at, numbers.view().load(n++)); });
    return to;
  }
  TensorView gapless(Tensor numbers) override {
    return memory_.emplace_back(std::move(numbers)).view();
  }
  TensorView output(DType dtype, const std::vector<int64_t>& shape) override {
    return outputs_.emplace_back(room(dtype, shape));
  }
  std::vector<uint64_t> bits() const {
    std::vector<uint64_t> all;
    for (const TensorView& view : outputs_) {
      for_each_offset(view,
                      [&](int64_t at) { all.push_back(std::bit_cast<uint64_t>(view.load(at))); });
    }
    return all;
  }

 private:
  // In the region, else near.
  TensorView room(DType dtype, const std::vector<int64_t>& shape) {
    if (region_ == nullptr) return memory_.emplace_back(dtype, shape).view();
    const bool backwards = ++made_ % 2 == 0;
    TensorView view(region_->view({1}, DType::kUInt8).data, dtype, shape,
                    far_strides(shape, backwards));
    int64_t behind = 0;  // elements before the first
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      behind -= std::min<int64_t>(0, view.strides[axis] * (shape[axis] - 1));
    }
    view.data = static_cast<char*>(view.data) + behind * item_size(dtype) + made_ * kApart;
    return view;
  }

  const Region* region_;
  int64_t made_ = 0;
  std::list<Tensor> memory_;
  std::vector<TensorView> outputs_;
};

TEST(FarMemory, EntriesReadAndWriteBeyond2To32Elements) {
  int taken = 0;
  for (const char* position :
       {"", "t5+rope(layout=half)", "shaw(max_distance=3)", "rope_mixed(grid=[4])", "forgetting",
        "pair_rows", "transformer_xl"}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
      for (const entries::Entry& entry : entries::kEntries) {
        Case c;
        c.position = entry.of_part() && *position == '\0' ? "alibi" : position;
        c.dtype = dtype;
        c.seed = static_cast<uint64_t>(++taken);
        c.batch = c.seed % 3 == 0 ? 1 : 2;
        c.kv_heads = c.seed % 2 == 0 ? 1 : 2;
        c.queries = c.keys = 12;
        c.threads = 1;
        c.path = c.seed % 5 == 0 ? Path::kReference : Path::kAuto;
        SCOPED_TRACE(std::string(entry.name) + ", " + c.text());
        FarMaker near(nullptr);
        try {
          entry.prepare(c, near)();
        } catch (const Error&) {
          continue;  // of an entry that does not take the position
        }
        const Region region(FarMaker::kReach * 8);
        FarMaker far(&region);
        entry.prepare(c, far)();
        ASSERT_EQ(far.bits(), near.bits());
      }
    }
  }
}

// One query over so many keys that share their memory: no index of a key or of a pair has 32 bits.
TEST(FarMemory, MoreKeysThan31Bits) {
  if (std::getenv("RELPOS_FULL") == nullptr) GTEST_SKIP() << "a minute; with RELPOS_FULL=1";
  const int64_t keys = kHalf;
  const Tensor q(DType::kFloat32, {1, 1, 1, 1}), k = q, v = q, out = q;
  v.data<float>()[0] = 3.0F;
  const TensorView all_k(k.view().data, DType::kFloat32, {1, 1, keys, 1}, {0, 0, 0, 1}),
      all_v(v.view().data, DType::kFloat32, {1, 1, keys, 1}, {0, 0, 0, 1});
  const Tensor lse(DType::kFloat64, {1, 1, 1});
  attention(q.view(), all_k, all_v, {}, {}, out.view(), lse.view());
  EXPECT_NEAR(out.data<float>()[0], 3.0F, 1e-4F);
  EXPECT_NEAR(lse.view().load(0), std::log(static_cast<double>(keys)), 1e-5);
}

// What a call with these sizes does: it throws, or goes on until it is told to stop.
void expect_refused(const char* name, const std::function<void(CancelToken*)>& call) {
  SCOPED_TRACE(name);
  CancelToken token;
  token.interval = std::chrono::milliseconds(0);
  int asked = 0;
  token.poll = [&] { return ++asked > 100; };
  std::string text;
  try {
    call(&token);
    ADD_FAILURE() << "it returned";
  } catch (...) {
    text = as_error(std::current_exception()).what();
  }
  EXPECT_GT(text.size(), 10U);
}

// Each size of a call in turn near 2^62, its inputs of one element that all share.
TEST(FarMemory, SizesNear2To62AreRefused) {
  const Tensor one(DType::kFloat32, {1}), bools(DType::kBool, {1}), numbers(DType::kInt64, {1});
  const auto view = [](const Tensor& of, const std::vector<int64_t>& shape) {
    return TensorView(of.view().data, of.view().dtype, shape,
                      std::vector<int64_t>(shape.size(), 0));
  };
  for (const int64_t huge : {(int64_t{1} << 62) - 1, int64_t{1} << 62, (int64_t{1} << 62) + 1,
                             std::numeric_limits<int64_t>::max()}) {
    for (size_t axis = 0; axis < 4; ++axis) {
      for (const char* position : {"", "t5(heads=1)", "rope(head_dim=2, layout=half)"}) {
        SCOPED_TRACE(std::string(position) + ", axis " + std::to_string(axis) + " of " +
                     std::to_string(huge));
        for (const char* which : {"query", "key", "value", "all"}) {
          expect_refused(which, [&](CancelToken* token) {
            const auto of = [&](const char* name) {
              std::vector<int64_t> shape{1, 1, 2, 2};
              if (std::string(which) == "all" || std::string(which) == name) shape[axis] = huge;
              return view(one, shape);
            };
            Position where = parse_position(position);
            for (Part& part : where.parts) {
              for (const ParameterSpec& spec : part.specs()) {
                part.parameters.push_back(view(one, spec.shape));
              }
            }
            const Tensor out(DType::kFloat32, {1, 1, 2, 2});
            Options options;
            options.q_offset = Offset(0);
            options.cancel = token;
            attention(of("query"), of("key"), of("value"), where, options, out.view());
          });
        }
        expect_refused("padding", [&](CancelToken* token) {
          const Tensor q(DType::kFloat32, {1, 1, 2, 2}), out = q;
          Options options;
          options.cancel = token;
          options.key_padding_mask = view(bools, {1, huge});
          attention(q.view(), q.view(), q.view(), {}, options, out.view());
        });
        expect_refused("positions", [&](CancelToken* token) {
          const Tensor q(DType::kFloat32, {1, 1, 2, 2}), out = q;
          Options options;
          options.cancel = token;
          options.q_positions = options.k_positions = view(numbers, {huge});
          attention(q.view(), q.view(), q.view(), {}, options, out.view());
        });
        expect_refused("mask", [&](CancelToken* token) {
          const Tensor q(DType::kFloat32, {1, 1, 2, 2}), out = q;
          std::vector<int64_t> shape{1, 1, 2, 2};
          shape[axis] = huge;
          Options options;
          options.cancel = token;
          options.attn_mask = view(bools, shape);
          attention(q.view(), q.view(), q.view(), {}, options, out.view());
        });
      }
    }
    expect_refused("dense_shape", [&](CancelToken*) {
      plain::Made made("t5(heads=2)");
      dense_shape(made.part(), {huge, 4, 0}, "key");
      dense_shape(made.part(), {4, huge, 0}, "key");
    });
    expect_refused("a contiguous tensor", [&](CancelToken*) {
      const TensorView made(one.view().data, DType::kFloat32, {huge, 2});
    });
    expect_refused("a tensor with memory",
                   [&](CancelToken*) { const Tensor made(DType::kFloat32, {huge}); });
    expect_refused("far strides", [&](CancelToken*) {
      const TensorView made(one.view().data, DType::kFloat32, {2, 2}, {huge, 1});
    });
    expect_refused("an offset", [&](CancelToken*) {
      plain::Made made("t5(heads=1)");
      const Tensor q(DType::kFloat32, {1, 1, 2, 2}), out = q;
      Options options;
      options.q_offset = Offset(huge);
      attention(q.view(), q.view(), q.view(), made.position, options, out.view());
    });
    expect_refused("an option",
                   [&](CancelToken*) { parse_position("t5(heads=" + std::to_string(huge) + ")"); });
    expect_refused("rows to rotate", [&](CancelToken* token) {
      plain::Made made("rope(head_dim=2, layout=half)");
      rotate(made.part(), view(one, {huge, 2}), 0, {}, false, view(one, {2, 2}), token);
    });
  }
}

}  // namespace
}  // namespace relpos
