// Writes one or several files completely, or none of them.
#pragma once

#include <sys/types.h>

#include <deque>
#include <string>

#include "io/file.h"

namespace relpos::io {

// Writes to a temporary name beside `path`. A file that is replaced keeps its mode, and its owner if
// the system allows that. Throws Error (kIo) if `path` is not a file that this process may write.
class OutputFile : public Sink {
 public:
  explicit OutputFile(const std::string& path);
  ~OutputFile();

  const std::string& temporary() const noexcept { return temporary_; }
  // Whether both are the same file, under another spelling or through a link.
  bool same_file(const OutputFile& other) const;

  void finish();             // writes everything to the disk
  void keep_old();           // gives the file to replace a second, temporary name
  void take_name();          // makes the new file `path`
  void put_back() noexcept;  // makes `path` what it was at keep_old()
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
};

// The outputs of one command. All are on the disk before the first one gets its name, and if one cannot
// get its name, those before it are put back. Without commit() all temporary files are removed.
class OutputSet {
 public:
  // Throws Error (kIo) if `path` cannot be written or is the file of an earlier add().
  OutputFile& add(const std::string& path);
  void commit();

 private:
  std::deque<OutputFile> files_;
};

}  // namespace relpos::io
