#include "cli/files/outputs.h"

#include <unistd.h>

#include <filesystem>
#include <vector>

#include "cli/files/files.h"
#include "cli/files/signals.h"
#include "relpos/error.h"

namespace relpos::cli {

namespace fs = std::filesystem;

Outputs::~Outputs() {
  const LeftoversLock lock;
  files_.reset();
  Leftovers& list = lock.list();
  if (!committed_) {
    for (size_t n = list.folders.size(); n-- > 0;) ::rmdir(list.folders[n].c_str());
  }
  list = {};
}

io::Sink& Outputs::open(const std::string& path) {
  if (path == "-") {
    if (standard_) {
      throw_error(ErrorKind::kIo, "-: two outputs go to standard output: give a file name for one");
    }
    return standard_.emplace("standard output", STDOUT_FILENO);
  }
  const LeftoversLock lock;
  io::OutputFile& file = files_->add(path);
  lock.list().files.push_back(file.temporary());
  return file;
}

TensorView Outputs::add(const std::string& path, DType dtype, const std::vector<int64_t>& shape) {
  check_format(path, dtype);
  io::Sink* sink = &open(path);
  return results_.emplace_back(Result{path, sink, Tensor(dtype, shape)}).tensor.view();
}

void Outputs::add_folder(const std::string& path) {
  const LeftoversLock lock;
  std::vector<fs::path> missing;
  std::error_code code;
  for (fs::path folder = fs::path(path).lexically_normal();
       !folder.empty() && !fs::exists(folder, code); folder = folder.parent_path()) {
    if (folder.has_filename()) missing.push_back(folder);
  }
  for (size_t n = missing.size(); n-- > 0;) {
    if (fs::create_directory(missing[n], code)) {
      lock.list().folders.push_back(missing[n].string());
    }
    if (code) {
      throw_error(ErrorKind::kIo, path, ": cannot make the folder ", missing[n].string(), ": ",
                  code.message());
    }
  }
  if (fs::is_directory(path, code)) return;
  if (code) throw_error(ErrorKind::kIo, path, ": cannot look at the folder: ", code.message());
  throw_error(ErrorKind::kIo, path, ": expected a folder, it is a file");
}

void Outputs::commit() {
  for (const Result& result : results_) {
    write_tensor(*result.sink, result.path, result.tensor.view());
  }
  const LeftoversLock lock;
  throw_if_interrupted();
  files_->commit();
  committed_ = true;
  lock.list() = {};
}

}  // namespace relpos::cli
