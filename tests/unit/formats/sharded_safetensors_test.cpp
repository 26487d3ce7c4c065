#include "lockstep/formats/sharded_safetensors.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>

#include "lockstep/base/format.h"
#include "lockstep/formats/safetensors/file_kind.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

namespace sharded_safetensors_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

ByteSpan span_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::map<std::string, std::string> read_shards(const std::string& index) {
  const ShardedSafetensorsReader reader(index);
  std::map<std::string, std::string> content;
  for (const ShardedTensor& tensor : reader.tensors()) {
    std::string bytes(tensor.entry.end - tensor.entry.begin, '\0');
    reader.read(tensor, std::as_writable_bytes(std::span(bytes)));
    content[tensor.entry.name] = bytes;
  }
  return content;
}

const std::string kBytes = "0123456789";

std::vector<TensorBytes> examples() {
  std::vector<TensorBytes> tensors;
  for (std::int64_t i = 0; i < 7; ++i) {
    tensors.push_back({"t" + std::to_string(i), "U8", {i}, span_of(kBytes).first(static_cast<std::size_t>(i))});
  }
  return tensors;
}

}  // namespace

TEST_CASE("shards are as large as allowed, and one tensor is never split") {
  const std::vector<TensorBytes> tensors = examples();
  using Counts = std::vector<std::size_t>;
  CHECK(plan_safetensors_shards(tensors, 6) == Counts{4, 1, 1, 1});
  CHECK(plan_safetensors_shards(tensors, 100) == Counts{7});
  CHECK(plan_safetensors_shards(tensors, 0) == Counts{1, 1, 1, 1, 1, 1, 1});
  CHECK(plan_safetensors_shards({}, 6) == Counts{0});
}

TEST_CASE("a model in several files survives the round trip") {
  const TemporaryDirectory directory;
  const std::vector<TensorBytes> tensors = examples();
  const std::string index = write_sharded_safetensors(directory.path(), tensors, 6, {{"note", "x"}}).string();
  CHECK(index == directory / "model.safetensors.index.json");
  CHECK(std::filesystem::exists(directory / "model-00004-of-00004.safetensors"));
  const auto content = read_shards(index);
  CHECK(content.size() == 7);
  CHECK(content.at("t6") == "012345");
  const std::map<std::string, std::string> metadata = {{"note", "x"}, {"total_size", "21"}};
  CHECK(ShardedSafetensorsReader(index).metadata() == metadata);
}

TEST_CASE("a tensor of a model in several files is read piece by piece") {
  const TemporaryDirectory directory;
  const ShardedSafetensorsReader reader(write_sharded_safetensors(directory.path(), examples(), 6));
  for (const ShardedTensor& tensor : reader.tensors()) {
    std::string read;
    for (TensorStream stream = reader.stream(tensor); stream.left() != 0;) {
      std::string piece(std::min<std::uint64_t>(2, stream.left()), '\0');
      stream.read(std::as_writable_bytes(std::span(piece)));
      read += piece;
    }
    CHECK(read == kBytes.substr(0, tensor.entry.end - tensor.entry.begin));
  }
}

// fault: S9
TEST_CASE("names in an index never lead out of its directory") {
  const TemporaryDirectory directory;
  const TemporaryDirectory elsewhere;
  const std::vector<TensorBytes> tensors = {{"a", "U8", {3}, span_of(kBytes).first(3)}};
  write_safetensors(elsewhere / "x", tensors, {});
  const std::string index = directory / "i.json";
  const auto refused = [&](const std::string& name) {
    std::ofstream(index) << R"({"weight_map": {"a": ")" << name << R"("}})";
    return error_of([&] { read_shards(index); });
  };
  for (const char* name : {"../x", "/etc/passwd", "..", ".", "", "a/b", "a\\\\b", "a\\u0000b"}) {
    CAPTURE(name);
    CHECK_ERROR(refused(name), ErrorKind::corrupt_data, index + " refers to the file", "in the same directory");
  }
  CHECK_ERROR(refused(elsewhere / "x"), ErrorKind::corrupt_data, "in the same directory");
  std::filesystem::create_symlink(elsewhere / "x", directory / "link");
  CHECK_ERROR(refused("link"), ErrorKind::corrupt_data, directory / "link", "symbolic link");
  std::filesystem::create_directory(directory / "folder");
  CHECK_ERROR(refused("folder"), ErrorKind::corrupt_data, "not a regular file");
  CHECK_ERROR(refused("missing"), ErrorKind::corrupt_data, directory / "missing", "the file is missing");
  write_safetensors(directory / "x", tensors, {});
  std::ofstream(index) << R"({"weight_map": {"a": "x", "b": "x"}})";
  CHECK_ERROR(error_of([&] { read_shards(index); }), ErrorKind::corrupt_data, "lacks the tensor 'b'", index);
}

