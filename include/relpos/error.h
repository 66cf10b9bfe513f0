// What every public function of relpos throws on a bad argument or a broken call.
#pragma once

#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>

#include "relpos/export.h"

RELPOS_EXPORT_BEGIN
namespace relpos {

enum class ErrorKind {
  kValue,      // an argument has the right type and a wrong value (Python: ValueError)
  kType,       // an argument has a type or dtype that the call does not accept (Python: TypeError)
  kIo,         // a file is missing, truncated or malformed (Python: OSError)
  kMemory,     // the system has no memory for a tensor (Python: MemoryError)
  kCancelled,  // the cancel token asked the call to stop; outputs are unspecified
};

// The text names the argument, what was expected, what came, and what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }
  // Defined in the library, so that there is one type of errors in a process.
  const char* what() const noexcept override;

 private:
  ErrorKind kind_;
};

// The Error that an exception out of the library stands for: itself, or kMemory where std::bad_alloc or
// std::length_error came; others are thrown again. A shared library with a C++ library of its own (a
// wheel's) throws types of std that its callers cannot name.
Error as_error(const std::exception_ptr& thrown);

// throw_error(ErrorKind::kValue, "key: expected rank 4, got ", rank);
template <typename... Parts>
[[noreturn]] void throw_error(ErrorKind kind, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Error(kind, text.str());
}

template <typename... Parts>
void check_value(bool holds, const Parts&... parts) {
  if (!holds) throw_error(ErrorKind::kValue, parts...);
}

}  // namespace relpos
RELPOS_EXPORT_END
