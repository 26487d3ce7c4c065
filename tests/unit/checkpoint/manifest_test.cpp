#include "lockstep/train/checkpoint/manifest.h"

#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "lockstep/formats/safetensors/digest.h"
#include "lockstep/formats/safetensors/safetensors_header.h"
#include "tests/graphs/dice.h"
#include "tests/support/expect_error.h"

namespace manifest_test {

using namespace lockstep;
using namespace lockstep::internal;
using lockstep::testing::Dice;

namespace {

using Json = nlohmann::json;

const Origin kOrigin("m.json");
constexpr std::size_t kDigits = 32;
constexpr std::size_t kEnd = 3;  // "}\n behind the digits

std::string name_of(Dice& dice) {
  static const std::vector<std::string> kParts = {"layer", ".", "0", "weight", "ä", "\"", "\\", " ", "[0:2]", "日本"};
  std::string name;
  do {
    name += kParts[static_cast<std::size_t>(dice.below(static_cast<int>(kParts.size())))];
  } while (dice.percent(70));
  return name;
}

std::string digest_of(Dice& dice) { return xxh3_128(ByteView(std::to_string(dice.next()))); }

SetTensor tensor_of(Dice& dice, std::size_t files) {
  SetTensor tensor{.dtype = std::string(kSafetensorsTypes.at(static_cast<std::size_t>(dice.below(13))).name),
                   .shape = std::vector<std::int64_t>(static_cast<std::size_t>(dice.below(4)))};
  for (std::int64_t& size : tensor.shape) size = dice.below(6);
  std::int64_t row = 0;
  do {
    const std::int64_t end =
        tensor.rows() - row <= 1 ? tensor.rows() : row + 1 + dice.below(static_cast<int>(tensor.rows() - row));
    tensor.pieces.push_back({.file = static_cast<std::size_t>(dice.below(static_cast<int>(files))),
                             .first_row = row,
                             .end_row = end,
                             .digest = digest_of(dice)});
    row = end;
  } while (row < tensor.rows());
  return tensor;
}

Manifest random_manifest(Dice& dice) {
  Manifest manifest{.step = dice.next() >> 1, .world_size = 1 + dice.below(1000)};
  const int files = 1 + dice.below(4);
  for (int i = 0; i < files; ++i) {
    manifest.files.push_back({.name = "part-" + std::to_string(i),
                              .bytes = dice.next() >> 1,
                              .rank = dice.below(manifest.world_size),
                              .host = name_of(dice)});
  }
  for (int i = dice.below(6); i > 0; --i) {
    manifest.tensors.insert_or_assign(name_of(dice), tensor_of(dice, manifest.files.size()));
    manifest.metadata[name_of(dice)] = name_of(dice);
    manifest.written[name_of(dice)] = name_of(dice);
    manifest.metrics[name_of(dice)] = dice.between_ones() * 1e30;
  }
  if (dice.percent(50))
    manifest.user = Json{{"epoch", dice.below(9)}, {"text", name_of(dice)}, {"list", {1, {}}}}.dump();
  return manifest;
}

Manifest small_manifest() {
  Manifest manifest{.step = 400, .world_size = 2, .metadata = {{"a", "b"}}, .metrics = {{"loss", 0.5}}};
  manifest.files = {{.name = "part-0", .bytes = 100, .rank = 0, .host = "h"},
                    {.name = "part-1", .bytes = 9, .rank = 1}};
  manifest.tensors["w"] = {.dtype = "F32",
                           .shape = {4, 2},
                           .pieces = {{.file = 0, .first_row = 0, .end_row = 3, .digest = std::string(32, '1')},
                                      {.file = 1, .first_row = 3, .end_row = 4, .digest = std::string(32, '2')}}};
  return manifest;
}

// The text with a digest that is right.
std::string sealed(std::string text) {
  REQUIRE(text.size() > kDigits + kEnd);
  const std::size_t digits = text.size() - kEnd - kDigits;
  text.replace(digits, kDigits, kDigits, '0');
  return text.replace(digits, kDigits, xxh3_128(ByteView(text)));
}

// The error for a manifest in which something else stands, with a digest that is right.
Error error_with(const std::string& part, const std::string& other) {
  std::string text = serialise(small_manifest());
  const std::size_t at = text.find(part);
  CAPTURE(part);
  REQUIRE(at != std::string::npos);
  const std::string changed = sealed(text.replace(at, part.size(), other));
  return error_of([&] { parse_manifest(changed, kOrigin); });
}

}  // namespace

TEST_CASE("manifests survive the round trip, and equal ones have equal texts") {
  Dice dice(7);
  for (int i = 0; i < 300; ++i) {
    CAPTURE(i);
    const Manifest manifest = random_manifest(dice);
    const std::string text = serialise(manifest);
    const Manifest read = parse_manifest(text, kOrigin);
    CHECK(serialise(read) == text);
    CHECK(read.step == manifest.step);
    CHECK(read.world_size == manifest.world_size);
    CHECK(read.metrics == manifest.metrics);
    CHECK(read.metadata == manifest.metadata);
    CHECK(read.written == manifest.written);
    CHECK(Json::parse(read.user) == Json::parse(manifest.user));
    REQUIRE(read.files.size() == manifest.files.size());
    for (std::size_t file = 0; file < read.files.size(); ++file) {
      CHECK(read.files[file].bytes == manifest.files[file].bytes);
      CHECK(read.files[file].rank == manifest.files[file].rank);
      CHECK(read.files[file].host == manifest.files[file].host);
    }
    REQUIRE(read.tensors.size() == manifest.tensors.size());
    for (const auto& [name, tensor] : manifest.tensors) {
      const SetTensor& found = read.tensors.at(name);
      CHECK(found.shape == tensor.shape);
      CHECK(found.dtype == tensor.dtype);
      CHECK(found.bytes() == tensor.bytes());
      REQUIRE(found.pieces.size() == tensor.pieces.size());
      CHECK(found.pieces.back().digest == tensor.pieces.back().digest);
    }
  }
}

// fault: 24
TEST_CASE("every flipped bit of a manifest is found") {
  const std::string text = serialise(small_manifest());
  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    CAPTURE(bit);
    CHECK(error_of([&] { parse_manifest(flipped, kOrigin); }).kind() == ErrorKind::corrupt_data);
  }
}

