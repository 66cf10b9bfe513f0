// Schemes that a program registers, as one outside of namespace relpos writes them.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "relpos/relpos.h"
#include "testing/schemes.h"

namespace {

// distance_bias with a table of its own, and KERPLE's formula beside it.
struct Near {
  int64_t heads = 0, reach = 4;

  void options(relpos::OptionList& o) {
    o.required("heads", heads, "query heads");
    o.size("reach", reach, "distances up to it have a number of their own");
  }

  void terms(relpos::Builder& b) const {
    b.require(reach % 2 == 0, "reach: expected an even number, got ", reach);
    const relpos::Source table = b.parameter("table", {heads, 2 * reach + 1},
                                             relpos::Init::constant(0.5), "a number a distance"),
                         slopes =
                             b.parameter("slopes", {heads}, relpos::Init::constant(1), "a head's");
    b.bias(relpos::ClassMap::clamp(-reach, reach), table);
    b.bias([](double delta, auto slope) { return -slope * relpos::ln(1 + relpos::abs(delta)); },
           slopes);
  }
};

const char* const kSource = "tests";
// Before main, when not all of the library's own objects are made.
const relpos::Scheme& near_scheme = relpos::register_scheme<Near>("near", "Near", "bias", kSource);

relpos::Position near_position(const relpos::Tensor& table, const relpos::Tensor& slopes) {
  relpos::Position position = relpos::parse_position("near", {{"heads", int64_t{2}}});
  position.parts[0].parameters = {table.view(), slopes.view()};
  return position;
}

}  // namespace

