#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

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
                                       {"U8", 1, DType::kUInt8},
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

// Takes the header while it is parsed: a JSON object in which no key appears twice and nothing nests deeper
// than the format does. No tree of nlohmann::json: its destructor allocates, and ends the process where
// there is no memory.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(const InputFile& file, const std::string& text) : file_(file) {
    Json::sax_parse(text, this);
    if (!problem_.empty()) file_.fail(problem_);
  }

  std::vector<SafetensorsFile::Entry> entries() { return std::move(entries_); }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("boolean"); }
  bool binary(binary_t&) override { return unexpected("binary"); }
  bool number_integer(number_integer_t) override { return unexpected("negative number"); }
  bool number_float(number_float_t, const string_t&) override { return unexpected("fraction"); }
  bool number_unsigned(number_unsigned_t number) override {
    if (depth_ < kDeepest || numbers_ == nullptr) return unexpected("number");
    if (number > uint64_t{INT64_MAX}) return wrong("a number overflows int64");
    numbers_->push_back(static_cast<int64_t>(number));
    return true;
  }
  bool string(string_t& text) override {
    if (depth_ == 2 && !of_tensor()) return true;
    if (depth_ != 2 || field_ != "dtype") return unexpected("string");
    entries_.back().dtype = text;
    return true;
  }

  bool start_object(size_t) override {
    nest();
    if (depth_ > 2) unexpected("object");
    if (depth_ == 2 && of_tensor()) entries_.push_back({name_, {}, {}, 0, 0});
    offsets_.clear();
    keys_.emplace_back();
    return true;
  }
  bool end_object() override {
    if (depth_ == 2 && of_tensor()) finish_tensor();
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(size_t) override {
    numbers_ = nullptr;
    const bool list = depth_ == 2 && of_tensor() && keys_.size() == 2;
    if (list && field_ == "shape") numbers_ = &entries_.back().shape;
    if (list && field_ == "data_offsets") numbers_ = &offsets_;
    if (numbers_ == nullptr) unexpected("array");
    nest();
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& key) override {
    if (!keys_.back().insert(key).second) {
      file_.fail(keys_.size() == 1 ? "name " : "key ", printable(key), " appears twice");
    }
    (keys_.size() == 1 ? name_ : field_) = key;
    const bool known = key == "dtype" || key == "shape" || key == "data_offsets";
    return keys_.size() != 2 || !of_tensor() || known || wrong("unknown key " + printable(key));
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    file_.fail("malformed JSON at byte ", position, " of the header");
  }

 private:
  static constexpr int kDeepest = 3;  // a number, in an array of a tensor's fields

  bool of_tensor() const { return name_ != "__metadata__"; }
  void nest() {
    if (++depth_ > kDeepest) file_.fail("the header nests deeper than the format");
  }
  // The first is what the reader says, once the text is known to be JSON.
  bool wrong(const std::string& problem) {
    if (problem_.empty()) problem_ = problem;
    return true;
  }
  bool unexpected(const char* what) {
    return wrong("unexpected " + std::string(what) + " in " + printable(name_));
  }
  void finish_tensor() {
    if (keys_.back().size() != 3) {
      wrong("tensor " + printable(name_) + " needs dtype, shape and data_offsets");
    } else if (offsets_.size() != 2) {
      wrong("data_offsets of " + printable(name_) + " needs two numbers");
    } else {
      entries_.back().begin = offsets_[0];
      entries_.back().end = offsets_[1];
    }
  }

  const InputFile& file_;
  int depth_ = 0;                            // of objects and arrays that are open
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
  std::string name_, field_;
  std::vector<int64_t>* numbers_ = nullptr;  // where those of the open array go; null: nowhere
  std::vector<int64_t> offsets_;             // of the tensor that is open
  std::string problem_;
  std::vector<SafetensorsFile::Entry> entries_;
};

std::string list_text(const std::vector<int64_t>& numbers) {
  std::string text = "[";
  for (const int64_t number : numbers) {
    text += (text.size() > 1 ? "," : "") + std::to_string(number);
  }
  return text + "]";
}

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
  entries_ = HeaderReader(file_, text).entries();
  check();
}

void SafetensorsFile::check() {
  std::vector<const Entry*> order;
  for (const Entry& entry : entries_) {
    const std::string who = "tensor " + printable(entry.name);
    const Type* type = find_type(entry.dtype);
    if (type == nullptr) file_.fail(who, ": unknown dtype ", printable(entry.dtype));
    const int64_t bytes = file_.bytes_of(entry.shape, type->bytes, who);
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
  return file_.read_tensor(*type->dtype, entry.shape, buffer_ + entry.begin, who);
}

void write_safetensors(Sink& sink, const std::vector<std::pair<std::string, TensorView>>& tensors) {
  std::set<std::string> names;
  std::string text = "{";
  int64_t begin = 0;
  for (const auto& [name, view] : tensors) {
    if (name.empty() || name == "__metadata__" || !names.insert(name).second) {
      throw_error(ErrorKind::kIo, sink.path(), ": name ", printable(name), " is taken or reserved");
    }
    const DType dtype = view.dtype;
    const auto type = std::ranges::find(kTypes, std::optional(dtype), &Type::dtype);
    const int64_t end = begin + view.numel() * type->bytes;
    try {
      text += (text.size() == 1 ? "" : ",") + Json(name).dump();
    } catch (const Json::exception&) {
      throw_error(ErrorKind::kIo, sink.path(), ": a tensor's name is not UTF-8");
    }
    text += ":{\"dtype\":\"" + std::string(type->name) + "\",\"shape\":" + list_text(view.dims()) +
            ",\"data_offsets\":" + list_text({begin, end}) + "}";
    begin = end;
  }
  text += '}';
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