// fault: 25
TEST_CASE("every truncation of a manifest is found, and what comes behind it") {
  const std::string text = serialise(small_manifest());
  for (std::size_t length = 0; length < text.size(); ++length) {
    CAPTURE(length);
    CHECK_ERROR(error_of([&] { parse_manifest(text.substr(0, length), kOrigin); }), ErrorKind::corrupt_data, "m.json");
  }
  for (const std::string& more : {std::string("\n"), std::string(1, '\0'), text}) {
    CHECK(error_of([&] { parse_manifest(text + more, kOrigin); }).kind() == ErrorKind::corrupt_data);
  }
  CHECK_ERROR(error_of([] { parse_manifest(std::string(ManifestLimits::kBytes + 1, ' '), kOrigin); }),
              ErrorKind::corrupt_data, "67108865 bytes");
}

// fault: 26
TEST_CASE("members that are unknown, missing or there twice are refused by name") {
  CHECK_ERROR(error_with("\"step\":400", "\"step\":400,\"more\":1"), ErrorKind::corrupt_data, "unknown member 'more'");
  CHECK_ERROR(error_with("\"step\":400,", ""), ErrorKind::corrupt_data, "has no 'step'");
  CHECK_ERROR(error_with("\"step\":400", "\"step\":400,\"step\":400"), ErrorKind::corrupt_data, "'step' appears twice");
  CHECK_ERROR(error_with("\"host\":\"h\",", ""), ErrorKind::corrupt_data, "a file has no 'host'");
  CHECK_ERROR(error_with("\"host\":\"h\"", "\"host\":\"h\",\"x\":1"), ErrorKind::corrupt_data, "unknown member 'x'");
  CHECK_ERROR(error_with("\"rows\":[0,3],", ""), ErrorKind::corrupt_data, "tensor 'w': a piece has no 'rows'");
  CHECK_ERROR(error_with("\"dtype\":\"F32\"", "\"dtype\":\"F32\",\"y\":{}"), ErrorKind::corrupt_data, "member 'y'");
  CHECK_ERROR(error_with("\"w\":{", "\"w\":{\"dtype\":\"F32\","), ErrorKind::corrupt_data, "'dtype' appears twice");
}

