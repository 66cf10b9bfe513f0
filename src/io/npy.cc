#include "io/npy.h"

#include <array>
#include <charconv>
#include <cstring>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "io/file.h"
#include "relpos/error.h"

namespace relpos::io {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr uint32_t kMaxHeader = 10000;  // numpy.lib.format's own cap

struct Type {
  std::string_view code;  // without the byte order
  DType dtype;
};
constexpr std::array<Type, 7> kTypes{{{"f4", DType::kFloat32},
                                      {"f8", DType::kFloat64},
                                      {"f2", DType::kFloat16},
                                      {"i8", DType::kInt64},
                                      {"i4", DType::kInt32},
                                      {"u1", DType::kUInt8},
                                      {"b1", DType::kBool}}};

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

// The three-key dict literal that every writer of .npy produces, and nothing more of Python.
class HeaderParser {
 public:
  HeaderParser(const InputFile& file, std::string_view text) : file_(file), text_(text) {}

  Header parse() {
    Header header;
    bool has_descr = false, has_order = false, has_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr") {
        once(has_descr, key);
        if (peek() == '[') file_.fail("structured dtypes are not supported, only plain numbers");
        header.descr = string();
      } else if (key == "fortran_order") {
        once(has_order, key);
        header.fortran_order = boolean();
      } else if (key == "shape") {
        once(has_shape, key);
        header.shape = shape();
      } else {
        file_.fail("unknown key ", printable(key), " in the header");
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    if (!has_descr || !has_order || !has_shape) {
      file_.fail("the header needs descr, fortran_order and shape");
    }
    skip_space();
    if (at_ != text_.size()) file_.fail("text after the header's closing brace");
    return header;
  }

 private:
  void once(bool& seen, const std::string& key) const {
    if (seen) file_.fail("key ", printable(key), " appears twice in the header");
    seen = true;
  }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) file_.fail("malformed header: expected '", c, "' at byte ", at_);
  }
  std::string string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"')
      file_.fail("malformed header: expected a string at byte ", at_);
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) file_.fail("malformed header: unterminated string");
    const std::string result(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return result;
  }
  bool boolean() {
    skip_space();
    for (const auto& [word, value] : {std::pair{"True", true}, std::pair{"False", false}}) {
      if (text_.substr(at_).starts_with(word)) {
        at_ += std::strlen(word);
        return value;
      }
    }
    file_.fail("malformed header: fortran_order must be True or False");
  }
  std::vector<int64_t> shape() {
    std::vector<int64_t> result;
    expect('(');
    while (!accept(')')) {
      skip_space();
      int64_t size = 0;
      const char* first = text_.data() + at_;
      const auto [end, code] = std::from_chars(first, text_.data() + text_.size(), size);
      if (code == std::errc::result_out_of_range) file_.fail("a size in the shape overflows int64");
      if (code != std::errc() || size < 0) file_.fail("malformed header: bad size in the shape");
      at_ += static_cast<size_t>(end - first);
      if (peek() == 'L') ++at_;  // written by Python 2
      result.push_back(size);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return result;
  }

  const InputFile& file_;
  std::string_view text_;
  size_t at_ = 0;
};

DType dtype_of(const InputFile& file, const std::string& descr) {
  const std::string what = "dtype " + printable(descr);
  if (descr.starts_with('>')) {
    file.fail(what, " is big-endian: convert it with .astype(a.dtype.newbyteorder('<'))");
  }
  if (descr.find('O') != std::string::npos) {
    file.fail(what, " holds pickled objects, which relpos never reads");
  }
  std::string_view code = descr;
  if (!code.empty() && std::string_view("<|=").find(code.front()) != std::string_view::npos) {
    code.remove_prefix(1);
  }
  for (const Type& type : kTypes) {
    if (type.code == code) return type.dtype;
  }
  file.fail(what,
            " is not supported: expected float32, float64, float16, int64, int32, uint8 or bool");
}

std::string shape_tuple(const std::vector<int64_t>& shape) {
  std::ostringstream text;
  text << '(';
  for (size_t n = 0; n < shape.size(); ++n) text << (n ? ", " : "") << shape[n];
  text << (shape.size() == 1 ? ",)" : ")");
  return text.str();
}

// Row-major elements from column-major bytes.
void from_fortran(const Tensor& stored, const Tensor& result) {
  TensorView view = stored.view();
  int64_t stride = 1;
  for (int axis = 0; axis < view.rank; ++axis) {
    view.strides[static_cast<size_t>(axis)] = stride;
    stride *= view.shape[static_cast<size_t>(axis)];
  }
  gather(view, 0, view.numel(), result.data<std::byte>());
}

}  // namespace

Tensor read_npy(const std::string& path) {
  const InputFile file(path);
  std::array<unsigned char, 12> lead{};
  if (file.size() < 10) file.fail("not a .npy file: only ", file.size(), " bytes");
  file.read(0, lead.data(), 10);
  if (std::memcmp(lead.data(), kMagic.data(), kMagic.size()) != 0) {
    file.fail("not a .npy file: it does not start with \\x93NUMPY");
  }
  const int major = lead[6];
  if (major < 1 || major > 3) file.fail(".npy version ", major, " is unknown: expected 1, 2 or 3");
  int64_t start = 10;
  uint32_t length = lead[8] | uint32_t{lead[9]} << 8;
  if (major > 1) {
    file.read(0, lead.data(), 12);
    start = 12;
    length |= uint32_t{lead[10]} << 16 | uint32_t{lead[11]} << 24;
  }
  if (length > kMaxHeader) file.fail("header of ", length, " bytes, at most ", kMaxHeader);
  std::string text(length, '\0');
  file.read(start, text.data(), length);
  start += length;

  const Header header = HeaderParser(file, text).parse();
  const DType dtype = dtype_of(file, header.descr);
  const int64_t bytes = file.bytes_of(header.shape, item_size(dtype), "the array");
  if (bytes != file.size() - start) {
    file.fail("shape ", shape_tuple(header.shape), " of ", dtype_name(dtype), " needs ", bytes,
              " bytes of data, the file has ", file.size() - start);
  }
  Tensor tensor = file.read_tensor(dtype, header.shape, start, "the array");
  if (!header.fortran_order || tensor.view().rank < 2) return tensor;
  Tensor result(dtype, header.shape);
  from_fortran(tensor, result);
  return result;
}

void write_npy(Sink& sink, const TensorView& tensor) {
  const char* code = nullptr;
  for (const Type& type : kTypes) {
    if (type.dtype == tensor.dtype) code = type.code.data();
  }
  if (code == nullptr) {
    throw_error(ErrorKind::kIo, sink.path(), ": .npy has no ", dtype_name(tensor.dtype),
                ": write .safetensors");
  }
  std::string header = std::string("{'descr': '") + (item_size(tensor.dtype) == 1 ? '|' : '<') +
                       code + "', 'fortran_order': False, 'shape': " + shape_tuple(tensor.dims()) +
                       ", }";
  // The data starts at a multiple of 64 bytes.
  header.append((64 - (10 + header.size() + 1) % 64) % 64, ' ');
  header += '\n';
  const std::array<char, 4> lead{1, 0, static_cast<char>(header.size() & 0xff),
                                 static_cast<char>(header.size() >> 8)};
  sink.write(kMagic.data(), kMagic.size());
  sink.write(lead.data(), lead.size());
  sink.write(header.data(), header.size());
  sink.write(tensor);
}

}  // namespace relpos::io
