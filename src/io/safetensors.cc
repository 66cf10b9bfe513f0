#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

namespace relpos::io {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxHeader = int64_t{16} << 20;

struct Type {
  std::string_view name;
  int64_t bytes;
  std::optional<DType> dtype;
};
constexpr std::array<Type, 17> kTypes{{{"F32", 4, DType::kFloat32},
                                       {"F64", 8, DType::kFloat64},
                                       {"BF16", 2, DType::kBFloat16},
                                       {"F16", 2, DType::kFloat16},
                                       {"I64", 8, DType::kInt64},
                                       {"I32", 4, DType::kInt32},
                                       {"BOOL", 1, DType::kBool},
                                       {"U8", 1, {}},
                                       {"I8", 1, {}},
                                       {"U16", 2, {}},
                                       {"I16", 2, {}},
                                       {"U32", 4, {}},
                                       {"U64", 8, {}},
                                       {"C64", 8, {}},
                                       {"F8_E4M3", 1, {}},
                                       {"F8_E5M2", 1, {}},
                                       {"F8_E8M0", 1, {}}}};

const Type* find_type(std::string_view name) {
  const auto it = std::ranges::find(kTypes, name, &Type::name);
  return it == kTypes.end() ? nullptr : &*it;
}

// Builds the entries while the header is read; refuses what the format does not have, so nothing of
// the input can nest deeper than three levels.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(std::vector<SafetensorsFile::Entry>& entries) : entries_(entries) {}
  const std::string& problem() const noexcept { return problem_; }

  bool start_object(std::size_t) override {
    if (state_ == State::kStart) return go(State::kTop);
    if (state_ == State::kTopValue) {
      fields_.clear();
      if (key_ == "__metadata__") return go(State::kMetadata);
      entries_.push_back({key_, {}, {}, 0, 0});
      return go(State::kEntry);
    }
    return unexpected("an object");
  }
  bool end_object() override {
    if (state_ == State::kTop) return go(State::kDone);
    if (state_ == State::kEntry && fields_.size() != 3) {
      return refuse("tensor " + printable(entries_.back().name) +
                    " needs dtype, shape and data_offsets");
    }
    return go(State::kTop);
  }
  bool key(std::string& text) override {
    if (state_ == State::kTop) {
      if (!names_.insert(text).second) return refuse("name " + printable(text) + " appears twice");
      key_ = text;
      return go(State::kTopValue);
    }
    if (!fields_.insert(text).second) return refuse("key " + printable(text) + " appears twice");
    if (state_ == State::kMetadata) return true;
    if (text == "dtype") return go(State::kDtype);
    if (text == "shape") return go(State::kShape);
    if (text == "data_offsets") return go(State::kOffsets);
    return refuse("unknown key " + printable(text));
  }
  bool string(std::string& text) override {
    if (state_ == State::kMetadata) return true;
    if (state_ != State::kDtype) return unexpected("a string");
    entries_.back().dtype = text;
    return go(State::kEntry);
  }
  bool start_array(std::size_t) override {
    numbers_.clear();
    if (state_ == State::kShape) return go(State::kShapeArray);
    if (state_ == State::kOffsets) return go(State::kOffsetsArray);
    return unexpected("an array");
  }
  bool end_array() override {
    auto& entry = entries_.back();
    if (state_ == State::kShapeArray) {
      entry.shape = numbers_;
    } else if (numbers_.size() != 2) {
      return refuse("data_offsets of " + printable(entry.name) + " needs two numbers");
    } else {
      entry.begin = numbers_[0];
      entry.end = numbers_[1];
    }
    return go(State::kEntry);
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::kShapeArray && state_ != State::kOffsetsArray)
      return unexpected("a number");
    if (value > static_cast<number_unsigned_t>(INT64_MAX))
      return refuse("a number overflows int64");
    numbers_.push_back(static_cast<int64_t>(value));
    return true;
  }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const std::string&) override {
    return unexpected("a fraction");
  }
  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool binary(Json::binary_t&) override { return unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    return refuse("malformed JSON at byte " + std::to_string(position) + " of the header");
  }

 private:
  enum class State {
    kStart,
    kTop,
    kTopValue,
    kMetadata,
    kEntry,
    kDtype,
    kShape,
    kShapeArray,
    kOffsets,
    kOffsetsArray,
    kDone
  };
  bool go(State state) {
    state_ = state;
    return true;
  }
  bool refuse(const std::string& text) {
    if (problem_.empty()) problem_ = text;
    return false;
  }
  bool unexpected(const char* what) {
    return refuse(std::string(what) + " where the format has none" +
                  (key_.empty() ? "" : ", in " + printable(key_)));
  }

  std::vector<SafetensorsFile::Entry>& entries_;
  State state_ = State::kStart;
  std::string key_, problem_;
  std::set<std::string> names_, fields_;
  std::vector<int64_t> numbers_;
};

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  std::array<unsigned char, 8> lead{};
  if (file_.size() < 8) file_.fail("not a safetensors file: only ", file_.size(), " bytes");
  file_.read(0, lead.data(), 8);
  uint64_t length = 0;
  for (size_t n = 8; n-- > 0;) length = length << 8 | lead[n];
  if (length > static_cast<uint64_t>(kMaxHeader)) {
    file_.fail("header of ", length, " bytes, at most ", kMaxHeader);
  }
  buffer_ = 8 + static_cast<int64_t>(length);
  if (buffer_ > file_.size()) {
    file_.fail("truncated: header of ", length, " bytes in a file of ", file_.size());
  }
  std::string text(static_cast<size_t>(length), '\0');
  file_.read(8, text.data(), static_cast<int64_t>(length));
  if (!text.starts_with('{')) file_.fail("not a safetensors file: the header is not a JSON object");
  HeaderReader reader(entries_);
  if (!Json::sax_parse(text, &reader)) file_.fail(reader.problem());
  check();
}

