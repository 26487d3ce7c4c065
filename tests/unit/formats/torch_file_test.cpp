#include "lockstep/formats/torch_file.h"

#include <doctest/doctest.h>

#include <fstream>

#include "lockstep/formats/torch_file_writer.h"
#include "lockstep/formats/zip_archive.h"
#include "lockstep/formats/zip_writer.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/formats/pickle_bytes.h"
#include "tests/unit/formats/torch_description.h"

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

using Entries = std::vector<std::pair<std::string, std::string>>;

const std::string kSixteen = "0123456789abcdef";

std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}

void write_zip(const std::string& path, const Entries& entries) {
  AtomicFile file(path);
  ZipWriter zip(file);
  for (const auto& [name, bytes] : entries) zip.add(name, bytes);
  zip.finish();
  file.publish();
}

// A file of one tensor over a storage of four floats.
std::string one_tensor() { return kProtocol2 + tensor(storage("0", 4), 0, numbers({2, 2}), numbers({2, 1})) + "."; }

Entries entries_of(const std::string& pickle) {
  return {{"x/data.pkl", pickle}, {"x/byteorder", "little"}, {"x/data/0", kSixteen}, {"x/version", "3\n"}};
}

std::string load_all(const std::string& path) { return description(TorchFile(path)); }

Error zip_error(const std::string& path, const Entries& entries) {
  write_zip(path, entries);
  return error_of([&] { load_all(path); });
}

// The legacy format, by hand.
std::string legacy(const std::string& count, bool is_little = true) {
  const std::string magic("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20j\xa8\x50\x19.", 15);
  const std::string machine = kProtocol2 + "}" + text("little_endian") + (is_little ? "\x88" : "\x89") + "s.";
  return magic + kProtocol2 + "M\xe9\3." + machine + one_tensor() + kProtocol2 + "]" + text("0") + "a." + count +
         kSixteen;
}

void save_example(const std::string& path) {
  const ByteSpan bytes = std::as_bytes(std::span(kSixteen));
  using Dict = TorchValue::Dict;
  write_torch_file(path, {Dict{{"w", {tensor_of("F32", {2, 2}, bytes)}},
                               {"b", {tensor_of("U8", {3}, bytes.first(3))}},
                               {"step", {std::int64_t{7}}}}});
}

}  // namespace

TEST_CASE("what is written is read, and data begins at multiples of 64") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.pt";
  save_example(path);
  CHECK(load_all(path) == "w tensor F32 [2, 2] 00 " + hex(kSixteen) + "\nb tensor U8 [3] 00 303132\nstep int 7\n");
  const std::string whole = read_bytes(path);
  CHECK(whole.find(kSixteen) % 64 == 0);
  CHECK(whole.find("\x80\x02}(") % 64 == 0);
}

// fault: 25
TEST_CASE("a file cut anywhere is refused, in each format") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.pt";
  save_example(path);
  const std::string whole = read_bytes(path);
  const std::string old = legacy(little_endian(4, 8));
  write_bytes(path, old);
  CHECK(load_all(path) == " tensor F32 [2, 2] 00 " + hex(kSixteen) + "\n");
  for (const std::string& each : {whole, old}) {
    for (std::size_t length = 0; length < each.size(); ++length) {
      CAPTURE(length);
      write_bytes(path, each.substr(0, length));
      CHECK(contains(error_of([&] { load_all(path); }).what(), path));
    }
  }
}

// fault: 24
TEST_CASE("damage of a tensor is found, whole or in part") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.pt";
  save_example(path);
  const std::string whole = read_bytes(path);
  for (std::size_t i = 0; i < kSixteen.size(); ++i) {
    std::string damaged = whole;
    damaged[whole.find(kSixteen) + i] ^= 1;
    write_bytes(path, damaged);
    CHECK_ERROR(error_of([&] { load_all(path); }), ErrorKind::corrupt_data, path + " is damaged",
                "entry 'archive/data/0' of 16 bytes: CRC error");
  }
  const std::string row = kProtocol2 + tensor(storage("0", 4), 1, numbers({2}), numbers({1})) + ".";
  write_zip(path, entries_of(row));
  CHECK(load_all(path) == " tensor F32 [2] 00 " + hex(kSixteen.substr(4, 8)) + "\n");
  std::string damaged = read_bytes(path);
  damaged[damaged.find(kSixteen) + 15] ^= 1;  // no part of the tensor
  write_bytes(path, damaged);
  CHECK_ERROR(error_of([&] { load_all(path); }), ErrorKind::corrupt_data, "entry 'x/data/0' of 16 bytes: CRC error");
}

