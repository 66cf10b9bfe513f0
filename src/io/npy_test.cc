#include "io/npy.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "testing/files.h"

namespace relpos::io {
namespace {

class NpyTest : public ScratchTest {
 protected:
  void put_npy(const std::string& name, const TensorView& view) const {
    put(name, [&](Sink& sink) { write_npy(sink, view); });
  }
  static std::string file(const std::string& header, const std::string& data, int major = 1) {
    std::string bytes = "\x93NUMPY";
    bytes += static_cast<char>(major);
    bytes += '\0';
    for (int n = 0; n < (major == 1 ? 2 : 4); ++n) {
      bytes += static_cast<char>(header.size() >> (8 * n));
    }
    return bytes + header + data;
  }
  static std::string header(const std::string& descr, const std::string& shape,
                            const std::string& order = "False") {
    return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
  }
  template <typename T>
  static std::string data(const std::vector<T>& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  void open(const std::string& name) const override { read_npy(name); }
};

TEST_F(NpyTest, ReadsEveryVersion) {
  for (int major : {1, 2, 3}) {
    const auto name = write(file(header("<f4", "(2, 3)"), data<float>({1, 2, 3, 4, 5, 6}), major));
    const Tensor tensor = read_npy(name);
    EXPECT_EQ(tensor.view().dims(), (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(tensor.view().at({1, 2}), 6.0);
  }
  expect_error(file(header("<f4", "()"), data<float>({1}), 4), "version 4");
}

TEST_F(NpyTest, ReadsFortranOrderRowMajor) {
  const auto bytes = data<int64_t>({0, 10, 20, 1, 11, 21});
  const Tensor tensor = read_npy(write(file(header("<i8", "(3, 2)", "True"), bytes)));
  ASSERT_TRUE(tensor.view().contiguous());
  const std::array<int64_t, 6> expected{0, 1, 10, 11, 20, 21};
  EXPECT_EQ(std::memcmp(tensor.data<int64_t>(), expected.data(), sizeof expected), 0);
}

TEST_F(NpyTest, ReadsScalarsAndEmptyShapes) {
  EXPECT_EQ(read_npy(write(file(header("<f8", "()"), data<double>({2.5})))).view().rank, 0);
  const Tensor empty = read_npy(write(file(header("<f8", "(4611686018427387904, 8, 0)"), "")));
  EXPECT_EQ(empty.view().numel(), 0);
  EXPECT_EQ(read_npy(write(file(header("<f4", "(1L,)"), data<float>({3})))).view().at({0}), 3.0);
}

TEST_F(NpyTest, WritesWhatItReads) {
  std::vector<double> numbers(24);
  for (size_t n = 0; n < numbers.size(); ++n) numbers[n] = static_cast<double>(n) - 3.5;
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kInt64,
                      DType::kInt32, DType::kBool}) {
    const Tensor tensor(dtype, {2, 3, 4});
    for (int64_t n = 0; n < 24; ++n) {
      tensor.view().store(n, dtype == DType::kBool ? double(n % 2) : numbers[size_t(n)]);
    }
    put_npy("x.npy", tensor.view());
    EXPECT_EQ(slurp("x.npy").find('\n') % 64, 63U);
    const Tensor back = read_npy(path("x.npy"));
    ASSERT_EQ(back.view().dtype, dtype);
    for (int64_t n = 0; n < 24; ++n) EXPECT_EQ(back.view().load(n), tensor.view().load(n));
  }
}

TEST_F(NpyTest, WritesStridedViewsRowMajor) {
  std::vector<float> values{0, 1, 2, 3, 4, 5};
  // The transpose, last row first; and one row repeated.
  const TensorView flipped(values.data() + 2, DType::kFloat32, {3, 2}, {-1, 3});
  put_npy("x.npy", flipped);
  const Tensor back = read_npy(path("x.npy"));
  const std::array<float, 6> expected{2, 5, 1, 4, 0, 3};
  EXPECT_EQ(std::memcmp(back.data<float>(), expected.data(), sizeof expected), 0);
  put_npy("x.npy", TensorView(values.data(), DType::kFloat32, {2, 3}, {0, 1}));
  EXPECT_EQ(read_npy(path("x.npy")).view().at({1, 2}), 2.0);
}

TEST_F(NpyTest, ReplacesWholeOrNotAtAll) {
  const Tensor tensor(DType::kFloat32, {4});
  put_npy("x.npy", tensor.view());
  put_npy("x.npy", tensor.view());
  EXPECT_EQ(file_count(), 1U);
  const Tensor odd(DType::kBFloat16, {4});
  expect_error_of([&] { put_npy("x.npy", odd.view()); }, ".safetensors");
  EXPECT_EQ(read_npy(path("x.npy")).view().numel(), 4);
  expect_error_of([&] { put_npy("no/x.npy", tensor.view()); }, "folder");
  std::filesystem::create_directory(path("folder"));
  expect_error_of([&] { put_npy("folder", tensor.view()); }, "regular file");
  EXPECT_EQ(file_count(), 2U);
}

TEST_F(NpyTest, RefusesEveryTruncation) {
  const std::string whole = file(header("<f4", "(2, 2)"), data<float>({1, 2, 3, 4}));
  expect_no_part_is_taken(whole);
  expect_error(whole + "x", "needs 16 bytes of data, the file has 17");
}

TEST_F(NpyTest, RefusesLies) {
  const std::string four = data<float>({1, 2, 3, 4});
  expect_error(file(header("<f4", "(4611686018427387904,)"), four), "overflows 64 bits");
  expect_error(file(header("<f4", "(2305843009213693951,)"), four), "the file has 16");
  expect_error(file(header("<f4", "(4294967296, 4294967296)"), four), "overflows 64 bits");
  expect_error(file(header("<f4", "(99999999999999999999,)"), four), "overflows int64");
  expect_error(file(header("<f4", "(-4,)"), four), "bad size");
  expect_error(file(header("<f4", "(4.0,)"), four), "malformed");
  expect_error(file(header("<f4", "(1, 1, 1, 1, 1, 1, 4)"), four), "at most 6 axes");
  expect_error(file(header("|b1", "(2,)"), "\x01\x02"), "element 1 is 2");
  std::string padded = header("<f4", "(4,)");
  padded.resize(10001, ' ');
  expect_error(file(padded, four), "at most 10000");
  std::string lying = file(header("<f4", "(4,)"), four);
  lying[9] = '\x20';  // a header of 8 kB in a short file
  expect_error(lying, "truncated");
  expect_error("PK\x03\x04 a zip, not numbers", "does not start with");
  expect_error("", "only 0 bytes");
}

TEST_F(NpyTest, RefusesOtherTypes) {
  expect_error(file(header(">f4", "(1,)"), data<float>({1})), "big-endian");
  expect_error(file(header("|O", "(1,)"), "\x80\x04K\x01."), "pickled objects");
  expect_error(file(header("<c8", "(1,)"), data<double>({1})), "not supported");
  expect_error(file(header("|i1", "(1,)"), "a"), "not supported");
  expect_error(file(header("", "(1,)"), "a"), "not supported");
  expect_error(file("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "abcd"),
               "structured");
}

TEST_F(NpyTest, RefusesMalformedHeaders) {
  const std::string one = data<float>({1});
  expect_error(file("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': ()}", one),
               "appears twice");
  expect_error(file("{'descr': '<f4', 'shape': ()}", one), "needs descr");
  expect_error(file("{'descr': '<f4', 'fortran_order': 0, 'shape': ()}", one), "True or False");
  expect_error(file("{'descr': '<f4', 'fortran_order': False, 'shape': (), 'x': 1}", one),
               "unknown key");
  expect_error(file("{'descr': '<f4', 'fortran_order': False, 'shape': ()} os", one), "text after");
  expect_error(file("{'descr': '<f4", one), "unterminated");
  expect_error(file("{'a\nb': '<f4'}", one), "'a\\x0ab'");
  expect_error(file(std::string(64, '\0'), one), "malformed");
}

TEST_F(NpyTest, SurvivesDamage) {
  survive_damage(file(header("<f4", "(2, 2)"), data<float>({1, 2, 3, 4})), 2000, read_npy);
  survive_damage(file(header("|b1", "(2, 1, 3)", "True"), std::string(6, '\1')), 2000, read_npy);
}

TEST_F(NpyTest, RefusesWhatIsNoRegularFile) {
  expect_error_of([&] { read_npy(path("absent")); }, "cannot open");
  std::filesystem::create_directory(path("folder"));
  expect_error_of([&] { read_npy(path("folder")); }, "regular file");
}

}  // namespace
}  // namespace relpos::io
