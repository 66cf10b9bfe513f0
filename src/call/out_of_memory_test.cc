// The n-th allocation of a call fails, for every n, and so do all from it on: each entry then throws for
// want of memory or gives the right result, keeps its inputs, leaks nothing, and is right the next time.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/strided.h"
#include "io/npy.h"
#include "io/safetensors.h"
#include "relpos.h"
#include "relpos/relpos.h"
#include "testing/allocations.h"
#include "testing/entries.h"
#include "testing/files.h"
#include "testing/held.h"
#include "testing/random_results.h"

namespace relpos {
namespace {

using allocations::Failing;
using entries::Case;
using entries::Held;

// Gives the blocks that calls kept back to the system: one that is larger than all of them fails at first.
void drop_kept() {
  const Failing failing(1, Failing::kOne);
  const Buffer<char> large(static_cast<int64_t>(kKeptBytes) + 1);
}

enum class Outcome { kRight, kNoMemory, kOther };

Outcome outcome_of(const std::function<void()>& call) {
  try {
    call();
    return Outcome::kRight;
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kMemory ? Outcome::kNoMemory : Outcome::kOther;
  } catch (const std::bad_alloc&) {
    return Outcome::kNoMemory;
  } catch (...) {
    return Outcome::kOther;
  }
}

// `call` computes; `result` is all that it gave, as text or bits.
void expect_survives(
    const std::function<void()>& call, const std::function<std::string()>& result,
    const std::function<bool()>& kept = [] { return true; }) {
  call();  // a process's first allocates what stays
  const std::string right = result();
  for (const Failing::Which which : {Failing::kOne, Failing::kAllFrom}) {
    for (int64_t n = 1;; ++n) {
      SCOPED_TRACE(std::string(which == Failing::kOne ? "allocation " : "all allocations from ") +
                   std::to_string(n) + " on");
      drop_kept();
      const int64_t live = allocations::live();
      Outcome outcome{};
      bool any = false;
      {
        const Failing failing(n, which);
        outcome = outcome_of(call);
        any = Failing::any();
      }
      drop_kept();
      ASSERT_EQ(allocations::live(), live) << "leaked, or freed twice";
      ASSERT_TRUE(kept()) << "an input changed";
      ASSERT_NE(outcome, Outcome::kOther);
      if (outcome == Outcome::kRight) {
        ASSERT_EQ(result(), right);
      }
      if (!any) {
        ASSERT_GT(n, 1) << "the call allocates nothing";
        break;
      }
      call();
      ASSERT_EQ(result(), right) << "the next call";
    }
  }
}

class OutOfMemory : public testing::Test {
 protected:
  void SetUp() override {
    if (!allocations::kCanFail) GTEST_SKIP() << "the sanitizer's operator new does not fail";
  }
};

// Small, since a call is made twice for each of its allocations.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* position :
       {"", "t5+rope(layout=half)", "shaw(max_distance=2)", "deberta", "rope_mixed(grid=[4])",
        "transformer_xl", "forgetting+attention_sink", "pair_rows", "fire"}) {
    Case c;
    c.position = position;
    c.seed = 40 + all.size();
    c.kv_heads = all.size() % 2 == 0 ? 2 : 1;
    c.queries = c.keys = 5;
    c.dtype = all.size() % 3 == 2 ? DType::kBFloat16 : DType::kFloat32;
    c.path = all.size() % 4 == 3 ? Path::kReference : Path::kAuto;
    c.threads = all.size() % 5 == 4 ? 2 : 1;
    all.push_back(c);
  }
  return all;
}