TEST_CASE("wrong types are refused, and numbers that are not possible") {
  const std::vector<std::array<std::string, 3>> cases = {
      {"\"step\":400", "\"step\":-1", "the step is -1"},
      {"\"step\":400", "\"step\":4.0", "the step is not an integer"},
      {"\"step\":400", "\"step\":9223372036854775808", "the step is 9223372036854775808"},
      {"\"step\":400", "\"step\":\"400\"", "the step is not an integer"},
      {"\"world_size\":2", "\"world_size\":0", "the world size is 0; it must be from 1 to"},
      {"\"world_size\":2", "\"world_size\":1048577", "the world size is 1048577"},
      {"\"rank\":1", "\"rank\":2", "a file's rank is 2; it must be from 0 to 1"},
      {"\"bytes\":100", "\"bytes\":-100", "a file's size is -100"},
      {"\"bytes\":100", "\"bytes\":null", "a file's size is not an integer"},
      {"\"files\":[", "\"files\":{\"a\":[", ""},
      {"\"a\":\"b\"", "\"a\":7", "metadata is not a string"},
      {"\"loss\":0.5", "\"loss\":\"low\"", "metric 'loss' is not a number"},
      {"\"loss\":0.5", "\"loss\":1e999", "not JSON"},
      {"\"dtype\":\"F32\"", "\"dtype\":\"F31\"", "unknown type 'F31'"},
      {"\"dtype\":\"F32\"", "\"dtype\":32", "dtype is not a string"},
      {"\"shape\":[4,2]", "\"shape\":8", "shape is not a list"},
      {"\"shape\":[4,2]", "\"shape\":[4,-2]", "a dimension is -2"},
      {"\"shape\":[4,2]", "\"shape\":[4,2.5]", "a dimension is not an integer"},
      {"\"rows\":[0,3]", "\"rows\":[0,3,4]", "a piece without a row range"},
      {"\"rows\":[0,3]", "\"rows\":\"0:3\"", "rows is not a list"},
      {"\"file\":0", "\"file\":2", "file is 2; it must be from 0 to 1"},
      {"\"xxh3\":\"1111", "\"xxh3\":1111,\"x\":\"", ""},
      {"\"format\":\"lockstep checkpoint\"", "\"format\":\"zip\"", "its 'format' is missing or unknown"},
      {"\"version\":1", "\"version\":true", "the version is not an integer"}};
  for (const auto& [part, other, expected] : cases)
    CHECK_ERROR(error_with(part, other), ErrorKind::corrupt_data, expected);
}

TEST_CASE("another version says which one is read, whatever else it has") {
  CHECK_ERROR(error_with("\"version\":1", "\"version\":2"), ErrorKind::corrupt_data, "m.json",
              "has version 2; this build reads only version 1");
  CHECK_ERROR(error_with("\"version\":1", "\"version\":2,\"zones\":[]"), ErrorKind::corrupt_data,
              "has version 2; this build reads only version 1");
}

// fault: 26
TEST_CASE("gaps, overlaps and empty pieces are refused") {
  for (const std::string rows : {"[1,3]", "[0,2]", "[0,4]", "[0,0]", "[3,0]", "[0,5]"}) {
    CAPTURE(rows);
    CHECK(error_with("\"rows\":[0,3]", "\"rows\":" + rows).kind() == ErrorKind::corrupt_data);
  }
  for (const std::string rows : {"[2,4]", "[3,3]", "[4,4]", "[0,4]", "[4,3]"}) {
    CAPTURE(rows);
    CHECK_ERROR(error_with("\"rows\":[3,4]", "\"rows\":" + rows), ErrorKind::corrupt_data, "tensor 'w'");
  }
  CHECK_ERROR(error_with("\"shape\":[4,2]", "\"shape\":[5,2]"), ErrorKind::corrupt_data,
              "has 5 rows, but its pieces end at row 4");
}

// fault: 26
TEST_CASE("absurd dimensions are refused, and an empty tensor may have them") {
  for (const std::string shape : {"[4,4611686018427387904]", "[4,9223372036854775807,9223372036854775807]",
                                  "[4,18446744073709551615]", "[9223372036854775807]"}) {
    CAPTURE(shape);
    CHECK(error_with("\"shape\":[4,2]", "\"shape\":" + shape).kind() == ErrorKind::corrupt_data);
  }
  std::string many = "[4";
  for (int i = 0; i < 64; ++i) many += ",1";
  CHECK_ERROR(error_with("\"shape\":[4,2]", "\"shape\":" + many + "]"), ErrorKind::corrupt_data,
              "more dimensions or elements");
  Manifest manifest = small_manifest();
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  manifest.tensors["e"] = {.dtype = "F64", .shape = {most, most, 0}, .pieces = {{.file = 0, .end_row = most}}};
  CHECK(parse_manifest(serialise(manifest), kOrigin).tensors.at("e").bytes() == 0);
}