void SafetensorsFile::check() {
  std::vector<const Entry*> order;
  for (const Entry& entry : entries_) {
    const std::string who = "tensor " + printable(entry.name);
    const Type* type = find_type(entry.dtype);
    if (type == nullptr) file_.fail(who, ": unknown dtype ", printable(entry.dtype));
    int64_t bytes = type->bytes;
    const bool empty = std::ranges::find(entry.shape, 0) != entry.shape.end();
    for (int64_t size : entry.shape) {
      if (!empty && __builtin_mul_overflow(bytes, size, &bytes)) {
        file_.fail(who, ": the shape overflows 64 bits");
      }
    }
    if (empty) bytes = 0;
    if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
      file_.fail(who, ": its shape needs ", bytes, " bytes, data_offsets are [", entry.begin, ", ",
                 entry.end, "]");
    }
    order.push_back(&entry);
  }
  std::ranges::stable_sort(order, {}, [](const Entry* e) { return std::pair(e->begin, e->end); });
  int64_t covered = 0;
  for (const Entry* entry : order) {
    if (entry->begin != covered) {
      file_.fail("tensor ", printable(entry->name), " starts at byte ", entry->begin,
                 " of the buffer, expected ", covered, ": tensors must tile it without gaps");
    }
    covered = entry->end;
  }
  if (covered != file_.size() - buffer_) {
    file_.fail("the header describes ", covered, " bytes of data, the file has ",
               file_.size() - buffer_);
  }
}

const SafetensorsFile::Entry* SafetensorsFile::find(const std::string& name) const noexcept {
  const auto it = std::ranges::find(entries_, name, &Entry::name);
  return it == entries_.end() ? nullptr : &*it;
}

Tensor SafetensorsFile::read(const Entry& entry) const {
  const std::string who = "tensor " + printable(entry.name);
  const Type* type = find_type(entry.dtype);
  if (type == nullptr || !type->dtype) {
    file_.fail(who, ": dtype ", entry.dtype,
               " is not supported: expected F32, F64, BF16, F16, I64, I32 or BOOL");
  }
  if (entry.shape.size() > size_t{kMaxRank}) {
    file_.fail(who, ": rank ", entry.shape.size(), ", at most ", kMaxRank, " axes are supported");
  }
  Tensor tensor(*type->dtype, entry.shape);
  file_.read(buffer_ + entry.begin, tensor.view().data, entry.end - entry.begin);
  check_bools(file_, tensor.view());
  return tensor;
}

void write_safetensors(Sink& sink, const std::vector<std::pair<std::string, TensorView>>& tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  int64_t begin = 0;
  for (const auto& [name, view] : tensors) {
    if (name.empty() || name == "__metadata__" || header.contains(name)) {
      throw_error(ErrorKind::kIo, sink.path(), ": name ", printable(name), " is taken or reserved");
    }
    const DType dtype = view.dtype;
    const auto type = std::ranges::find(kTypes, std::optional(dtype), &Type::dtype);
    const int64_t end = begin + view.numel() * type->bytes;
    header[name] = {
        {"dtype", std::string(type->name)}, {"shape", view.dims()}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception&) {
    throw_error(ErrorKind::kIo, sink.path(), ": a tensor's name is not UTF-8");
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  if (static_cast<int64_t>(text.size()) > kMaxHeader) {
    throw_error(ErrorKind::kIo, sink.path(), ": header of ", text.size(), " bytes, at most ",
                kMaxHeader);
  }
  std::array<unsigned char, 8> lead{};
  for (size_t n = 0; n < 8; ++n) lead[n] = static_cast<unsigned char>(text.size() >> (8 * n));
  sink.write(lead.data(), lead.size());
  sink.write(text.data(), text.size());
  for (const auto& entry : tensors) sink.write(entry.second);
}

}  // namespace relpos::io