// Each entry meets every third position of those that it takes, the next entry others; all with RELPOS_FULL=1, and
// one where cases are few.
TEST_F(OutOfMemory, OfEveryEntry) {
  const std::vector<Case> all = cases();
  const bool all_positions = std::getenv("RELPOS_FULL") != nullptr;
  const int step = random_terms::few_cases() ? 9 : all_positions ? 1 : 3;
  size_t turn = 0;
  for (const entries::Entry& entry : entries::kEntries) {
    int taken = 0;
    ++turn;
    for (size_t n = 0; n < all.size(); ++n) {
      const Case& c = all[(n + turn) % all.size()];
      if (!entry.by_kernels() && c.seed % 2 == 1) continue;
      SCOPED_TRACE(std::string(entry.name) + ", " + c.text());
      Held held;
      entries::Call call;
      try {
        call =
            entry.prepare(entry.of_part() && c.position.empty() ? Case{.position = "t5"} : c, held);
        call();
      } catch (const Error&) {
        continue;  // of an entry that does not take the position
      }
      if (taken++ % step != 0) continue;
      expect_survives(
          call,
          [&] {
            const std::vector<uint64_t> bits = held.bits();
            return std::string(reinterpret_cast<const char*>(bits.data()), bits.size() * 8);
          },
          [&] { return held.kept_inputs(); });
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(taken, 0) << entry.name;
  }
}

TEST_F(OutOfMemory, OfPositionsAndTheirTexts) {
  std::string text;
  for (const char* given : {"rope(head_dim=4, layout=half)+alibi(heads=2, slopes=[0.5, 0.25])",
                            "t5(heads=2, buckets=12)", "swin(heads=2, window=[3, 4])"}) {
    expect_survives([&] { text = position_text(parse_position(given)); }, [&] { return text; });
  }
  const Case c = cases()[1];
  Held held;
  entries::Rng rng(3);
  const entries::Arguments a = entries::make_arguments(c, rng, held);
  expect_survives(
      [&] {
        text =
            std::to_string(workspace_bytes(a.query, a.key, a.value, a.position, a.options, true));
      },
      [&] { return text; });
  expect_survives(
      [&] {
        text.clear();
        for (const auto& [name, value] : show_config()) text += name + "=" + value + ";";
      },
      [&] { return text; });
}

class OutOfMemoryFiles : public io::ScratchTest {};

TEST_F(OutOfMemoryFiles, OfReaders) {
  if (!allocations::kCanFail) GTEST_SKIP() << "the sanitizer's operator new does not fail";
  entries::Rng rng(5);
  const Tensor numbers = entries::drawn(rng, DType::kFloat32, {3, 5});
  const std::string npy = path("x.npy"), safetensors = path("x.safetensors");
  for (const std::string& file : {npy, safetensors}) {
    const int descriptor = ::creat(file.c_str(), 0600);
    io::Sink sink(file, descriptor);
    if (file == npy) {
      io::write_npy(sink, numbers.view());
    } else {
      io::write_safetensors(sink, {{"x", numbers.view()}, {"y", numbers.view()}});
    }
    ::close(descriptor);
  }
  Tensor read;
  const auto result = [&] {
    return std::string(static_cast<const char*>(read.view().data), 3 * 5 * sizeof(float));
  };
  expect_survives([&] { read = io::read_npy(npy); }, result);
  expect_survives(
      [&] {
        const io::SafetensorsFile file(safetensors);
        read = file.read(*file.find("y"));
      },
      result);
}

// What the functions of C return, as C++ throws it.
void expect_status(int status) {
  if (status == RELPOS_OK) return;
  if (status == RELPOS_ERROR_MEMORY) throw std::bad_alloc();
  throw std::runtime_error("another status");
}

relpos_tensor c_tensor(const TensorView& view) {
  relpos_tensor made{view.data, static_cast<int32_t>(view.dtype), view.rank, {}, {}};
  std::copy(view.shape.begin(), view.shape.end(), made.shape);
  std::copy(view.strides.begin(), view.strides.end(), made.strides);
  return made;
}

// From a text to gradients, all by one function of C after the other.
TEST_F(OutOfMemory, OfTheCLibrary) {
  entries::Rng rng(7);
  Held held;
  const auto input = [&] {
    return c_tensor(held.input(entries::drawn(rng, DType::kFloat32, {1, 2, 5, 4}), false));
  };
  const auto output = [&](const std::vector<int64_t>& shape) {
    return c_tensor(held.output(DType::kFloat32, shape));
  };
  const relpos_tensor q = input(), k = input(), v = input(), dout = input(),
                      table = c_tensor(
                          held.input(entries::drawn(rng, DType::kFloat32, {32, 2}), false)),
                      out = output({1, 2, 5, 4}), softmax = output({1, 2, 5, 2}),
                      dq = output({1, 2, 5, 4}), dtable = output({32, 2}), bias = output({2, 5, 5});
  const auto run = [&](relpos_call* call) {
    relpos_parameter parameter{};
    const int64_t window[] = {3, -1}, offsets[] = {2};
    expect_status(relpos_call_parameter(call, 0, &parameter));
    expect_status(relpos_call_set_tensor(call, parameter.name, &table));
    expect_status(relpos_call_set_ints(call, "window", window, 2));
    expect_status(relpos_call_set_ints(call, "q_offsets", offsets, 1));
    expect_status(relpos_call_set_real(call, "softcap", 5.0));
    expect_status(relpos_forward(call, &q, &k, &v, &out, nullptr, &softmax));
    const relpos_tensor* tables[] = {&dtable};
    relpos_gradients to{};
    to.out = &out;
    to.softmax = &softmax;
    to.dout = &dout;
    to.dquery = &dq;
    to.dparameters = tables;
    expect_status(relpos_backward(call, &q, &k, &v, &to));
    expect_status(relpos_dense(call, "key", 0, 5, 5, &bias));
  };
  relpos_call_new("no such scheme");  // the text of a thread's last error stays
  expect_survives(
      [&] {
        const std::unique_ptr<relpos_call, void (*)(relpos_call*)> call(
            relpos_call_new("t5(heads=2)"), relpos_call_free);
        if (call == nullptr) throw std::bad_alloc();
        run(call.get());
      },
      [&] {
        const std::vector<uint64_t> bits = held.bits();
        return std::string(reinterpret_cast<const char*>(bits.data()), bits.size() * 8);
      },
      [&] { return held.kept_inputs(); });
}

}  // namespace
}  // namespace relpos
