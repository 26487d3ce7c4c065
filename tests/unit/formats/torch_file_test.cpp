#include "lockstep/formats/torch_file.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>

#include "lockstep/formats/element_changes.h"
#include "lockstep/formats/torch_file_writer.h"
#include "lockstep/formats/zip_archive.h"
#include "lockstep/formats/zip_headers.h"
#include "lockstep/formats/zip_writer.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/formats/pickle_bytes.h"
#include "tests/unit/formats/torch_description.h"

namespace torch_file_test {

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
  CHECK_ERROR(zip_error(path, entries), ErrorKind::corrupt_data, "storage '0': it has 5 bytes, but 16 were saved");
  entries.erase(entries.begin() + 2);
  CHECK_ERROR(zip_error(path, entries), ErrorKind::corrupt_data, "the storage '0' is missing");
}

TEST_CASE("archives that torch.save has not made are refused by name") {
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
  entries[1].second = "middle";
  CHECK_ERROR(zip_error(path, entries), ErrorKind::invalid_argument, "byte order is 'middle', neither 'little' nor");
  write_bytes(path, std::string(8, '\0') + "{");
  CHECK_ERROR(error_of([&] { load_all(path); }), ErrorKind::invalid_argument, "is a safetensors file",
              "load_checkpoint()");
}

TEST_CASE("a file of a machine with the other byte order has the same numbers") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.pt";
  const auto read = [&](const std::string& pickle) {
    Entries entries = entries_of(pickle);
    entries[1].second = "big";
    write_zip(path, entries);
    return load_all(path);
  };
  CHECK(read(one_tensor()) == " tensor F32 [2, 2] 00 " + hex("32107654ba98fedc") + "\n");
  const std::string turned = tensor(storage("0", 4), 0, numbers({2, 2}), numbers({1, 2}));
  CHECK(read(kProtocol2 + turned + ".") == " tensor F32 [2, 2] 00 " + hex("3210ba987654fedc") + "\n");
  const std::string complex =
      "(" + text("storage") + global("torch", "ComplexFloatStorage") + text("0") + text("cpu") + "K\2tQ";
  CHECK(read(kProtocol2 + complex + ".") == " tensor C64 [2] 00 " + hex("32107654ba98fedc") + "\n");
  read(one_tensor());
  const TorchFile file(path);
  const TorchTensor tensor = file.tensor(file.root());
  for (std::size_t begin = 0; begin < 16; ++begin) {
    for (std::size_t count = 0; count <= 16 - begin; ++count) {
      std::string part(count, ' ');
      file.read(tensor, begin, std::as_writable_bytes(std::span(part)));
      CHECK(part == std::string("32107654ba98fedc").substr(begin, count));
    }
  }
  // The legacy format has the same order on every machine.
  write_bytes(path, legacy(little_endian(4, 8), false));
  CHECK(load_all(path) == " tensor F32 [2, 2] 00 " + hex(kSixteen) + "\n");
}

TEST_CASE("elements that are negated or conjugated when they are used") {
  const auto changed = [](const char* dtype, const ElementChanges& changes, std::string bytes) {
    change_elements(dtype, changes, std::as_writable_bytes(std::span(bytes)));
    return hex(bytes);
  };
  const std::string zeros(8, '\0');
  CHECK(changed("C64", {.is_conjugated = true}, zeros) == "0000000000000080");
  CHECK(changed("C64", {.is_negated = true}, zeros) == "0000008000000080");
  CHECK(changed("C64", {.is_conjugated = true, .is_negated = true}, zeros) == "0000008000000000");
  CHECK(changed("F16", {.is_negated = true}, zeros) == "0080008000800080");
  CHECK(changed("I16", {.is_negated = true}, std::string("\1\0\0\1\0\0\xff\xff", 8)) == "ffff00ff00000100");
  CHECK(changed("C128", {.swapped_bytes = 8, .is_conjugated = true}, zeros + zeros) ==
        "00000000000000000000000000000080");
  CHECK(changed("F32", {}, zeros) == "0000000000000000");
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
  CHECK_ERROR(refused({Dict{{"a", {TorchValue::List{{tensor_of("C16", {1}, bytes)}}}}}}), ErrorKind::invalid_argument,
              "'a.0'", "the type 'C16' cannot be stored");
  CHECK_ERROR(refused({Dict{{"a", {tensor_of("F32", {2}, bytes)}}}}), ErrorKind::invalid_argument, "'a'",
              "more than 8 bytes");
  CHECK_ERROR(refused({Dict{{"a", {tensor_of("F32", {8}, bytes)}}}}), ErrorKind::invalid_argument, "'a'",
              "16 bytes, but its shape needs 32");
  CHECK_ERROR(refused({Dict{{"a", {tensor_of("F32", {-1}, bytes)}}}}), ErrorKind::invalid_argument, "[-1]");
  CHECK_ERROR(refused({Dict{{"a", {nullptr}}, {"a", {nullptr}}}}), ErrorKind::invalid_argument,
              "the key appears twice");
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
  CHECK_ERROR(error_of([&] { load_all(path); }), ErrorKind::invalid_argument, "two values have the name 'a.b'");
}

