#include "relpos/error.h"

#include <new>

namespace relpos {

const char* Error::what() const noexcept { return std::runtime_error::what(); }

Error as_error(const std::exception_ptr& thrown) {
  const char* const text = "out of memory: give smaller sizes";
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ErrorKind::kMemory, text);
  } catch (const std::length_error&) {
    return Error(ErrorKind::kMemory, text);
  }
}

}  // namespace relpos
