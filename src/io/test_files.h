// Scratch files for the tests of this folder.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "relpos/error.h"

namespace relpos::io {

// An empty directory, removed with the test.
class ScratchTest : public testing::Test {
 protected:
  ScratchTest()
      : folder_(std::filesystem::temp_directory_path() /
                ("relpos_io_" + std::to_string(::getpid()) + "_" +
                 testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directories(folder_);
  }
  ~ScratchTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ / name; }
  std::string write(const std::string& bytes, const std::string& name = "f") const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  std::string slurp(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(path(name), std::ios::binary).rdbuf();
    return text.str();
  }
  size_t file_count() const {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++count;
    return count;
  }

  // The text of the kIo error that `call` throws, after the file's path; checked to be one line.
  template <typename Call>
  std::string error_of(Call call) const {
    try {
      call();
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.kind(), ErrorKind::kIo) << text;
      EXPECT_EQ(text.find('\n'), std::string::npos) << text;
      EXPECT_EQ(text.rfind(folder_.string(), 0), 0U) << text;
      return text;
    }
    return "(no error)";
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace relpos::io
