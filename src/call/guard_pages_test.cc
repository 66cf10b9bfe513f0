// Every buffer of every entry begins right behind an inaccessible page or ends right before one, in any
// layout: no call touches a byte beyond it, writes to one between its elements or to an input, and every
// result has the bits of the same call on plain memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <string>
#include <vector>

#include "base/sanitized.h"
#include "kernels/block/kernels.h"
#include "testing/entries.h"
#include "testing/fenced.h"

namespace relpos {
namespace {

using entries::Case;
using entries::Entry;
using entries::Rng;
using fenced::Edge;
using fenced::Fenced;
using fenced::Layout;

// The numbers of a tensor whose first axis with several entries has those of the first in all.
Tensor shared(const Tensor& numbers) {
  const std::vector<int64_t> shape = numbers.view().dims();
  if (shape.empty() || numbers.view().numel() == 0) return numbers;
  const size_t axis = fenced::shared_axis(shape);
  TensorView from = numbers.view();
  from.strides[axis] = 0;
  Tensor to(from.dtype, shape);
  int64_t at = 0;
  for_each_offset(from, [&](int64_t offset) { to.view().store(at++, from.load(offset)); });
  return to;
}

// Chooses a layout for each tensor by seed, so that two of one seed give the same numbers.
class SeededMaker : public entries::Maker {
 public:
  explicit SeededMaker(uint64_t seed) : rng_(seed) {}

  TensorView input(Tensor numbers, bool free) override {
    auto layout = static_cast<Layout>(entries::draw(rng_, 0, fenced::kLayouts - 1));
    if (layout == Layout::kShared && !free) layout = Layout::kPlain;
    return placed(layout == Layout::kShared ? shared(numbers) : numbers, layout, shift());
  }
  TensorView gapless(Tensor numbers) override { return placed(numbers, Layout::kPlain, 0); }
  TensorView output(DType dtype, const std::vector<int64_t>& shape) override {
    auto layout = static_cast<Layout>(entries::draw(rng_, 0, fenced::kLayouts - 1));
    if (layout == Layout::kShared) layout = Layout::kPlain;
    outputs_.push_back(room(dtype, shape, layout, shift()));
    return outputs_.back();
  }
  // The bits of every output, in row-major order.
  std::vector<uint64_t> bits() const {
    std::vector<uint64_t> all;
    for (const TensorView& view : outputs_) {
      for_each_offset(view, [&](int64_t at) {
        all.push_back(view.dtype == DType::kInt64 ? static_cast<uint64_t>(view.load_int(at))
                                                  : std::bit_cast<uint64_t>(view.load(at)));
      });
    }
    return all;
  }

 protected:
  Rng& rng() { return rng_; }

 private:
  virtual TensorView placed(const Tensor& numbers, Layout layout, int64_t shift) = 0;
  virtual TensorView room(DType dtype, const std::vector<int64_t>& shape, Layout layout,
                          int64_t shift) = 0;
  // Most tensors touch their page; others start at any address.
  int64_t shift() { return entries::chance(rng_, 0.2) ? entries::draw(rng_, 1, 63) : 0; }

  Rng rng_;
  std::vector<TensorView> outputs_;
};

class Fences final : public SeededMaker {
 public:
  Fences(uint64_t seed, Edge edge) : SeededMaker(seed), edge_(edge) {}
  bool kept_outside() const {
    return std::all_of(fences_.begin(), fences_.end(),
                       [](const Fenced& fence) { return fence.kept_outside(); });
  }

 private:
  TensorView placed(const Tensor& numbers, Layout layout, int64_t shift) override {
    const Fenced& fence =
        fences_.emplace_back(numbers.view().dtype, numbers.view().dims(), layout, edge_, shift);
    int64_t n = 0;
    for_each_offset(fence.view(),
                    [&](int64_t at) { fence.view().store(at, numbers.view().load(n++)); });
    fence.seal();
    return fence.view();
  }
  TensorView room(DType dtype, const std::vector<int64_t>& shape, Layout layout,
                  int64_t shift) override {
    return fences_.emplace_back(dtype, shape, layout, edge_, shift).view();
  }

  Edge edge_;
  std::list<Fenced> fences_;
};

class Plain final : public SeededMaker {
 public:
  using SeededMaker::SeededMaker;

 private:
  TensorView placed(const Tensor& numbers, Layout, int64_t) override {
    return memory_.emplace_back(numbers).view();
  }
  TensorView room(DType dtype, const std::vector<int64_t>& shape, Layout, int64_t) override {
    return memory_.emplace_back(dtype, shape).view();
  }