TEST_CASE("flipped bits anywhere never crash, and never change a tensor") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.pt";
  save_example(path);
  const std::string whole = read_bytes(path);
  const std::string expected = load_all(path);
  std::size_t refused = 0;
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    write_bytes(path, flipped);
    try {
      if (load_all(path) != expected) FAIL("bit " << bit << " was not found");
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(refused > whole.size());  // padding and dates may change
}

TEST_CASE("tensors that reach beyond their storage are refused") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.pt";
  const auto refused = [&](std::uint32_t offset, const std::string& shape, const std::string& strides) {
    return zip_error(path, entries_of(kProtocol2 + tensor(storage("0", 4), offset, shape, strides) + "."));
  };
  CHECK_ERROR(refused(0, numbers({5}), numbers({1})), ErrorKind::corrupt_data, "storage '0'", "[5] with strides [1]",
              "beyond its storage of 16 bytes");
  CHECK_ERROR(refused(4, numbers({1}), numbers({1})), ErrorKind::corrupt_data, "beyond its storage");
  CHECK_ERROR(refused(0, numbers({2}), numbers({4})), ErrorKind::corrupt_data, "beyond its storage");
  const std::string huge = numbers({0x7fffffff, 0x7fffffff, 0x7fffffff});
  CHECK_ERROR(refused(0, huge, huge), ErrorKind::corrupt_data, "more than 2^63 bytes");
  CHECK_ERROR(refused(0, huge, numbers({0, 0, 0})), ErrorKind::corrupt_data, "more than 2^63 bytes");
  Entries entries = entries_of(one_tensor());
  entries[2].second = "short";
  CHECK_ERROR(zip_error(path, entries), ErrorKind::corrupt_data, "storage '0': it has 5 bytes, 16 were saved");
  entries.erase(entries.begin() + 2);
  CHECK_ERROR(zip_error(path, entries), ErrorKind::corrupt_data, "the storage '0' is missing");
}

TEST_CASE("archives that are none of torch.save are refused by name") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.pt";
  CHECK_ERROR(zip_error(path, {{"x/a", ""}}), ErrorKind::invalid_argument, path, "no data.pkl");
  CHECK_ERROR(zip_error(path, {{"data.pkl", one_tensor()}}), ErrorKind::invalid_argument, "no data.pkl");
  CHECK_ERROR(zip_error(path, {{"x/y/data.pkl", one_tensor()}}), ErrorKind::invalid_argument, "no data.pkl");
  CHECK_ERROR(zip_error(path, {{"x/data.pkl", one_tensor()}, {"y/data.pkl", one_tensor()}}), ErrorKind::corrupt_data,
              "both 'x/data.pkl' and 'y/data.pkl'");
  CHECK_ERROR(zip_error(path, {{"x/data.pkl", one_tensor()}, {"x/data.pkl", one_tensor()}}), ErrorKind::corrupt_data,
              path + " is damaged");
  Entries entries = entries_of(one_tensor());
  entries[1].second = "big";
  CHECK_ERROR(zip_error(path, entries), ErrorKind::invalid_argument, "byte order is 'big'", "only 'little'");
  write_bytes(path, legacy(little_endian(4, 8), false));
  CHECK_ERROR(error_of([&] { load_all(path); }), ErrorKind::invalid_argument, "byte order is 'big'");
  write_bytes(path, std::string(8, '\0') + "{");
  CHECK_ERROR(error_of([&] { load_all(path); }), ErrorKind::invalid_argument, "is a safetensors file",
              "load_checkpoint()");
}

