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

// Reads the header: a JSON object in which no key appears twice and nothing nests deeper than the
// format does, and the order of its names.
class HeaderReader {
 public:
  HeaderReader(const InputFile& file, const std::string& text) : file_(file) {
    try {
      header_ = Json::parse(text, [this](int depth, Json::parse_event_t event, Json& value) {
        see(depth, event, value);
        return true;
      });
    } catch (const Json::parse_error& error) {
      file_.fail("malformed JSON at byte ", error.byte, " of the header");
    }
  }

  std::vector<SafetensorsFile::Entry> entries() const {
    std::vector<SafetensorsFile::Entry> all;
    for (const std::string& name : names_) {
      const Json& fields = header_.at(name);
      if (!fields.is_object()) unexpected(fields, name);
      if (name == "__metadata__") {
        for (const Json& text : fields) expect_string(text, name);
      } else {
        all.push_back(entry(name, fields));
      }
    }
    return all;
  }

 private:
  static constexpr int kDeepest = 3;  // a number, in an array of a tensor's fields

  void see(int depth, Json::parse_event_t event, Json& value) {
    using Event = Json::parse_event_t;
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::object_start) keys_.emplace_back();
    if (depth > kDeepest) file_.fail("the header nests deeper than the format");
    if (event != Event::key) return;
    const auto& key = value.get_ref<const std::string&>();
    if (!keys_.back().insert(key).second) {
      file_.fail(keys_.size() == 1 ? "name " : "key ", printable(key), " appears twice");
    }
    if (keys_.size() == 1) names_.push_back(key);
  }

  SafetensorsFile::Entry entry(const std::string& name, const Json& fields) const {
    for (const auto& [key, value] : fields.items()) {
      if (key != "dtype" && key != "shape" && key != "data_offsets") {
        file_.fail("unknown key ", printable(key));
      }
    }
    if (fields.size() != 3) {
      file_.fail("tensor ", printable(name), " needs dtype, shape and data_offsets");
    }
    expect_string(fields["dtype"], name);
    const std::vector<int64_t> offsets = numbers(fields["data_offsets"], name);
    if (offsets.size() != 2) file_.fail("data_offsets of ", printable(name), " needs two numbers");
    return {name, fields["dtype"], numbers(fields["shape"], name), offsets[0], offsets[1]};
  }

  std::vector<int64_t> numbers(const Json& list, const std::string& name) const {
    if (!list.is_array()) unexpected(list, name);
    std::vector<int64_t> values;
    for (const Json& number : list) {
      if (!number.is_number_unsigned()) unexpected(number, name);
      if (number.get<uint64_t>() > uint64_t{INT64_MAX}) file_.fail("a number overflows int64");
      values.push_back(number);
    }
    return values;
  }
  void expect_string(const Json& value, const std::string& name) const {
    if (!value.is_string()) unexpected(value, name);
  }
  [[noreturn]] void unexpected(const Json& value, const std::string& name) const {
    const std::string what = value.is_number_float()     ? "fraction"
                             : value.is_number_integer() ? "negative number"
                                                         : value.type_name();
    file_.fail("unexpected ", what, " in ", printable(name));
  }

  const InputFile& file_;
  Json header_;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
  std::vector<std::string> names_;
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
