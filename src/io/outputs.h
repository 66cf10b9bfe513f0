// Files that appear whole or not at all, alone or several together.
#pragma once

#include <sys/types.h>

#include <deque>
#include <string>

#include "io/file.h"
#include "relpos/export.h"

namespace relpos::io {

// Writes beside `path` under a temporary name. A replaced file keeps its mode, and its owner where
// the system allows that. Throws Error (kIo) where `path` is no file that this process may write.
class RELPOS_EXPORT OutputFile : public Sink {
 public:
  explicit OutputFile(const std::string& path);
  ~OutputFile();

  const std::string& temporary() const noexcept { return temporary_; }
  // The same file under another spelling or through a link?
  bool same_file(const OutputFile& other) const;

  void finish();             // everything is on the disk
  void keep_old();           // the file to replace gets a second, temporary name
  void take_name();          // the new file becomes `path`
  void put_back() noexcept;  // `path` is as it was at keep_old()
  void drop_old() noexcept;

 private:
  struct Place {
    dev_t device = 0;
    ino_t inode = 0;
    bool operator==(const Place&) const = default;
  };
  void look(const std::string& folder);
  void create();

  std::string target_, temporary_, old_;
  Place folder_, replaced_;
  mode_t mode_ = 0;
  uid_t owner_ = 0;
  gid_t group_ = 0;
  bool exists_ = false, taken_ = false;
  bool linked_ = false;  // old_ is a second name, and not that to which the file moved
};

// Outputs of one command: all are on the disk before the first takes its name, and where one cannot
// take it, those before it are put back. Without commit() nothing is left behind.
class RELPOS_EXPORT OutputSet {
 public:
  // Throws Error (kIo) where `path` cannot be written or is the file of an earlier add().
  OutputFile& add(const std::string& path);
  void commit();

 private:
  std::deque<OutputFile> files_;
};

}  // namespace relpos::io
