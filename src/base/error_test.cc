#include "relpos/error.h"

#include <gtest/gtest.h>

#include <new>

namespace relpos {
namespace {

template <typename Thrown>
std::exception_ptr thrown(const Thrown& error) {
  return std::make_exception_ptr(error);
}

TEST(AsError, KeepsAnError) {
  const Error error = as_error(thrown(Error(ErrorKind::kType, "key: expected float32")));
  EXPECT_EQ(error.kind(), ErrorKind::kType);
  EXPECT_STREQ(error.what(), "key: expected float32");
}

TEST(AsError, IsOfMemoryWhereThereIsNone) {
  for (const auto& none : {thrown(std::bad_alloc()), thrown(std::length_error("vector"))}) {
    const Error error = as_error(none);
    EXPECT_EQ(error.kind(), ErrorKind::kMemory);
    EXPECT_STREQ(error.what(), "out of memory: give smaller sizes");
  }
}

TEST(AsError, ThrowsOthersAgain) {
  EXPECT_THROW(as_error(thrown(std::out_of_range("at"))), std::out_of_range);
  EXPECT_THROW(as_error(thrown(7)), int);
}

}  // namespace
}  // namespace relpos
