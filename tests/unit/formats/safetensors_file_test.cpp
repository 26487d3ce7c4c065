#include "lockstep/formats/safetensors/safetensors_file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <fstream>
#include <random>
#include <thread>

#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

namespace safetensors_file_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

using Content = std::map<std::string, std::string>;

std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_whole(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);  // truncating it instead would make ext4 flush the disk each time
  std::ofstream(path, std::ios::binary) << bytes;
}

ByteSpan bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// Tensor bytes by name; the metadata under "metadata <name>".
Content load(const std::string& path, Integrity integrity = Integrity::required) {
  const SafetensorsReader reader(path, integrity);
  Content content;
  for (const TensorEntry& entry : reader.header().tensors) {
    std::string bytes(entry.end - entry.begin, '\0');
    reader.read(entry, std::as_writable_bytes(std::span(bytes)));
    content[entry.name] = bytes;
  }
  for (const auto& [key, value] : reader.header().metadata) content["metadata " + key] = value;
  return content;
}

const std::string kWeight = "0123456789abcdef";
const std::string kBias = "x";
const Content kExpected = {{"weight", kWeight}, {"bias", kBias}, {"empty", ""}, {"metadata epoch", "3"}};

void save_example(const std::string& path) {
  const std::vector<TensorBytes> tensors = {
      {"bias", "U8", {1}, bytes_of(kBias)}, {"weight", "F32", {2, 2}, bytes_of(kWeight)}, {"empty", "F16", {0}, {}}};
  write_safetensors(path, tensors, {{"epoch", "3"}});
}

Error load_error(const std::string& path, const std::string& bytes) {
  write_whole(path, bytes);
  return error_of([&] { load(path); });
}

}  // namespace

TEST_CASE("digests are XXH3-128 in its canonical form") {
  CHECK(xxh3_128(ByteView("")) == "99aa06d3014798d86001c324468d497f");
  CHECK(xxh3_128(ByteView("abc")) == "06b05ab6733a618578af5f94892f3950");
}

// feature: H-08
TEST_CASE("a file survives the round trip and belongs to its owner alone") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.safetensors";
  save_example(path);
  CHECK(load(path) == kExpected);
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
}

// fault: 24
TEST_CASE("every single flipped bit is found") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.safetensors";
  save_example(path);
  const std::string whole = read_whole(path);
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    CAPTURE(bit);
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    CHECK_ERROR(load_error(path, flipped), ErrorKind::corrupt_data, path + " is damaged");
  }
}

// fault: 25
TEST_CASE("a file cut or lengthened anywhere is refused") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.safetensors";
  save_example(path);
  const std::string whole = read_whole(path);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    CHECK_ERROR(load_error(path, whole.substr(0, length)), ErrorKind::corrupt_data, path + " is damaged");
  }
  CHECK_ERROR(load_error(path, whole + "x"), ErrorKind::corrupt_data, "take 17 bytes, but 18", "too long");
  CHECK_ERROR(load_error(path, whole.substr(0, whole.size() - 1)), ErrorKind::corrupt_data, "take 17 bytes, but 16",
              "truncated");
}

// fault: 24
TEST_CASE("random damage of several bytes is found") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.safetensors";
  save_example(path);
  const std::string whole = read_whole(path);
  for (unsigned seed = 0; seed < 3000; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::string damaged = whole;
    const std::size_t begin = random() % whole.size();
    const std::size_t end = begin + 1 + random() % (whole.size() - begin);
    for (std::size_t i = begin; i < end; ++i) damaged[i] = static_cast<char>(random() % 2 == 0 ? random() : 0);
    if (damaged == whole) continue;
    CHECK_ERROR(load_error(path, damaged), ErrorKind::corrupt_data, path + " is damaged");
  }
}

// fault: 25
TEST_CASE("the text names tensor, place, expected and found") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.safetensors";
  save_example(path);
  std::string bytes = read_whole(path);
  const std::size_t data = bytes.size() - 17;
  bytes[data + 5] = '?';
  CHECK_ERROR(load_error(path, bytes), ErrorKind::corrupt_data, "tensor 'weight'", "F32 [2, 2]", "bytes 0 to 16",
              std::to_string(data) + " to " + std::to_string(data + 16) + " of the file",
              "expected '" + xxh3_128(ByteView(kWeight)) + "'", "found " + xxh3_128(ByteView("01234?6789abcdef")));
  save_example(path);
  bytes = read_whole(path);
  bytes.replace(bytes.find("\"epoch\":\"3\""), 11, "\"epoch\":\"4\"");
  CHECK_ERROR(load_error(path, bytes), ErrorKind::corrupt_data, "the header, bytes 0 to " + std::to_string(data),
              "XXH3-128 expected");
}

