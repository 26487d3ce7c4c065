// Checkpoints that torch.distributed.checkpoint has saved.
#include "lockstep/formats/distributed_checkpoint.h"

#include <doctest/doctest.h>

#include <fstream>

#include "tests/support/command.h"
#include "tests/support/expect_error.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/formats/torch_description.h"

namespace distributed_checkpoint_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

// Empty if there is no PyTorch.
const std::string& saved() {
  static const TemporaryDirectory directory;
  static const std::string path = [] {
    if (!has_pytorch(LOCKSTEP_PYTHON)) return std::string();
    REQUIRE(run_command({LOCKSTEP_PYTHON, "-B", LOCKSTEP_DISTRIBUTED_ORACLE, directory.path()}).exit_code == 0);
    return directory.path();
  }();
  if (path.empty()) skip("PyTorch is not installed");
  return path;
}

const DistributedTensor& find(const DistributedCheckpoint& checkpoint, const std::string& name) {
  for (const DistributedTensor& each : checkpoint.tensors()) {
    if (each.name == name) return each;
  }
  FAIL("no tensor " << name);
  return checkpoint.tensors().front();
}

std::string bytes_of(const DistributedCheckpoint& checkpoint, const std::string& name) {
  const DistributedTensor& tensor = find(checkpoint, name);
  std::string bytes(tensor.bytes, '?');
  checkpoint.read(tensor, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

template <class Number>
std::string counted(std::size_t count) {
  std::vector<Number> numbers;
  for (std::size_t i = 0; i < count; ++i) numbers.push_back(static_cast<Number>(i));
  return {reinterpret_cast<const char*>(numbers.data()), count * sizeof(Number)};
}

std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

DistributedTensor tiled(std::vector<std::int64_t> shape, std::vector<DistributedChunk> chunks) {
  return {.name = "t", .dtype = "F32", .shape = std::move(shape), .bytes = 0, .chunks = std::move(chunks)};
}

}  // namespace

TEST_CASE("a checkpoint of one rank" * needs("pytorch")) {
  if (saved().empty()) return;
  const DistributedCheckpoint checkpoint(saved() + "/one");
  CHECK(checkpoint.tensors().size() == 6);
  CHECK(bytes_of(checkpoint, "model.w") == counted<float>(12));
  CHECK(bytes_of(checkpoint, "model.small") == std::string("\1\0\2\0", 4));
  CHECK(find(checkpoint, "model.small").dtype == "U16");
  CHECK(find(checkpoint, "model.turned").shape == std::vector<std::int64_t>{3, 2});
  CHECK(bytes_of(checkpoint, "model.turned").substr(8, 8) == std::string("\3\0\0\0\0\0\0\0", 8));
  CHECK(bytes_of(checkpoint, "model.scalar") == std::string("\5\0\0\0\0\0\0\0", 8));
  CHECK(bytes_of(checkpoint, "model.none").empty());
  CHECK(checkpoint.value_names() == std::vector<std::string>{"name", "optimizer.lr", "step"});
  CHECK(checkpoint.read_value("step").root().integer() == 7);
  CHECK(checkpoint.read_value("name").root().text() == "x");
  CHECK(checkpoint.read_value("optimizer.lr").root().item(1).number() == 0.2);
  CHECK_ERROR(error_of([&] { checkpoint.read_value("epoch"); }), ErrorKind::invalid_argument,
              "no non-tensor value 'epoch'");
}

TEST_CASE("tensors that ranks share are put together" * needs("pytorch")) {
  if (saved().empty()) return;
  for (const std::string name : {"two", "two_dimensions"}) {
    CAPTURE(name);
    const DistributedCheckpoint checkpoint(saved() + "/" + name);
    CHECK(find(checkpoint, "rows").chunks.size() == (name == "two" ? 2 : 4));
    CHECK(bytes_of(checkpoint, "rows") == counted<float>(15));
    CHECK(bytes_of(checkpoint, "columns") == counted<float>(15));
    CHECK(bytes_of(checkpoint, "small") == counted<float>(3));
    CHECK(bytes_of(checkpoint, "copies") == std::string("\x80\x3f\x80\x3f\x80\x3f"));
    CHECK(checkpoint.read_value("step").root().integer() == 7);
  }
}

// fault: 24, 25, S9
TEST_CASE("parts that are missing, cut off, damaged or links are refused" * needs("pytorch")) {
  if (saved().empty()) return;
  const TemporaryDirectory directory;
  const std::string path = directory / "copy";
  const std::string part = path + "/__1_0.distcp";
  const auto refused = [&](auto change) {
    std::filesystem::remove_all(path);
    std::filesystem::copy(saved() + "/two", path);
    change();
    return error_of([&] { bytes_of(DistributedCheckpoint(path), "rows"); });
  };
  CHECK_ERROR(refused([&] { std::filesystem::remove(part); }), ErrorKind::corrupt_data, part, "is missing");
  CHECK_ERROR(refused([&] { std::filesystem::resize_file(part, 100); }), ErrorKind::corrupt_data, part,
              "only 100 bytes");
  CHECK_ERROR(refused([&] {
                std::filesystem::remove(part);
                std::filesystem::create_symlink(saved() + "/two/__1_0.distcp", part);
              }),
              ErrorKind::corrupt_data, part, "symbolic link");
  CHECK_ERROR(refused([&] {
                std::string bytes = slurp(part);
                const std::size_t data = bytes.find(counted<float>(15).substr(36));  // the second rank's rows
                REQUIRE(data != std::string::npos);
                bytes[data] ^= 1;
                std::ofstream(part, std::ios::binary) << bytes;
              }),
              ErrorKind::corrupt_data, part, "'rows'", "CRC error");
  CHECK_ERROR(refused([&] {
                std::string bytes = slurp(path + "/.metadata");
                const std::size_t name = bytes.find("__1_0.distcp");
                bytes.replace(name, 12, "../0.distcp1");
                std::ofstream(path + "/.metadata", std::ios::binary) << bytes;
              }),
              ErrorKind::corrupt_data, path + "/.metadata", "'../0.distcp1'", "same directory");
  CHECK_ERROR(refused([&] { std::filesystem::remove(path + "/.metadata"); }), ErrorKind::corrupt_data,
              path + "/.metadata", "is missing");
}

TEST_CASE("every truncation of .metadata is refused" * needs("pytorch")) {
  if (saved().empty()) return;
  const std::string whole = slurp(saved() + "/two/.metadata");
  CHECK(parse_distributed_metadata(whole, "m").tensors.size() == 4);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    CHECK_ERROR(error_of([&] { parse_distributed_metadata(whole.substr(0, length), "m"); }), ErrorKind::corrupt_data,
                "m: ");
  }
}

