#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "testing/files.h"

namespace relpos::io {
namespace {

class SafetensorsTest : public ScratchTest {
 protected:
  void put_safetensors(const std::vector<std::pair<std::string, TensorView>>& tensors) const {
    put("x", [&](Sink& sink) { write_safetensors(sink, tensors); });
  }
  static std::string file(const std::string& header, size_t data_bytes) {
    std::string bytes;
    for (int n = 0; n < 8; ++n) bytes += static_cast<char>(uint64_t{header.size()} >> (8 * n));
    return bytes + header + std::string(data_bytes, '\0');
  }
  static std::string entry(const std::string& name, const std::string& dtype,
                           const std::string& shape, const std::string& offsets) {
    return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
           ",\"data_offsets\":" + offsets + "}";
  }
  void open(const std::string& name) const override { SafetensorsFile{name}; }
};

TEST_F(SafetensorsTest, WritesWhatItReads) {
  std::vector<float> values{0, 1, 2, 3, 4, 5};
  const TensorView transposed(values.data(), DType::kFloat32, {3, 2}, {1, 3});
  const Tensor half(DType::kBFloat16, {2});
  half.view().store(1, -1.5);
  const Tensor flags(DType::kBool, {1, 3}), empty(DType::kInt64, {0, 7});
  put_safetensors({{"a.weight", transposed},
                   {"b", half.view()},
                   {"flags", flags.view()},
                   {"empty", empty.view()}});
  EXPECT_EQ(file_count(), 1U);
  const SafetensorsFile back(path("x"));
  ASSERT_EQ(back.entries().size(), 4U);
  EXPECT_EQ(back.entries()[0].name, "a.weight");
  const Tensor a = back.read(*back.find("a.weight")), b = back.read(*back.find("b"));
  EXPECT_EQ(a.view().at({2, 1}), 5.0);
  EXPECT_EQ(a.view().at({0, 1}), 3.0);
  EXPECT_EQ(b.view().dtype, DType::kBFloat16);
  EXPECT_EQ(b.view().at({1}), -1.5);
  EXPECT_EQ(back.read(*back.find("empty")).view().dims(), (std::vector<int64_t>{0, 7}));
  EXPECT_EQ(back.find("c"), nullptr);
}

TEST_F(SafetensorsTest, RefusesNamesItCannotWrite) {
  const Tensor one(DType::kFloat32, {1});
  expect_error_of([&] { put_safetensors({{"a", one.view()}, {"a", one.view()}}); }, "taken");
  expect_error_of([&] { put_safetensors({{"\xff", one.view()}}); }, "UTF-8");
  EXPECT_EQ(file_count(), 0U);
}

TEST_F(SafetensorsTest, AcceptsMetadataPaddingAndOtherTypes) {
  const std::string name =
      write(file("{\"__metadata__\":{\"format\":\"pt\"}," + entry("x", "I8", "[3]", "[4,7]") + "," +
                     entry("y", "F32", "[]", "[0,4]") + "}   ",
                 7));
  const SafetensorsFile back(name);
  ASSERT_EQ(back.entries().size(), 2U);
  EXPECT_EQ(back.read(*back.find("y")).view().rank, 0);
  expect_error_of([&] { back.read(*back.find("x")); }, "dtype I8 is not supported");
  EXPECT_EQ(SafetensorsFile(write(file("{}", 0))).entries().size(), 0U);
}

TEST_F(SafetensorsTest, RefusesEveryTruncation) {
  const std::string whole = file("{" + entry("x", "F32", "[2]", "[0,8]") + "}", 8);
  expect_no_part_is_taken(whole);
  expect_error(whole + "x", "describes 8 bytes of data, the file has 9");
}

TEST_F(SafetensorsTest, RefusesLyingHeaders) {
  expect_error(std::string(8, '\xff') + "{}", "at most 16777216");
  expect_error(std::string("\x00\x00\x00\x01\x00\x00\x00\x00{}", 10), "truncated");
  expect_error(file("{" + entry("x", "F32", "[4611686018427387904]", "[0,8]") + "}", 8),
               "overflows 64 bits");
  expect_error(file("{" + entry("x", "F32", "[4294967296,4294967296]", "[0,8]") + "}", 8),
               "overflows 64 bits");
  expect_error(file("{" + entry("x", "F32", "[3]", "[0,8]") + "}", 8), "needs 12 bytes");
  expect_error(file("{" + entry("x", "F32", "[2]", "[8,0]") + "}", 8), "needs 8 bytes");
  expect_error(file("{" + entry("x", "F32", "[2]", "[0,18446744073709551615]") + "}", 8),
               "overflows int64");
  expect_error(file("{" + entry("x", "F32", "[2]", "[0,99999999999999999999]") + "}", 8),
               "fraction in 'x'");
  expect_error(file("{" + entry("x", "F33", "[2]", "[0,8]") + "}", 8), "unknown dtype 'F33'");
  expect_error(file("{" + entry("x", "BOOL", "[1]", "[0,1]") + "}", 0), "the file has 0");
}

TEST_F(SafetensorsTest, RefusesGapsAndOverlaps) {
  const std::string x = entry("x", "F32", "[1]", "[0,4]");
  expect_error(file("{" + x + "," + entry("y", "F32", "[1]", "[8,12]") + "}", 12), "without gaps");
  expect_error(file("{" + x + "," + entry("y", "F32", "[1]", "[0,4]") + "}", 4), "without gaps");
  expect_error(file("{" + entry("y", "F32", "[1]", "[4,8]") + "}", 8), "without gaps");
}

TEST_F(SafetensorsTest, RefusesMalformedJson) {
  const std::string x = entry("x", "F32", "[1]", "[0,4]");
  expect_error(file("{" + x + "," + x + "}", 4), "'x' appears twice");
  expect_error(file("{" + x, 4), "malformed JSON");
  expect_error(file("{" + x + "} {}", 4), "malformed JSON");
  expect_error(file("[" + x + "]", 4), "not a JSON object");
  expect_error(file(" {" + x + "}", 4), "not a JSON object");
  expect_error(file("{\"x\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4), "needs dtype, shape");
  expect_error(file("{\"x\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 4), "'dtype' appears twice");
  expect_error(file("{\"x\":{\"dtype\":\"F32\",\"strides\":[1]}}", 4), "unknown key");
  expect_error(file("{" + entry("x", "F32", "[-1]", "[0,4]") + "}", 4), "negative number in 'x'");
  expect_error(file("{" + entry("x", "F32", "[1.5]", "[0,4]") + "}", 4), "fraction in 'x'");
  expect_error(file("{" + entry("x", "F32", "[[1]]", "[0,4]") + "}", 4), "nests deeper");
  expect_error(file("{" + entry("x", "F32", "null", "[0,4]") + "}", 4), "null in 'x'");
  expect_error(file("{" + entry("x", "F32", "[1]", "[0,4,8]") + "}", 4), "two numbers");
  expect_error(file("{\"__metadata__\":{\"a\":{}}}", 0), "object in");
  expect_error(file("{\"x\":" + std::string(100000, '['), 0), "nests deeper");
  expect_error(file("{\"\xff\":{}}", 0), "malformed JSON");
  expect_error(file("{\"x\":1e999}", 0), "malformed JSON");
  expect_error(file("{\"x\":5}", 0), "number in 'x'");
  expect_error(file("{\"x\":[]}", 0), "array in 'x'");
  expect_error(file("{\"x\":{\"dtype\":{},\"shape\":[1],\"data_offsets\":[0,4]}}", 4),
               "object in 'x'");
  expect_error(file("{\"x\":{\"dtype\":\"F32\",\"shape\":3,\"data_offsets\":[0,4]}}", 4),
               "number in 'x'");
}

TEST_F(SafetensorsTest, SurvivesDamage) {
  const std::string x = entry("x", "F32", "[2,1]", "[0,8]"),
                    y = entry("y", "BOOL", "[3]", "[8,11]");
  survive_damage(file("{\"__metadata__\":{\"a\":\"b\"}," + x + "," + y + "}", 11), 4000,
                 [](const std::string& name) {
                   const SafetensorsFile back(name);
                   for (const auto& part : back.entries()) back.read(part);
                 });
}

TEST_F(SafetensorsTest, RefusesBadBoolsOnRead) {
  std::string bytes = file("{" + entry("x", "BOOL", "[2]", "[0,2]") + "}", 2);
  bytes.back() = '\x05';
  const SafetensorsFile back(write(bytes));
  expect_error_of([&] { back.read(back.entries()[0]); }, "element 1 is 5");
}

}  // namespace
}  // namespace relpos::io
