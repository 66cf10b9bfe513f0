#include "io/outputs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

namespace relpos::io {
namespace {

namespace fs = std::filesystem;

constexpr int kMostNames = 1000, kMostLinks = 40;

// The file that `path` leads to, which need not exist; "" and errno where the system does not say.
std::string followed(fs::path path) {
  std::error_code code;
  for (int n = 0; n < kMostLinks; ++n) {
    const fs::file_status found = fs::symlink_status(path, code);
    if (found.type() == fs::file_type::none) break;
    if (!fs::is_symlink(found)) return path.string();
    path = path.parent_path() / fs::read_symlink(path, code);
    if (code) break;
  }
  errno = code ? code.value() : ELOOP;
  return "";
}

// Calls make(name) with names beside `target` until one does not exist yet.
template <typename Make>
std::string fresh_name(const std::string& target, Make make) {
  for (int attempt = 0; attempt < kMostNames; ++attempt) {
    const std::string name =
        target + ".tmp" + std::to_string(::getpid()) + "-" + std::to_string(attempt);
    if (make(name)) return name;
    if (errno != EEXIST) break;
  }
  return "";
}

}  // namespace

OutputFile::OutputFile(const std::string& path) : Sink(path, -1), target_(path) {
  target_ = followed(path);
  if (target_.empty()) fail(errno == ELOOP ? "follow the link" : "write");
  const std::string folder = fs::path(target_).parent_path().string();
  look(folder.empty() ? "." : folder);
  create();
}

void OutputFile::look(const std::string& folder) {
  struct stat status{};
  if (::stat(folder.c_str(), &status) != 0) fail("write in the folder " + folder);
  folder_ = {status.st_dev, status.st_ino};
  if (::stat(target_.c_str(), &status) != 0) {
    if (errno != ENOENT) fail("write");
    return;
  }
  if (!S_ISREG(status.st_mode)) {
    throw_error(ErrorKind::kIo, path_, ": cannot replace: it exists and is not a regular file");
  }
  if (::access(target_.c_str(), W_OK) != 0) fail("replace");
  exists_ = true;
  replaced_ = {status.st_dev, status.st_ino};
  mode_ = status.st_mode & 0777;
  owner_ = status.st_uid;
  group_ = status.st_gid;
}

void OutputFile::create() {
  // Never more open than the file that it replaces, not even for a moment.
  const mode_t mode = exists_ ? mode_ & 0600 : 0666;
  temporary_ = fresh_name(target_, [&](const std::string& name) {
    descriptor_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    return descriptor_ >= 0;
  });
  if (descriptor_ < 0) fail("open for writing");
  if (!exists_) return;
  // Another user's file, or a file system without modes: the new file is this user's.
  static_cast<void>(::fchown(descriptor_, owner_, group_) == 0);
  static_cast<void>(::fchmod(descriptor_, mode_) == 0);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!taken_) ::unlink(temporary_.c_str());
}

bool OutputFile::same_file(const OutputFile& other) const {
  if (exists_ && other.exists_ && replaced_ == other.replaced_) return true;
  return folder_ == other.folder_ &&
         fs::path(target_).filename() == fs::path(other.target_).filename();
}

void OutputFile::finish() {
  if (::fsync(descriptor_) != 0 && errno != EINVAL) fail("write");
  const int closed = ::close(descriptor_);
  descriptor_ = -1;
  if (closed != 0 && errno != EINTR) fail("write");
}

void OutputFile::keep_old() {
  if (!exists_) return;
  old_ = fresh_name(
      target_, [&](const std::string& name) { return ::link(target_.c_str(), name.c_str()) == 0; });
  linked_ = !old_.empty();
  if (linked_ || errno == ENOENT) return;
  // A file system without links: there is a moment without the file.
  old_ = target_ + ".old" + std::to_string(::getpid());
  if (::rename(target_.c_str(), old_.c_str()) != 0) {
    old_.clear();
    fail("rename");
  }
}

void OutputFile::take_name() {
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail("rename into place");
  taken_ = true;
}

void OutputFile::put_back() noexcept {
  if (!old_.empty()) {
    // Names of one file stay both in a rename. Where the rename fails, the old file keeps its name.
    const bool in_place = linked_ && !taken_;
    if (in_place || ::rename(old_.c_str(), target_.c_str()) == 0) ::unlink(old_.c_str());
    old_.clear();
  } else if (taken_) {
    ::unlink(target_.c_str());
  }
}

void OutputFile::drop_old() noexcept {
  if (!old_.empty()) ::unlink(old_.c_str());
  old_.clear();
}

OutputFile& OutputSet::add(const std::string& path) {
  OutputFile& file = files_.emplace_back(path);
  for (size_t n = 0; n + 1 < files_.size(); ++n) {
    if (!file.same_file(files_[n])) continue;
    const std::string other = files_[n].path();
    files_.pop_back();
    throw_error(ErrorKind::kIo, path, ": two outputs have this file",
                other == path ? "" : ", the other one as " + other, ": give each its own file");
  }
  return file;
}

void OutputSet::commit() {
  for (OutputFile& file : files_) file.finish();
  try {
    for (size_t n = 0; n + 1 < files_.size(); ++n) files_[n].keep_old();
    for (OutputFile& file : files_) file.take_name();
  } catch (const Error&) {
    for (OutputFile& file : files_) file.put_back();
    throw;
  }
  for (OutputFile& file : files_) file.drop_old();
}

}  // namespace relpos::io
