#include "io/outputs.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "testing/files.h"

namespace relpos::io {
namespace {

class OutputsTest : public ScratchTest {
 protected:
  static void fill(OutputSet& outputs, const std::string& path, const std::string& text) {
    outputs.add(path).write(text.data(), text.size());
  }
};

TEST_F(OutputsTest, AppearTogether) {
  write("old", "a");
  {
    OutputSet outputs;
    fill(outputs, path("a"), "new");
    fill(outputs, path("b"), "new");
    EXPECT_EQ(slurp("a"), "old");
    EXPECT_FALSE(std::filesystem::exists(path("b")));
    outputs.commit();
  }
  EXPECT_EQ(slurp("a"), "new");
  EXPECT_EQ(slurp("b"), "new");
  EXPECT_EQ(file_count(), 2U);
}

TEST_F(OutputsTest, NoneIsReplacedWhereOneCannotBe) {
  write("old", "a");
  write("old", "d");
  {
    OutputSet outputs;
    for (const char* name : {"a", "b", "c", "d"}) fill(outputs, path(name), "new");
    std::filesystem::create_directory(path("c"));
    expect_error_of([&] { outputs.commit(); }, "rename");
  }
  EXPECT_EQ(slurp("a"), "old");
  EXPECT_EQ(slurp("d"), "old");
  EXPECT_EQ(file_count(), 3U);  // and the folder c
}

TEST_F(OutputsTest, LeaveNothingWithoutCommit) {
  write("old", "a");
  {
    OutputSet outputs;
    fill(outputs, path("a"), "new");
    fill(outputs, path("b"), "new");
  }
  EXPECT_EQ(slurp("a"), "old");
  EXPECT_EQ(file_count(), 1U);
}

TEST_F(OutputsTest, OneFileIsOneOutput) {
  namespace fs = std::filesystem;
  write("old", "a");
  fs::create_hard_link(path("a"), path("same"));
  fs::create_symlink("a", path("link"));
  fs::create_symlink("absent", path("dangling"));
  OutputSet outputs;
  outputs.add(path("a"));
  outputs.add(path("absent"));
  for (const char* name : {"a", "./a", "same", "link", "dangling", "./absent"}) {
    SCOPED_TRACE(name);
    expect_error_of([&] { outputs.add(path(name)); }, "two outputs");
  }
}

TEST_F(OutputsTest, ReplacedFilesKeepTheirModes) {
  namespace fs = std::filesystem;
  write("old", "a");
  const auto mode = fs::perms::owner_read | fs::perms::owner_write | fs::perms::others_read;
  fs::permissions(path("a"), mode);
  put("a", [](Sink& sink) { sink.write("new", 3); });
  EXPECT_EQ(slurp("a"), "new");
  EXPECT_EQ(fs::status(path("a")).permissions(), mode);
}

}  // namespace
}  // namespace relpos::io