// fault: 26
TEST_CASE("hostile archives are refused") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.pt";
  write_zip(path, entries_of(one_tensor()));
  const std::string whole = read_bytes(path);
  const auto with = [&](const std::string& entry, std::size_t offset, const std::string& bytes) {
    std::string changed = whole;
    changed.replace(changed.rfind(entry) - 46 + offset, bytes.size(), bytes);  // in the directory
    write_bytes(path, changed);
    return error_of([&] { load_all(path); });
  };
  CHECK_ERROR(with("x/data.pkl", 10, little_endian(8, 2)), ErrorKind::corrupt_data, path + " is damaged");
  std::string packed = whole;
  packed.replace(8, 2, little_endian(8, 2));
  packed.replace(packed.rfind("x/data.pkl") - 36, 2, little_endian(8, 2));
  write_bytes(path, packed);
  CHECK_ERROR(error_of([&] { load_all(path); }), ErrorKind::invalid_argument, path, "'x/data.pkl' is compressed",
              "zip -0");
  CHECK_ERROR(with("x/data/0", 24, little_endian(0xfffffff0, 4)), ErrorKind::corrupt_data, path + " is damaged");
  CHECK_ERROR(with("x/data/0", 20, little_endian(0x100000, 4)), ErrorKind::corrupt_data, path + " is damaged");
  CHECK_ERROR(with("x/data/0", 42, little_endian(0, 4)), ErrorKind::corrupt_data, path + " is damaged");
  CHECK_ERROR(with("x/data/0", 42, little_endian(0x7ffffff0, 4)), ErrorKind::corrupt_data, path + " is damaged");
  CHECK_ERROR(with("x/data/0", 16, little_endian(1, 4)), ErrorKind::corrupt_data, path + " is damaged");
}

TEST_CASE("legacy files are checked before anything is allocated") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.pt";
  const auto refused = [&](const std::string& bytes) {
    write_bytes(path, bytes);
    return error_of([&] { load_all(path); });
  };
  CHECK_ERROR(refused(legacy(little_endian(~0ULL, 8))), ErrorKind::corrupt_data,
              "the storage '0' has 18446744073709551615");
  CHECK_ERROR(refused(legacy(little_endian(3, 8))), ErrorKind::corrupt_data, "4 more bytes follow");
  CHECK_ERROR(refused(legacy(little_endian(4, 8)) + "x"), ErrorKind::corrupt_data, "1 more bytes follow");
}

TEST_CASE("what cannot be written is refused by its path, and leaves no file") {
  const TemporaryDirectory directory;
  const auto refused = [&](TorchValue value) { return error_of([&] { write_torch_file(directory / "a.pt", value); }); };
  using Dict = TorchValue::Dict;
  const ByteSpan bytes = std::as_bytes(std::span(kSixteen));
  CHECK_ERROR(refused({Dict{{"a", {TorchValue::List{{tensor_of("C64", {1}, bytes)}}}}}}), ErrorKind::invalid_argument,
              "'a.0'", "the type 'C64' is not stored");
  CHECK_ERROR(refused({Dict{{"a", {tensor_of("F32", {2}, bytes)}}}}), ErrorKind::invalid_argument, "'a'",
              "more than 8 bytes");
  CHECK_ERROR(refused({Dict{{"a", {tensor_of("F32", {8}, bytes)}}}}), ErrorKind::invalid_argument, "'a'",
              "16 bytes, its shape takes 32");
  CHECK_ERROR(refused({Dict{{"a", {tensor_of("F32", {-1}, bytes)}}}}), ErrorKind::invalid_argument, "[-1]");
  CHECK_ERROR(refused({Dict{{"a", {nullptr}}, {"a", {nullptr}}}}), ErrorKind::invalid_argument, "the key comes twice");
  CHECK_ERROR(refused({std::string("\xff")}), ErrorKind::invalid_argument, "the value", "not UTF-8");
  TorchValue deep;
  for (int i = 0; i < 300; ++i) deep = {TorchValue::List{std::move(deep)}};
  CHECK_ERROR(refused(deep), ErrorKind::invalid_argument, "too deep");
  CHECK(std::filesystem::is_empty(directory.path()));
}

TEST_CASE("names that become one are refused") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.pt";
  using Dict = TorchValue::Dict;
  write_torch_file(path, {Dict{{"a.b", {true}}, {"a", {Dict{{"b", {false}}}}}}});
  CHECK_ERROR(error_of([&] { load_all(path); }), ErrorKind::invalid_argument, "two values are called 'a.b'");
}