TEST_CASE("what is no index is refused") {
  const auto refused = [](const std::string& json) {
    return error_of([&] { parse_safetensors_index(json, "i.json"); });
  };
  for (const char* json : {"", "[]", "{", "1", "{}", R"({"weight_map": []})", R"({"weight_map": {"a": 1}})",
                           R"({"weight_map": {"a": {"b": {}}}})", R"({"weight_map": {"a": "x", "a": "y"}})",
                           "{\"weight_map\": {\"a\": \"\xff\"}}"}) {
    CAPTURE(json);
    CHECK_ERROR(refused(json), ErrorKind::corrupt_data, "i.json is not an index of safetensors files");
  }
  CHECK_ERROR(refused(std::string(100'000, '[')), ErrorKind::corrupt_data, "too deep");
  const SafetensorsIndex index =
      parse_safetensors_index(R"({"metadata": {"total_size": 5}, "weight_map": {"metadata": "f"}, "x": []})", "i.json");
  CHECK(index.files.at("metadata") == "f");
  CHECK(index.metadata.at("total_size") == "5");
}

TEST_CASE("a name that is in an index twice is found, 200,000 names apart") {
  constexpr int kTensors = 200'000;
  std::string json = R"({"weight_map": {"first": "f")";
  for (int i = 1; i < kTensors; ++i) json += fmt::format(R"(, "layer.{}": "f")", i);
  CHECK(parse_safetensors_index(json + "}}", "i.json").files.size() == kTensors);
  CHECK_ERROR(error_of([&] { parse_safetensors_index(json + R"(, "first": "f"}})", "i.json"); }),
              ErrorKind::corrupt_data, "'first' appears twice");
}

TEST_CASE("the time to read an index does not grow with the square of the objects in it") {
  std::string json = R"({"weight_map": {"a": "f"})";
  for (int i = 0; i < 400'000; ++i) json += fmt::format(R"(, "{}": {{}})", i);
  CHECK(parse_safetensors_index(json + "}", "i.json").files.size() == 1);
}

TEST_CASE("files are recognised by how they begin") {
  const auto kind = [](const std::string& bytes) { return recognise_file(bytes); };
  CHECK(kind("") == FileKind::empty);
  CHECK(kind(std::string("\x40\0\0\0\0\0\0\0{\"a\"", 12)) == FileKind::safetensors);
  const auto zip = [&](const std::string& name) {
    return kind(std::string("PK\3\4") + std::string(22, '\0') + static_cast<char>(name.size()) + std::string(3, '\0') +
                name);
  };
  CHECK(zip("archive/data.pkl") == FileKind::torch_archive);
  CHECK(zip("net/data/0") == FileKind::torch_archive);
  CHECK(zip("arr_0.npy") == FileKind::numpy_archive);
  CHECK(zip("config.json") == FileKind::keras_archive);
  CHECK(zip("word/document.xml") == FileKind::zip);
  CHECK(kind("\x80\4\x95...") == FileKind::pickle);
  CHECK(kind("\x93NUMPY\1") == FileKind::numpy_array);
  CHECK(kind("\x89HDF\r\n\x1a\n") == FileKind::hdf5);
  CHECK(kind("GGUF\3") == FileKind::gguf);
  CHECK(kind("\x08\x08\x12\x07pytorch\x1a") == FileKind::onnx);
  CHECK(kind("\x1f\x8b\x08") == FileKind::gzip);
  CHECK(kind(std::string(257, 'x') + "ustar") == FileKind::tar);
  CHECK(kind(" {\"a\"") == FileKind::json);
  CHECK(kind("text") == FileKind::unknown);
}

TEST_CASE("a file of another kind is named, with how to read it") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a";
  std::ofstream(path) << "GGUF----------------";
  CHECK_ERROR(error_of([&] { SafetensorsReader reader(path); }), ErrorKind::invalid_argument, path + " is a GGUF file");
  std::ofstream(path) << std::string("PK\3\4") + std::string(22, '\0') + "\x0c" + std::string(3, '\0') + "x/data.pkl/.";
  CHECK_ERROR(error_of([&] { SafetensorsReader reader(path); }), ErrorKind::invalid_argument, path + " is a zip");
  std::ofstream(path) << std::string("PK\3\4") + std::string(22, '\0') + "\x0a" + std::string(3, '\0') + "x/data.pkl";
  CHECK_ERROR(error_of([&] { SafetensorsReader reader(path); }), ErrorKind::invalid_argument,
              path + " is a file of torch.save: read it with load_torch_file()");
}

}  // namespace sharded_safetensors_test
