// The text of a position: parts joined by '+'; a part is NAME or NAME(OPTION=VALUE, ...); a value
// is true, false, none, a number, a word, 'quoted text' or a [list, of, numbers].
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "base/nearest.h"
#include "relpos/scheme.h"

namespace relpos {
namespace {

bool in_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.' ||
         c == '+';
}

bool in_name(char c) { return in_word(c) && c != '+'; }

std::string lowered(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

// true, false, none and numbers; the word itself where it is none of them.
OptionValue word_value(const std::string& word) {
  const std::string lower = lowered(word);
  if (lower == "true") return true;
  if (lower == "false") return false;
  if (lower == "none") return std::monostate();
  const char* begin = word.data() + (word.starts_with('+') ? 1 : 0);
  const char* end = word.data() + word.size();
  int64_t integer = 0;
  const auto [integer_end, integer_error] = std::from_chars(begin, end, integer);
  if (integer_error == std::errc() && integer_end == end) return integer;
  double number = 0.0;
  const auto [number_end, number_error] = std::from_chars(begin, end, number);
  if (number_end == end && begin != end) {
    if (number_error == std::errc()) return number;
    throw_error(ErrorKind::kValue, "position: the number ", word, " does not fit float64");
  }
  return word;
}

class Parser {
 public:
  Parser(std::string_view text, const OptionValues& defaults) : text_(text), defaults_(defaults) {}

  Position parse() {
    Position position;
    if (skip_space() == '\0') return position;
    while (true) {
      position.parts.push_back(part());
      if (skip_space() == '\0') return position;
      if (!take('+')) fail("expected '+' or the end");
    }
  }

 private:
  // The next character that is no space, '\0' at the end.
  char skip_space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    if (at_ == text_.size()) return '\0';
    if (text_[at_] == '\0') fail("expected text without zero bytes");
    return text_[at_];
  }

  bool take(char c) {
    if (skip_space() != c) return false;
    ++at_;
    return true;
  }

  [[noreturn]] void fail(const std::string& what) const {
    const std::string got =
        at_ == text_.size() ? "the end" : "'" + std::string(text_.substr(at_, 1)) + "'";
    throw_error(ErrorKind::kValue, "position: ", what, " at character ", at_ + 1, " of \"", text_,
                "\", got ", got);
  }

  template <typename Accept>
  std::string run(Accept accept, const char* what) {
    skip_space();
    const size_t begin = at_;
    while (at_ < text_.size() && accept(text_[at_])) ++at_;
    if (at_ == begin) fail(std::string("expected ") + what);
    return std::string(text_.substr(begin, at_ - begin));
  }

  Part part() {
    skip_space();
    const size_t begin = at_;
    const std::string name = run(in_name, "the name of a scheme");
    const Scheme* scheme = find_scheme(name);
    if (scheme == nullptr) {
      std::vector<std::string> names;
      for (const Scheme& known : schemes()) names.push_back(known.name);
      for (const Scheme& known : term_schemes()) names.push_back(known.name);
      for (const Scheme* known : registered_schemes()) names.push_back(known->name);
      throw_error(ErrorKind::kValue, "position: no scheme '", name, "' at character ", begin + 1,
                  " of \"", text_, "\"", suggestion(name, names));
    }
    OptionValues given;
    if (take('(') && !take(')')) {
      do {
        given.push_back(option());
      } while (take(','));
      if (!take(')')) fail("expected ',' or ')'");
    }
    fill_required(*scheme, given);
    return make_part(*scheme, given);
  }

  std::pair<std::string, OptionValue> option() {
    std::string name = run(in_name, "the name of an option");
    if (!take('=')) fail("expected '=' after '" + name + "'");
    return {std::move(name), value()};
  }

  OptionValue value() {
    const char next = skip_space();
    if (next == '\'' || next == '"') return quoted(next);
    if (take('[')) return list();
    return word_value(run(in_word, "a value"));
  }

  std::string quoted(char quote) {
    std::string word;
    for (++at_; at_ < text_.size() && text_[at_] != quote; ++at_) {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) ++at_;
      word += text_[at_];
    }
    if (at_ == text_.size()) fail(std::string("expected a closing ") + quote);
    ++at_;
    return word;
  }

  std::vector<double> list() {
    std::vector<double> numbers;
    if (take(']')) return numbers;
    do {
      skip_space();
      const size_t begin = at_;
      const OptionValue number = word_value(run(in_word, "a number"));
      if (const auto* integer = std::get_if<int64_t>(&number)) {
        numbers.push_back(static_cast<double>(*integer));
      } else if (const auto* real = std::get_if<double>(&number)) {
        numbers.push_back(*real);
      } else {
        at_ = begin;
        fail("expected a number");
      }
    } while (take(','));
    if (!take(']')) fail("expected ',' or ']'");
    return numbers;
  }

  void fill_required(const Scheme& scheme, OptionValues& given) const {
    const auto find = [](const OptionValues& items, const OptionSpec& spec) {
      return std::find_if(items.begin(), items.end(),
                          [&](const auto& item) { return spec.goes_by(item.first); });
    };
    for (const OptionSpec& spec : scheme.options) {
      if (!spec.required || find(given, spec) != given.end()) continue;
      const auto fallback = find(defaults_, spec);
      if (fallback != defaults_.end()) given.push_back(*fallback);
    }
  }

  std::string_view text_;
  const OptionValues& defaults_;
  size_t at_ = 0;
};

std::string number_text(double number) {
  if (number == 0.0 && std::signbit(number)) return "-0.0";  // "-0" would read as an integer
  char digits[32];
  const auto [end, error] = std::to_chars(digits, digits + sizeof digits, number);
  return error == std::errc() ? std::string(digits, end) : "nan";
}

std::string word_text(const std::string& word) {
  const bool bare = !word.empty() && std::all_of(word.begin(), word.end(), in_name) &&
                    std::isalpha(static_cast<unsigned char>(word[0])) != 0 &&
                    std::holds_alternative<std::string>(word_value(word));
  if (bare) return word;
  std::string text = "'";
  for (char c : word) {
    if (c == '\'' || c == '\\') text += '\\';
    text += c;
  }
  return text + "'";
}

}  // namespace

std::string option_text(const OptionValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* integer = std::get_if<int64_t>(&value)) return std::to_string(*integer);
  if (const auto* number = std::get_if<double>(&value)) return number_text(*number);
  if (const auto* word = std::get_if<std::string>(&value)) return word_text(*word);
  if (const auto* list = std::get_if<std::vector<double>>(&value)) {
    std::string text;
    for (double number : *list) text += (text.empty() ? "" : ", ") + number_text(number);
    return "[" + text + "]";
  }
  return "none";
}

Position parse_position(std::string_view text, const OptionValues& defaults) {
  return Parser(text, defaults).parse();
}

std::string position_text(const Position& position) {
  std::string text;
  for (const Part& part : position.parts) {
    std::string options;
    for (const OptionSpec& spec : part.scheme().options) {
      for (const auto& [name, value] : part.options().items()) {
        if (name != spec.name) continue;
        const std::string written = option_text(value);
        if (!spec.required && written == option_text(spec.fallback)) continue;
        options += (options.empty() ? "" : ", ") + name + "=" + written;
      }
    }
    text += (text.empty() ? "" : "+") + part.scheme().name;
    if (!options.empty()) text += "(" + options + ")";
  }
  return text;
}

}  // namespace relpos