TEST_CASE("chunks that do not tile their tensor are refused") {
  const auto refused = [](const DistributedTensor& tensor) { return error_of([&] { check_tiling(tensor, "m"); }); };
  check_tiling(tiled({4, 4}, {{{0, 0}, {4, 2}, {}}, {{0, 2}, {1, 2}, {}}, {{1, 2}, {3, 2}, {}}}), "m");
  check_tiling(tiled({}, {{{}, {}, {}}}), "m");
  check_tiling(tiled({0, 3}, {}), "m");
  check_tiling(tiled({2}, {{{0}, {2}, {}}, {{2}, {0}, {}}}), "m");
  CHECK_ERROR(refused(tiled({4}, {{{0}, {3}, {}}})), ErrorKind::corrupt_data, "chunks of 't' [4]", "3 of 4 elements");
  CHECK_ERROR(refused(tiled({4}, {{{0}, {3}, {}}, {{2}, {1}, {}}})), ErrorKind::corrupt_data, "[0] and [2] overlap");
  CHECK_ERROR(refused(tiled({4}, {{{0}, {3}, {}}, {{2}, {2}, {}}})), ErrorKind::corrupt_data, "they overlap");
  CHECK_ERROR(refused(tiled({4}, {{{3}, {2}, {}}})), ErrorKind::corrupt_data, "reaches beyond");
  CHECK_ERROR(refused(tiled({4}, {{{INT64_MAX}, {INT64_MAX}, {}}})), ErrorKind::corrupt_data, "reaches beyond");
  CHECK_ERROR(refused(tiled({4}, {{{0, 0}, {4, 1}, {}}})), ErrorKind::corrupt_data, "another number of dimensions");
  CHECK_ERROR(refused(tiled({}, {{{}, {}, {}}, {{}, {}, {}}})), ErrorKind::corrupt_data, "they overlap");
  CHECK_ERROR(refused(tiled({2, 2}, {{{0, 0}, {1, 2}, {}}, {{0, 1}, {2, 1}, {}}})), ErrorKind::corrupt_data, "overlap");
}

}  // namespace distributed_checkpoint_test
