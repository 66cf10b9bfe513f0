// What a Builder refuses of a scheme's author when the position is made, so that no call reads beyond a
// tensor or calls a function that is missing.
#include <gtest/gtest.h>

#include <functional>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::expect_error;

const Init kZero = Init::constant(0);
const ClassMap kMap = ClassMap::clamp(-1, 1);

Source table(Builder& b, const std::vector<int64_t>& shape = {2, 3}) {
  return b.parameter("table", shape, kZero, "");
}

Source whole(Builder& b, const std::vector<int64_t>& shape) {
  return b.integers("whole", shape, 3, "");
}

void refused(const std::function<void(Builder&)>& terms, const char* words) {
  Scheme toy;
  toy.name = "toy";
  expect_error([&] { make_recipe(toy, {}, terms); }, words);
}

TEST(Builder, RefusesDeclarations) {
  refused([](Builder& b) { b.parameter("", {2}, kZero, ""); }, "toy: '': expected a name");
  refused([](Builder& b) { table(b), table(b); },
          "toy: 'table': expected a name that no other parameter or input has");
  refused([](Builder& b) { table(b, {kHeads, 3}); },
          "toy: table: only inputs have sizes that a call decides");
  refused([](Builder& b) { table(b, {1, 1, 1, 1, 1, 1, 1}); }, "table: expected at most 6 axes");
  refused([](Builder& b) { table(b, {kLargestSize, kLargestSize}); }, "toy: ");
  refused([](Builder& b) { b.parameter("table", {2, 3}, Init::each({1, 2, 3}), ""); },
          "toy: table: init: expected one number, or one for each of 6, got 3");
  refused([](Builder& b) { whole(b, {1}), table(b); }, "parameters are declared before inputs");
}

TEST(Builder, RefusesViewsOfSources) {
  refused([](Builder& b) { b.bias(kMap, Source()); },
          "toy: bias: expected a table [H, M] or [1, M], got a source that this scheme did not "
          "declare");
  refused([](Builder& b) { b.bias(kMap, table(b, {2, 3, 4})); },
          "toy: bias: expected a table [H, M] or [1, M], got table with 3 axes");
  refused([](Builder& b) { b.bias(kMap, whole(b, {2, 3})); }, "got the integers whole");
  refused([](Builder& b) { b.bias(kMap, table(b, {2, 3, 4})[2]); },
          "toy: table: expected an entry below 2, got 2");
  refused([](Builder& b) { b.bias(kMap, table(b, {2, 3, 4})[-1]); }, "got -1");
  refused([](Builder& b) { b.bias(kMap, b.input("x", {kBatch, 2, 3}, kZero, "")[0]); },
          "toy: x: an entry is one of an axis whose size no call decides");
  refused([](Builder& b) { table(b, {2}).transposed(); }, "transposed: expected two axes or more");
  refused([](Builder& b) { table(b, {})[0]; }, "[]: expected an axis, got a number");
}

TEST(Builder, RefusesTermsOfOtherRanks) {
  refused([](Builder& b) { b.rows(kMap, table(b, {3})); }, "toy: rows: expected a table [M, r]");
  refused(
      [](Builder& b) {
        const Source rows = table(b);
        b.rows(kMap, rows, {.factor = b.input("f", {kBatch, 2, 3}, kZero, "")});
      },
      "toy: rows: expected a factor [B, H, Lq, r], got f with 3 axes");
  refused(
      [](Builder& b) {
        const Source rows = table(b);
        b.rows(kMap, rows, {.added = rows[0]});
      },
      "toy: rows: expected added vectors [H, r]");
  refused([](Builder& b) { b.columns(kMap, table(b, {3})); }, "toy: columns: expected a table");
  refused([](Builder& b) { b.values(kMap, table(b, {3})); }, "toy: values: expected a table");
  refused([](Builder& b) { b.key_bias(table(b, {3})); }, "toy: key_bias: expected values");
  refused([](Builder& b) { b.query_added(table(b, {3})); }, "toy: query_added: expected vectors");
  refused([](Builder& b) { b.sink(table(b)); }, "toy: sink: expected scores [H] or [B, H, Lq]");
  refused([](Builder& b) { b.slopes(table(b), std::nullopt); },
          "toy: slopes: expected numbers [H]");
  refused([](Builder& b) { b.projected_rows(2, table(b, {6}), [](int64_t, double*) {}); },
          "toy: projected_rows: expected weights");
  refused(
      [](Builder& b) { b.bias_sum(0, [](double delta, auto x) { return delta * x; }, table(b)); },
      "toy: bias: a formula needs a source");
  refused(
      [](Builder& b) {
        b.bias([](double delta, auto x) { return delta * x; }, b.input("x", {kHeads}, kZero, ""));
      },
      "toy: x: this term reads parameters, whose sizes no call decides");
}