TEST_CASE("a file without integrity record is loaded only on request; a partial record never is") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.safetensors";
  SafetensorsHeader header;
  header.tensors = {{.name = "a", .dtype = "U8", .shape = {3}}};
  lay_out(header);
  const Content expected = {{"a", "abc"}};
  CHECK_ERROR(load_error(path, serialise_header(header) + "abc"), ErrorKind::corrupt_data, "no integrity record",
              "Integrity::if_present");
  CHECK(load(path, Integrity::if_present) == expected);
  header.metadata = {{"lockstep.xxh3.tensor.a", xxh3_128(ByteView("abc"))}};
  write_whole(path, serialise_header(header) + "abc");
  CHECK_ERROR(error_of([&] { load(path, Integrity::if_present); }), ErrorKind::corrupt_data, "own digest is missing");
}

TEST_CASE("a record that lacks a tensor, or has one too many, is refused") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.safetensors";
  const auto with_record = [](std::vector<std::string> names) {
    SafetensorsHeader header;
    header.tensors = {{.name = "a", .dtype = "U8", .shape = {3}}};
    for (const std::string& name : names) header.metadata["lockstep.xxh3.tensor." + name] = xxh3_128(ByteView("abc"));
    header.metadata["lockstep.xxh3.header"] = std::string(32, '0');
    lay_out(header);
    std::string text = serialise_header(header);
    const std::string mark = "\"lockstep.xxh3.header\":\"";
    text.replace(text.find(mark) + mark.size(), 32, xxh3_128(text));
    return text + "abc";
  };
  write_whole(path, with_record({"a"}));
  CHECK(load(path) == Content{{"a", "abc"}});
  CHECK_ERROR(load_error(path, with_record({})), ErrorKind::corrupt_data, "tensor 'a'", "no digest");
  CHECK_ERROR(load_error(path, with_record({"a", "b"})), ErrorKind::corrupt_data, "1 tensors, but digests for 2");
}

// fault: 25
TEST_CASE("reserved metadata, wrong sizes, missing files and directories are refused") {
  const TemporaryDirectory directory;
  const std::vector<TensorBytes> tensors = {{"a", "F32", {2}, bytes_of(kWeight)}};
  CHECK_ERROR(error_of([&] {
                write_safetensors(directory / "a", {}, {{"lockstep.x", ""}});
              }),
              ErrorKind::invalid_argument, "'lockstep.'", "lockstep.x");
  CHECK_ERROR(error_of([&] { write_safetensors(directory / "a", tensors, {}); }), ErrorKind::invalid_argument,
              "tensor 'a'", "got 16 bytes of data");
  CHECK(std::filesystem::is_empty(directory.path()));
  CHECK_ERROR(error_of([&] { write_safetensors(directory / "b/a", {}, {}); }), ErrorKind::invalid_argument,
              directory / "b", "does not exist");
  CHECK_ERROR(error_of([&] { load(directory / "missing"); }), ErrorKind::invalid_argument, "no such file");
  CHECK_ERROR(error_of([&] { load(directory.path()); }), ErrorKind::invalid_argument, "not a regular file");
}

// feature: H-02
TEST_CASE("several writers and readers of one path: every read sees one whole file") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.safetensors";
  const auto save = [&path](char fill) {
    const std::string content(100'000, fill);
    const std::vector<TensorBytes> tensors = {{"a", "U8", {100'000}, bytes_of(content)}};
    write_safetensors(path, tensors, {{"fill", std::string(1, fill)}});
  };
  save('0');
  std::vector<std::jthread> writers;
  for (char fill = 'a'; fill < 'e'; ++fill) {
    writers.emplace_back([&save, fill] {
      for (int i = 0; i < 10; ++i) save(fill);
    });
  }
  for (int i = 0; i < 50; ++i) {
    const Content content = load(path);
    REQUIRE(content.at("a") == std::string(100'000, content.at("metadata fill")[0]));
  }
  writers.clear();
  CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 1);
}

}  // namespace safetensors_file_test