namespace relpos {
namespace {

using plain::error_of;
using plain::expect_error;

TEST(Registered, IsFoundLikeAnyOther) {
  EXPECT_EQ(find_scheme("near"), &near_scheme);
  const std::vector<const Scheme*> registered = registered_schemes();
  EXPECT_NE(std::ranges::find(registered, &near_scheme), registered.end());
  EXPECT_EQ(std::ranges::count(schemes(), "near", &Scheme::name), 0);
  EXPECT_EQ(near_scheme.class_name, "Near");
  EXPECT_EQ(near_scheme.source, kSource);
  const Position position = parse_position("rope(layout=half, head_dim=4)+near(heads=2, reach=6)");
  EXPECT_EQ(&position.parts[1].scheme(), &near_scheme);
  EXPECT_EQ(position.parts[1].specs()[0].shape, (std::vector<int64_t>{2, 13}));
  EXPECT_EQ(position_text(position), "rope(head_dim=4, layout=half)+near(heads=2, reach=6)");
  EXPECT_EQ(term_kinds(position.parts[1]), std::vector<std::string>{"distance bias"});
  expect_error([] { parse_position("neer"); }, "no scheme 'neer'");
  expect_error([] { parse_position("neer"); }, "did you mean 'near'?");
  expect_error([] { parse_position("near"); }, "near: heads: missing; expected an int");
  expect_error([] { parse_position("near(heads=2, reach=3)"); },
               "near: reach: expected an even number, got 3");
  expect_error([] { parse_position("near(heads=2, reech=3)"); }, "did you mean 'reach'?");
}

// Its call is that of the built-in schemes that say the same terms, to the last bit.
TEST(Registered, ComputesAsBuiltInSchemes) {
  const Tensor table(DType::kFloat32, {2, 9}), slopes(DType::kFloat32, {2}),
      q(DType::kFloat32, {1, 2, 7, 4}), k(DType::kFloat32, {1, 2, 9, 4});
  int drawn = 0;
  for (const Tensor* tensor : {&table, &slopes, &q, &k}) {
    for (int64_t n = 0; n < tensor->view().numel(); ++n) {
      tensor->data<float>()[n] = 0.01F * static_cast<float>(++drawn * 37 % 101);
    }
  }
  const Position own = near_position(table, slopes);
  Position same = parse_position("distance_bias+kerple_log(heads=2)");
  int64_t first = -4;
  const Tensor ones(DType::kFloat32, {2});
  std::fill_n(ones.data<float>(), 2, 1.0F);
  same.parts[0].parameters = {table.view(), {&first, DType::kInt64, {1}}};
  ASSERT_EQ(same.parts[1].specs().size(), 2U);
  for (const Tensor* numbers : {&slopes, &ones}) {
    same.parts[1].parameters.emplace_back(numbers->view().data, DType::kFloat32,
                                          std::vector<int64_t>{2, 1, 1});
  }
  const Options options{.q_offset = 2};
  const auto call = [&](const Position& position) {
    Tensor out(DType::kFloat32, q.view().dims());
    attention(q.view(), k.view(), k.view(), position, options, out.view());
    return std::vector<float>(out.data<float>(), out.data<float>() + out.view().numel());
  };
  EXPECT_EQ(call(own), call(same));
}

TEST(Registered, NamesAreRefused) {
  const auto registers = [](const std::string& name) {
    return error_of([&] { register_scheme<Near>(name, "Near", "", ""); });
  };
  for (const char* name : {"", "Near", "9near", "_near", "near-er", "near er", "nèar", "near+t5"}) {
    EXPECT_NE(registers(name).find(std::string("expected a small letter, then small letters, "
                                               "digits and '_', as positions are written in "
                                               "text, got '") +
                                   name + "'"),
              std::string::npos)
        << name;
  }
  for (const char* name : {"t5", "distance_bias"}) {
    EXPECT_NE(registers(name).find("relpos has a scheme '" + std::string(name) + "' already"),
              std::string::npos);
  }
  EXPECT_NE(registers("near").find("'near' is registered already"), std::string::npos);
  Scheme nothing;
  nothing.name = "nothing";
  expect_error([&] { register_scheme(nothing); }, "nothing: has no function");
  EXPECT_EQ(find_scheme("nothing"), nullptr);
}

TEST(Registered, ByManyThreads) {
  constexpr int kThreads = 4, kNames = 50;
  const size_t before = registered_schemes().size();
  std::vector<std::thread> threads;
  std::atomic<int> taken{0}, refused{0};
  std::vector<std::vector<const Scheme*>> found(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int n = 0; n < kNames; ++n) {
        const std::string name = "by_threads_" + std::to_string(n);
        try {
          register_scheme<Near>(name, "Near", "", "");
          ++taken;
        } catch (const Error&) {
          ++refused;
        }
        found[t].push_back(find_scheme(name));
        EXPECT_EQ(parse_position(name + "(heads=2)").parts[0].scheme().name, name);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken, kNames);
  EXPECT_EQ(refused, kNames * (kThreads - 1));
  EXPECT_EQ(registered_schemes().size(), before + kNames);
  for (int n = 0; n < kNames; ++n) {
    const std::string name = "by_threads_" + std::to_string(n);
    for (const auto& own : found) EXPECT_EQ(own[static_cast<size_t>(n)], find_scheme(name));
    EXPECT_EQ(find_scheme(name)->name, name);
  }
}

// A scheme that was never registered lives as long as a position that was made of it.
TEST(Registered, OrKeptByItsParts) {
  Part part;
  {
    const Scheme own = make_scheme<Near>("near_by_hand_with_a_name_that_is_long", "Near", "", "");
    part = make_part(own, {{"heads", int64_t{2}}});
    EXPECT_NE(&part.scheme(), &own);
  }
  const Part copy = part;
  part = {};
  EXPECT_EQ(copy.scheme().name, "near_by_hand_with_a_name_that_is_long");
  EXPECT_EQ(position_text({{copy}}), "near_by_hand_with_a_name_that_is_long(heads=2)");
  EXPECT_EQ(find_scheme(copy.scheme().name), nullptr);
  const Tensor q(DType::kFloat32, {1, 3, 2, 4});
  expect_error([&] { attention(q.view(), q.view(), q.view(), {{copy}}, {}, q.view()); },
               "near_by_hand_with_a_name_that_is_long: expected 2 parameters, got 0");
}

}  // namespace
}  // namespace relpos