TEST(Builder, RefusesMapsThatAreNotGiven) {
  refused([](Builder& b) { b.rows(GivenMap{}, table(b)); },
          "toy: rows: expected the first distance [1] of a map, got none");
  refused(
      [](Builder& b) {
        const Source rows = table(b);
        b.rows(GivenMap{.first = rows[0]}, rows);
      },
      "got table, which integers() did not declare");
  refused(
      [](Builder& b) {
        const Source rows = table(b);
        b.values(GivenMap{.first = whole(b, {2})}, rows);
      },
      "toy: values: expected one first distance, got 2");
  refused(
      [](Builder& b) {
        const Source rows = table(b);
        b.columns(GivenMap{.kind = GivenMap::Kind::kRuns, .starts = whole(b, {kAny})}, rows);
      },
      "toy: columns: expected the classes [N + 1] of a map of runs, got none");
  refused(
      [](Builder& b) {
        const Source rows = table(b), starts = whole(b, {kAny});
        b.columns({GivenMap{GivenMap::Kind::kRuns, true, {}, starts, starts}}, rows);
      },
      "runs are not reversed");
}

TEST(Builder, RefusesFunctionsThatAreMissing) {
  refused([](Builder& b) { b.place(nullptr); }, "toy: place: expected a function");
  refused([](Builder& b) { b.place([](int64_t n) { return n; }, nullptr); }, "toy: place");
  refused([](Builder& b) { b.bias(kMap, table(b), Along{}); },
          "toy: along: expected a function for queries and one for keys");
  refused(
      [](Builder& b) {
        const Source rows = table(b), q = whole(b, {kBatch, kQueries});
        b.bias(kMap, rows, Along{{}, {}, q});
      },
      "toy: along: expected coordinates of keys [B, (axes,) Lk], got none");
  refused(
      [](Builder& b) {
        b.bias(kMap, Perceptron{table(b, {4, 2}), b.parameter("bias", {4}, kZero, ""),
                                b.parameter("out", {2, 4}, kZero, ""), nullptr});
      },
      "toy: perceptron: expected features of an entry");
  refused(
      [](Builder& b) {
        b.bias(kMap, Perceptron{table(b, {4, 2}), b.parameter("bias", {4}, kZero, ""),
                                b.parameter("out", {2, 5}, kZero, ""), [](int64_t, double*) {}});
      },
      "with one hidden size");
  refused([](Builder& b) { b.bias(2, Network{}); }, "network: expected a feature");
  refused(
      [](Builder& b) {
        Network network;
        network.feature.value = [](double delta, const double*) { return delta; };
        network.layers = {{table(b, {2, 3}), b.parameter("bias", {2}, kZero, "")}};
        b.bias(2, std::move(network));
      },
      "toy: network: expected weights [2, 1] of a layer, got 6 numbers");
}

TEST(Builder, RefusesRotations) {
  refused(
      [](Builder& b) {
        Rotation turn;
        turn.angles = Rotation::ByHead();
        b.rotation(turn);
      },
      "toy: rotation: expected angles by position; TurnBy says what replaces them");
  refused([](Builder& b) { b.rotation({}, TurnBy::Coordinates{}); }, "expected a function");
  refused([](Builder& b) { b.rotation({}, TurnBy::Length{}); }, "expected a function");
  refused(
      [](Builder& b) {
        b.rotation({}, TurnBy::HeadFrequencies{table(b), [](int, int64_t n) { return n; }});
      },
      "toy: rotation: expected frequencies [axes, Hk or 1, pairs], got table with 2 axes");
  refused(
      [](Builder& b) {
        const Source all = table(b);
        b.rotation({}, TurnBy::GivenCoordinates{{0}, all, all});
      },
      "toy: rotation: expected coordinates of queries [B, axes, Lq]");
  refused(
      [](Builder& b) {
        const Source all = table(b);
        b.rotation({}, TurnBy::Tables{all, all, all, all});
      },
      "toy: rotation: expected cosines and sines [B, (Hk,) L, pairs]");
}

}  // namespace
}  // namespace relpos