  std::list<Tensor> memory_;
};

// "" and every scheme that is not given numbers of a call, alone or with a sink or a second one.
const std::vector<std::string> kPositions{
    "",
    "alibi",
    "t5",
    "shaw(max_distance=9)",
    "rope(layout=half)",
    "alibi+attention_sink",
    "rope(layout=interleaved)+t5",
    "deberta",
    "music_transformer(max_length=40)",
    "transformer_xl",
    "xlnet(segments=true)",
    "rope_mixed(grid=[12])",
    "swin(window=[12])",
    "layout",
    "relative_key(positions=140)",
    "vits(window_size=4)",
    "forgetting",
    "wavlm",
    "prophetnet",
    "inkling",
    "conformer",
    "enformer",
    "axial_deeplab(span=140)",
    "bias_rpe(max_distance=12)",
    "cpm_ant",
    "dynamic_bias",
    "fire",
    "kerple_log",
    "sandwich",
    "tisa",
    "udop",
    "xpos",
    "mrope",
    "rope_axial(grid=[12])",
    "rotary_tables(layout=half)",
    "botnet(grid=[12])",
    "decomposed(grid=[12])",
    "gemma_audio",
    "pair_bias",
    "pair_rows",
    "row_table",
    "column_table",
    "value_table",
    "distance_bias",
    "slopes",
    "key_bias",
    "query_added",
    "turn",
};

constexpr int64_t kTails = 130;

// Sizes of the n-th case: those of 130 in a row have every head size and every length once.
Case case_of(uint64_t n) {
  Rng rng(n);
  const auto tail = [n](uint64_t factor) { return static_cast<int64_t>(n * factor % kTails) + 1; };
  Case c;
  c.seed = n;
  c.position = kPositions[static_cast<size_t>(rng() % kPositions.size())];
  c.dtype = std::array{DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                       DType::kFloat64}[static_cast<size_t>(entries::draw(rng, 0, 3))];
  c.batch = entries::draw(rng, 1, 2);
  c.kv_heads = entries::draw(rng, 1, 2);
  c.heads = c.kv_heads * entries::draw(rng, 1, 2);
  c.head_dim = tail(1);
  c.value_dim = entries::chance(rng, 0.5) ? c.head_dim : tail(77);
  c.keys = tail(37);
  c.queries = std::array{c.keys, tail(51), entries::draw(rng, 1, 16)}[rng() % 3];
  c.threads = 1;
  c.path = entries::chance(rng, 0.2) ? Path::kReference : Path::kAuto;
  return c;
}

// What a fault says before it ends the process: the case.
std::array<char, 512> running{};

void report_fault(int signal) {
  const size_t length = std::char_traits<char>::length(running.data());
  [[maybe_unused]] const auto written = write(STDERR_FILENO, running.data(), length);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

enum class Result { kRefused, kRight, kWrong };

Result run(const Entry& entry, const Case& c, Edge edge) {
  Fences fences(c.seed, edge);
  Plain plain(c.seed);
  try {
    entry.prepare(c, plain)();
  } catch (const Error&) {
    return Result::kRefused;
  }
  entry.prepare(c, fences)();
  return fences.kept_outside() && fences.bits() == plain.bits() ? Result::kRight : Result::kWrong;
}

// Runs the entries on every step-th case; ends the process, with 0 where all went right and every entry
// took many of them.
[[noreturn]] void run_cases(bool kernels_alone, uint64_t step) {
  if (!kSanitized) {
    std::signal(SIGSEGV, report_fault);
    std::signal(SIGBUS, report_fault);
  }
  bool failed = false;
  for (const Entry& entry : entries::kEntries) {
    if (kernels_alone && !entry.by_kernels()) continue;
    uint64_t taken = 0, tried = 0;
    for (uint64_t n = 0; n < kTails; n += step) {
      Case c = case_of(n);
      const Edge edge = n % 2 == 0 ? Edge::kBehind : Edge::kBefore;
      for (const bool bare : {false, true}) {
        if (bare || (entry.of_part() && c.position.empty())) {
          c.position = entry.of_part() ? "rope(layout=half)" : "";
        }
        const std::string line = std::string("guard pages: ") + entry.name + ", " + c.text() + "\n";
        std::snprintf(running.data(), running.size(), "%s", line.c_str());
        const Result result = run(entry, c, edge);
        if (result == Result::kWrong) {
          std::fputs(line.c_str(), stderr);
          failed = true;
        }
        taken += result == Result::kRefused ? 0 : 1;
        if (result != Result::kRefused) break;
      }
      ++tried;
    }
    if (taken * 3 < tried) {
      std::fprintf(stderr, "guard pages: %s took %d of %d cases\n", entry.name,
                   static_cast<int>(taken), static_cast<int>(tried));
      failed = true;
    }
  }
  std::exit(failed ? 1 : 0);
}

std::vector<std::string> targets() {
  std::vector<std::string> names;
  for (const Kernels& kernels : usable_kernels()) names.emplace_back(kernels.name);
  for (const MatrixUnit& unit : usable_units()) names.emplace_back(unit.name);
  for (const MatrixUnit& unit : emulated_units()) names.emplace_back(unit.name);
  return names;
}

class GuardPages : public testing::TestWithParam<std::string> {};

// In a process of its own, since a target is chosen once and a fault ends it.
TEST_P(GuardPages, NothingOutsideIsTouched) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const char* before = std::getenv("RELPOS_TARGET");
  const std::string old = before == nullptr ? "" : before;
  setenv("RELPOS_TARGET", GetParam().c_str(), 1);
  const bool kernels_alone = GetParam() != targets().front();
  const bool emulated = GetParam().find("emulated") != std::string::npos;
  const uint64_t step = kSanitized ? 11 : emulated ? 3 : 1;
  EXPECT_EXIT(run_cases(kernels_alone, step), testing::ExitedWithCode(0), "");
  setenv("RELPOS_TARGET", old.c_str(), 1);
}

INSTANTIATE_TEST_SUITE_P(Targets, GuardPages, testing::ValuesIn(targets()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace relpos
