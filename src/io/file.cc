#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

namespace relpos::io {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

namespace {

constexpr int64_t kChunk = 1 << 20;

std::string system_text(int code) { return std::system_category().message(code); }

}  // namespace

std::string printable(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string result = "'";
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (result.size() > 76) return result + "...'";
    if (byte >= 0x20 && byte < 0x7f) {
      result += c;
    } else {
      result += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return result + "'";
}

InputFile::InputFile(const std::string& path)
    // Non-blocking: opening a FIFO must not wait for a writer before it is refused.
    : InputFile{path == "-" ? "standard input" : path,
                path == "-" ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)
                            : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)} {
  if (descriptor_ < 0) fail("cannot open for reading: ", system_text(errno));
  struct stat status{};
  if (::fstat(descriptor_, &status) != 0) fail("cannot read: ", system_text(errno));
  const bool regular = S_ISREG(status.st_mode);
  if (path == "-" && (!regular || ::lseek(descriptor_, 0, SEEK_CUR) != 0)) {
    read_to_end();
  } else if (regular) {
    size_ = status.st_size;
  } else {
    fail("expected a regular file");
  }
}

InputFile::InputFile(std::string path, int descriptor)
    : path_(std::move(path)), descriptor_(descriptor) {}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void InputFile::read_to_end() {
  held_ = true;
  while (true) {
    if (held_bytes_.size() < static_cast<size_t>(size_ + kChunk)) {
      held_bytes_.resize(2 * held_bytes_.size() + kChunk);
    }
    const ssize_t got =
        ::read(descriptor_, held_bytes_.data() + size_, static_cast<size_t>(kChunk));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("cannot read: ", system_text(errno));
    if (got == 0) return;
    size_ += got;
  }
}

void InputFile::read(int64_t offset, void* out, int64_t bytes) const {
  if (offset < 0 || bytes < 0 || offset > size_ || bytes > size_ - offset) {
    fail("truncated: ", bytes, " bytes expected at byte ", offset, ", the file has ", size_);
  }
  if (held_) {
    if (bytes > 0) std::memcpy(out, held_bytes_.data() + offset, static_cast<size_t>(bytes));
    return;
  }
  auto* cursor = static_cast<std::byte*>(out);
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_, cursor, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("cannot read: ", system_text(errno));
    if (got == 0) fail("truncated while it was read, at byte ", offset);
    cursor += got;
    offset += got;
    bytes -= got;
  }
}

int64_t InputFile::bytes_of(const std::vector<int64_t>& shape, int64_t item,
                            const std::string& who) const {
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  int64_t bytes = item;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) fail(who, ": the shape overflows 64 bits");
  }
  return bytes;
}

Tensor InputFile::read_tensor(DType dtype, const std::vector<int64_t>& shape, int64_t offset,
                              const std::string& who) const {
  if (shape.size() > size_t{kMaxRank}) {
    fail(who, ": rank ", shape.size(), ", at most ", kMaxRank, " axes are supported");
  }
  Tensor tensor(dtype, shape);
  read(offset, tensor.view().data, bytes_of(shape, item_size(dtype), who));
  for (int64_t n = 0; dtype == DType::kBool && n < tensor.view().numel(); ++n) {
    const int byte = tensor.data<unsigned char>()[n];
    if (byte > 1) fail(who, ": a bool must be 0 or 1, element ", n, " is ", byte);
  }
  return tensor;
}

void Sink::fail(const std::string& action) const {
  throw_error(ErrorKind::kIo, path_, ": cannot ", action, ": ", system_text(errno));
}

void Sink::write(const void* data, size_t bytes) {
  const auto* cursor = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t done = ::write(descriptor_, cursor, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("write");
    cursor += done;
    bytes -= static_cast<size_t>(done);
  }
}

void Sink::write(const TensorView& view) {
  const int64_t item = item_size(view.dtype), count = view.numel();
  if (view.contiguous()) return write(view.data, static_cast<size_t>(count * item));
  std::vector<std::byte> chunk(static_cast<size_t>(std::min(count, kChunk) * item));
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t length = std::min(kChunk, count - first);
    gather(view, first, length, chunk.data());
    write(chunk.data(), static_cast<size_t>(length * item));
  }
}

void gather(const TensorView& view, int64_t first, int64_t count, std::byte* out) {
  if (count == 0) return;
  const auto item = static_cast<size_t>(item_size(view.dtype));
  const auto* base = static_cast<const std::byte*>(view.data);
  std::array<int64_t, kMaxRank> index{};
  int64_t offset = 0;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    const auto a = static_cast<size_t>(axis);
    index[a] = first % view.shape[a];
    first /= view.shape[a];
    offset += index[a] * view.strides[a];
  }
  for (int64_t n = 0; n < count; ++n, out += item) {
    std::memcpy(out, base + offset * static_cast<int64_t>(item), item);
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      const auto a = static_cast<size_t>(axis);
      offset += view.strides[a];
      if (++index[a] < view.shape[a]) break;
      offset -= index[a] * view.strides[a];
      index[a] = 0;
    }
  }
}

}  // namespace relpos::io