TEST_CASE("tensors of one memory are written once, and share it where they are read") {
  const TemporaryDirectory directory;
  const ByteSpan bytes = std::as_bytes(std::span(kSixteen));
  const auto tied = [&](std::vector<std::int64_t> shape, const std::string& dtype = "F32") {
    TorchTensorSource source = tensor_of(dtype, std::move(shape), bytes);
    source.storage = "here";
    return TorchValue{std::move(source)};
  };
  using Dict = TorchValue::Dict;
  write_torch_file(directory / "a.pt",
                   {Dict{{"in", tied({2, 2})}, {"own", {tensor_of("F32", {4}, bytes)}}, {"out", tied({4, 1})}}});
  const TorchFile file(directory / "a.pt");
  const auto tensor = [&](const char* name) { return file.tensor(file.root().at(name)); };
  CHECK(tensor("in").storage == tensor("out").storage);
  CHECK(tensor("in").storage != tensor("own").storage);
  CHECK(tensor("out").shape == std::vector<std::int64_t>{4, 1});
  for (const char* name : {"in", "own", "out"}) {
    std::string read(16, ' ');
    file.read(tensor(name), std::as_writable_bytes(std::span(read)));
    CHECK(read == kSixteen);
    for (std::size_t at = 0; at < 16; ++at) {
      char one = 0;
      file.read(tensor(name), at, std::as_writable_bytes(std::span(&one, 1)));
      CHECK(one == kSixteen[at]);
    }
  }
  for (const auto& other : {tied({3}), tied({4}, "I32")}) {
    CHECK_ERROR(error_of([&] {
                  write_torch_file(directory / "b.pt", {Dict{{"in", tied({4})}, {"out", other}}});
                }),
                ErrorKind::invalid_argument, "'out'", "shares the memory of 'in', but not its type and size");
  }
}

TEST_CASE("a tensor that is transposed in its file is not in row-major order, one of a single row is") {
  CHECK(is_row_major({.shape = {2, 3}, .strides = {3, 1}, .bytes = 24}));
  CHECK(is_row_major({.shape = {1, 3}, .strides = {77, 1}, .bytes = 12}));
  CHECK(is_row_major({.shape = {}, .strides = {}, .bytes = 4}));
  CHECK(is_row_major({.shape = {INT64_MAX, INT64_MAX, 0}, .strides = {1, 1, 1}}));
  CHECK_FALSE(is_row_major({.shape = {2, 3}, .strides = {1, 2}, .bytes = 24}));
  CHECK_FALSE(is_row_major({.shape = {4}, .strides = {0}, .bytes = 16}));
}

TEST_CASE("entries of more than 4 GiB, and behind the first 4 GiB, are described by zip64") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.zip";
  constexpr std::uint64_t kLarge = (std::uint64_t{5} << 30) + 7;
  std::fstream file(path, std::ios::binary | std::ios::out);
  std::uint64_t at = 0;
  const auto put = [&](const std::string& bytes) {
    file.seekp(static_cast<std::streamoff>(at)).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    at += bytes.size();
  };
  std::vector<ZipRecord> records = {{"x/large", kLarge, 0, 0}, {"x/behind", 16, 0, 0x68c4f033}};
  for (ZipRecord& record : records) {
    record.begin = at;
    put(local_header(record));
    CHECK(at % 64 == 0);
    if (record.bytes == 16) {
      put(kSixteen);
    } else {
      at += record.bytes;  // a hole: nothing is on the disk
    }
    put(data_descriptor(record));
  }
  const std::uint64_t begin = at;
  for (const ZipRecord& record : records) put(directory_entry(record));
  put(directory_end(records.size(), begin, at - begin));
  file.close();
  const OpenFile opened = open_regular_file(path);
  const ZipArchive archive({.fd = opened.fd.get(), .begin = 0, .bytes = opened.bytes}, path);
  REQUIRE(archive.entries().size() == 2);
  CHECK(archive.find("x/large")->bytes == kLarge);
  REQUIRE(archive.find("x/behind")->bytes == 16);
  CHECK(archive.read_whole(*archive.find("x/behind"), 16) == kSixteen);
}

}  // namespace torch_file_test
