// Tests share these: the text of an error, schemes of the tests, and memory for parameters.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "binding/recipe.h"
#include "relpos/error.h"
#include "relpos/scheme.h"

namespace relpos::plain {

// The text of the Error that a call throws; empty where it throws none.
template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// That a call throws an Error whose text has these words.
template <typename Call>
void expect_error(Call call, std::string_view words) {
  const std::string text = error_of(call);
  EXPECT_NE(text.find(words), std::string::npos)
      << "\"" << text << "\" without \"" << words << "\"";
}

// A scheme that says these terms and takes no options.
template <void (*kTerms)(Builder&)>
const Scheme& toy_scheme() {
  struct Toy {
    void options(OptionList&) {}
    void terms(Builder& b) const { kTerms(b); }
  };
  static const Scheme scheme = make_scheme<Toy>("toy", "Toy", "", "");
  return scheme;
}

template <void (*kTerms)(Builder&)>
Part toy() {
  return make_part(toy_scheme<kTerms>(), {});
}

// A position of one scheme, as a text. Parameters and inputs have the given numbers; the others are as
// they start, or 1 where they start at random.
class Made {
 public:
  explicit Made(std::string_view text, const std::vector<std::vector<double>>& numbers = {},
                const InputSizes& of_call = {})
      : Made(parse_position(text), numbers, of_call) {}
  explicit Made(Position made, const std::vector<std::vector<double>>& numbers = {},
                const InputSizes& of_call = {})
      : position(std::move(made)) {
    for (const ParameterSpec& spec : part().specs()) {
      const size_t n = memory_.size();
      const std::vector<double>& own = n < numbers.size() ? numbers[n] : spec.init.values;
      const TensorView to =
          memory_
              .emplace_back(spec.integers() ? spec.integer : DType::kFloat64, of_call.example(spec))
              .view();
      for (size_t i = 0; i < static_cast<size_t>(to.numel()); ++i) {
        to.store(static_cast<int64_t>(i), own.empty() ? 1.0 : own[i % own.size()]);
      }
      position.parts[0].parameters.push_back(to);
    }
  }
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;

  const Part& part() const { return position.parts[0]; }
  Terms bind(const CallSizes& sizes = {}) const {
    const std::vector<bool> wants(memory_.size(), false);
    return part().recipe->bind({sizes, part().parameters, wants});
  }

  Position position;

 private:
  std::vector<Tensor> memory_;
};

}  // namespace relpos::plain
