// Scratch files for the tests of this folder.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>

#include "io/outputs.h"
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

  // Opens a file of the kind that is tested.
  virtual void open(const std::string&) const {}
  std::string error(const std::string& bytes) const {
    const std::string name = write(bytes);
    return error_of([&] { open(name); });
  }
  void expect_error(const std::string& bytes, const std::string& part) const {
    const std::string text = error(bytes);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  template <typename Call>
  void expect_error_of(Call call, const std::string& part) const {
    const std::string text = error_of(call);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }

  void expect_no_part_is_taken(const std::string& whole) const {
    for (size_t size = 0; size < whole.size(); ++size) {
      EXPECT_NE(error(whole.substr(0, size)), "(no error)") << size;
    }
  }

  // Runs `read` on `count` files that differ from `bytes` in a few bytes or end early: it may succeed
  // or throw kIo, nothing else.
  template <typename Read>
  void survive_damage(const std::string& bytes, int count, Read read) const {
    std::mt19937_64 random(1);
    int refused = 0;
    for (int n = 0; n < count; ++n) {
      std::string damaged = bytes;
      for (uint64_t change = random() % 4 + 1; change-- > 0;) {
        damaged[random() % damaged.size()] = static_cast<char>(random());
      }
      if (n % 4 == 0) damaged.resize(random() % damaged.size());
      const std::string name = write(damaged);
      refused += error_of([&] { read(name); }) != "(no error)";
    }
    EXPECT_GT(refused, count / 4);
  }

  // Gives `write` a sink; what it leaves becomes the file.
  template <typename Write>
  void put(const std::string& name, Write write) const {
    OutputSet outputs;
    write(outputs.add(path(name)));
    outputs.commit();
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