// fault: S9
TEST_CASE("files may not be called what leads out of the directory or hides them") {
  for (const std::string name :
       {"a/b", "/etc/passwd", "..", ".", "../x", ".hidden", "", "a\\u0000b", "a\\nb", "part-1", "manifest.json"}) {
    CAPTURE(name);
    CHECK_ERROR(error_with("\"name\":\"part-0\"", "\"name\":\"" + name + "\""), ErrorKind::corrupt_data, " name '");
  }
  CHECK_ERROR(error_with("part-0", std::string(256, 'x')), ErrorKind::corrupt_data, "invalid file name");
}

// fault: 26
TEST_CASE("what would take much memory or a deep stack is refused") {
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += '[';
  for (int i = 0; i < 100'000; ++i) deep += ']';
  CHECK_ERROR(error_with("\"user\":null", "\"user\":" + deep), ErrorKind::corrupt_data, "nested too deeply");
  const std::string longest(SafetensorsLimits::kTokenBytes + 1, 'x');
  CHECK_ERROR(error_with("\"user\":null", "\"user\":\"" + longest + '"'), ErrorKind::corrupt_data, "too long");
  CHECK_ERROR(error_with("\"user\":null", "\"user\":" + std::string(longest.size(), '1')), ErrorKind::corrupt_data,
              "too long");
  std::string nested = "0";
  for (int i = 0; i < ManifestLimits::kDepth - 2; ++i) nested = "[" + nested + "]";
  Manifest manifest = small_manifest();
  manifest.user = nested;
  CHECK(parse_manifest(serialise(manifest), kOrigin).user == nested);
}

TEST_CASE("the time to read a manifest does not grow with the square of its members") {
  Manifest manifest = small_manifest();
  manifest.user = "[{}";
  for (int i = 0; i < 400'000; ++i) manifest.user += ",{}";
  manifest.user += "]";
  CHECK(parse_manifest(serialise(manifest), kOrigin).user == manifest.user);
}

TEST_CASE("what could not be read is not written") {
  const auto refusal = [](auto change) {
    Manifest manifest = small_manifest();
    change(manifest);
    return error_of([&] { serialise(manifest); });
  };
  CHECK_ERROR(refusal([](Manifest& m) { m.files[0].name = "../x"; }), ErrorKind::invalid_argument, "'../x'");
  CHECK_ERROR(refusal([](Manifest& m) { m.tensors["w"].pieces.pop_back(); }), ErrorKind::invalid_argument,
              "end at row 3");
  CHECK_ERROR(refusal([](Manifest& m) { m.user = "{\"a\":"; }), ErrorKind::invalid_argument, "cannot be stored");
  CHECK_ERROR(refusal([](Manifest& m) { m.metadata["a"] = "\xff"; }), ErrorKind::invalid_argument, "cannot be stored");
  CHECK_ERROR(refusal([](Manifest& m) { m.step = ~std::uint64_t{0}; }), ErrorKind::invalid_argument, "the step");
  CHECK_ERROR(refusal([](Manifest& m) { m.world_size = 0; }), ErrorKind::invalid_argument, "the world size is 0");
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    CHECK_ERROR(refusal([&](Manifest& m) { m.metrics["loss"] = value; }), ErrorKind::invalid_argument,
                "the metric 'loss' is", "only finite numbers");
  }
}

TEST_CASE("a piece of all rows has the tensor's name, others name their rows") {
  const SetTensor tensor = small_manifest().tensors.at("w");
  CHECK(piece_name("w", tensor, {.first_row = 0, .end_row = 4}) == "w");
  CHECK(piece_name("w", tensor, {.first_row = 3, .end_row = 4}) == "w[3:4]");
  CHECK(piece_name("s", {.dtype = "F32", .shape = {}}, {.first_row = 0, .end_row = 1}) == "s");
}

}  // namespace manifest_test
