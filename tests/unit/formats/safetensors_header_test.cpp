#include "lockstep/formats/safetensors/safetensors_header.h"

#include <doctest/doctest.h>

#include <random>

#include "tests/support/expect_error.h"
#include "tests/support/sanitized.h"
#include "tests/unit/formats/allocation_meter.h"

namespace safetensors_header_test {

using namespace lockstep;

namespace {

constexpr std::size_t kHostileBytes = SafetensorsLimits::kHeaderBytes / (testing::kIsSanitized ? 16 : 1);
constexpr unsigned kDamaged = testing::kIsSanitized ? 1000 : 20'000;

SafetensorsHeader example() {
  SafetensorsHeader header;
  header.tensors = {{.name = "flags", .dtype = "BOOL", .shape = {3}},
                    {.name = "scalar", .dtype = "F64"},
                    {.name = "weight", .dtype = "F32", .shape = {10, 512}},
                    {.name = "nothing", .dtype = "I64", .shape = {0, 7}},
                    {.name = "half \"quoted\" \xc3\xa9", .dtype = "BF16", .shape = {5}}};
  header.metadata = {{"epoch", "3"}, {"note", "line\nbreak"}};
  return header;
}

SafetensorsHeader parse_text(const std::string& json, std::uint64_t data_bytes) {
  return parse_header(json, data_bytes);
}

Error refusal(const std::string& json, std::uint64_t data_bytes = 8) {
  return error_of([&] { parse_text(json, data_bytes); });
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return std::string(R"({"a":)") + entry(dtype, shape, offsets) + "}";
}

}  // namespace

TEST_CASE("a header survives the round trip, with every tensor aligned to its elements") {
  SafetensorsHeader header = example();
  lay_out(header);
  const std::string text = serialise_header(header);
  CHECK(text.size() % 8 == 0);
  const std::uint64_t length = parse_header_length(text, text.size() + header.tensors.back().end);
  REQUIRE(length == text.size() - 8);
  const SafetensorsHeader parsed = parse_header(ByteView(text).substr(8), header.tensors.back().end);
  CHECK(parsed.metadata == header.metadata);
  REQUIRE(parsed.tensors.size() == header.tensors.size());
  for (std::size_t i = 0; i < parsed.tensors.size(); ++i) {
    CHECK(parsed.tensors[i].name == header.tensors[i].name);
    CHECK(parsed.tensors[i].dtype == header.tensors[i].dtype);
    CHECK(parsed.tensors[i].shape == header.tensors[i].shape);
    CHECK(parsed.tensors[i].begin == header.tensors[i].begin);
    CHECK(parsed.tensors[i].end == header.tensors[i].end);
    CHECK(parsed.tensors[i].begin % safetensors_element_size(parsed.tensors[i].dtype) == 0);
  }
}

TEST_CASE("every type has its size, floats of 8 bits too") {
  for (const SafetensorsType& type : kSafetensorsTypes) {
    CAPTURE(type.name);
    SafetensorsHeader header{.tensors = {{.name = "a", .dtype = std::string(type.name), .shape = {3, 2}}}};
    lay_out(header);
    const std::string text = serialise_header(header);
    const SafetensorsHeader parsed = parse_header(ByteView(text).substr(8), 6 * type.element_bytes);
    CHECK(parsed.tensors.at(0).dtype == type.name);
  }
  for (const char* type : {"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"}) {
    CHECK(safetensors_element_size(type) == 1);
  }
}

TEST_CASE("types that the format lacks are others in the text, with a note of what is meant") {
  SafetensorsHeader header{.tensors = {{.name = "a", .dtype = "C64", .shape = {3, 2}},
                                       {.name = "b", .dtype = "C128", .shape = {}},
                                       {.name = "c", .dtype = "BITS16", .shape = {0}},
                                       {.name = "d", .dtype = "F32", .shape = {2}}},
                           .metadata = {{"epoch", "3"}}};
  lay_out(header);
  const std::string text = serialise_header(header);
  CHECK(contains(text, R"("__metadata__":{"epoch":"3","lockstep.type.a":"C64","lockstep.type.b":"C128",)"
                       R"("lockstep.type.c":"BITS16"})"));
  CHECK(contains(text, R"("a":{"data_offsets":[16,64],"dtype":"F32","shape":[3,2,2]})"));
  CHECK(contains(text, R"("b":{"data_offsets":[0,16],"dtype":"F64","shape":[2]})"));
  CHECK(contains(text, R"("c":{"data_offsets":[72,72],"dtype":"U16","shape":[0]})"));
  const SafetensorsHeader parsed = parse_header(ByteView(text).substr(8), 72);
  CHECK(parsed.metadata == header.metadata);
  REQUIRE(parsed.tensors.size() == 4);
  CHECK(describe(parsed.tensors[0]) == "C128 [], bytes 0 to 16 of the data");
  CHECK(describe(parsed.tensors[1]) == "C64 [3, 2], bytes 16 to 64 of the data");
  // As others write it since version 0.7 of the package.
  CHECK(parse_text(one("C64", "[2]", "[0,16]"), 16).tensors[0].dtype == "C64");
}

TEST_CASE("a note that does not fit its tensor is damage") {
  const auto noted = [](const std::string& type, const std::string& stored, const std::string& shape,
                        const std::string& name = "a") {
    const std::string text = R"({"__metadata__":{"lockstep.type.)" + name + R"(":")" + type + R"("},"a":)" +
                             entry(stored, shape, "[0,8]") + "}";
    return error_of([&] { parse_text(text, 8); });
  };
  const auto kind = ErrorKind::corrupt_data;
  CHECK_ERROR(noted("C64", "F32", "[1,1]"), kind, "the metadata gives tensor 'a' the type C64, but it is 'F32' [1, 1]");
  CHECK_ERROR(noted("C64", "F32", "[]"), kind, "gives tensor 'a' the type C64");
  CHECK_ERROR(noted("C64", "I32", "[1,2]"), kind, "the metadata gives tensor 'a' the type C64, but it is 'I32'");
  CHECK_ERROR(noted("F64", "F32", "[2]"), kind, "the metadata gives tensor 'a' the unknown type 'F64'");
  CHECK_ERROR(noted("x", "F32", "[2]"), kind, "the metadata gives tensor 'a' the unknown type 'x'");
  CHECK_ERROR(noted("C64", "F32", "[2]", "b"), kind, "tensor 'b', which does not exist");
}

TEST_CASE("a header without tensors or metadata is one too") {
  SafetensorsHeader header;
  lay_out(header);
  CHECK(serialise_header(header) == std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
  CHECK(parse_text("{}", 0).tensors.empty());
}

TEST_CASE("what cannot be stored is refused before it is") {
  const auto refused = [](TensorEntry entry) {
    SafetensorsHeader header;
    header.tensors = {std::move(entry)};
    return error_of([&] { lay_out(header); });
  };
  const auto kind = ErrorKind::invalid_argument;
  for (const std::string type : {"C16", "c64", "F8_E4M3FN", "F4", "F6_E2M3", "f32", ""}) {
    CHECK_ERROR(refused({.name = "a", .dtype = type}), kind, "'a'", "unknown type '" + type + "'");
  }
  CHECK_ERROR(refused({.name = "", .dtype = "F32"}), kind, "0 bytes");
  CHECK_ERROR(refused({.name = std::string(2000, 'x'), .dtype = "F32"}), kind, "2000 bytes");
  CHECK_ERROR(refused({.name = "a\nb", .dtype = "F32"}), kind, "control characters", "'a?b'");
  CHECK_ERROR(refused({.name = "a", .dtype = "C64", .shape = std::vector<std::int64_t>(64, 1)}), kind, "at most 63");
  CHECK_ERROR(refused({.name = "__metadata__", .dtype = "F32"}), kind, "__metadata__");
  CHECK_ERROR(refused({.name = "a", .dtype = "F32", .shape = {-1}}), kind, "dimension -1");
  CHECK_ERROR(refused({.name = "a", .dtype = "F64", .shape = {1LL << 40, 1LL << 40}}), kind, "overflows");
  SafetensorsHeader header;
  header.tensors = {{.name = "a\xff", .dtype = "F32"}};
  lay_out(header);
  CHECK_ERROR(error_of([&] { serialise_header(header); }), kind, "UTF-8");
  header.tensors = {{.name = "a", .dtype = "F32"}, {.name = "a", .dtype = "I8"}};
  CHECK_ERROR(error_of([&] { lay_out(header); }), kind, "'a' appears twice");
  header.tensors.clear();
  header.metadata = {{"long", std::string(SafetensorsLimits::kTokenBytes, 'x')}};
  CHECK_ERROR(error_of([&] { serialise_header(header); }), kind, "longer than 1048576 bytes");
  for (char c = 'a'; c < 'a' + 17; ++c) header.metadata[std::string(1, c)] = std::string(1'000'000, 'x');
  header.metadata.erase("long");
  CHECK_ERROR(error_of([&] { serialise_header(header); }), kind, "16777216 are allowed");
}

// fault: 26
TEST_CASE("hostile headers are refused") {
  const auto kind = ErrorKind::corrupt_data;
  CHECK_ERROR(refusal(""), kind, "brace");
  CHECK_ERROR(refusal("[]"), kind, "brace");
  CHECK_ERROR(refusal(" {}"), kind, "brace");
  CHECK_ERROR(refusal("\xef\xbb\xbf{}"), kind, "brace");
  CHECK_ERROR(refusal("{} x"), kind, "syntax error");
  CHECK_ERROR(refusal("{"), kind, "syntax error");
  CHECK_ERROR(refusal(std::string("{}\0{}", 5)), kind, "zero byte");
  CHECK_ERROR(refusal("{/**/}"), kind, "syntax error");
  CHECK_ERROR(refusal("{\"a\xff\":1}"), kind, "syntax error");
  CHECK_ERROR(refusal(R"({"a":null})"), kind, "null", "'a'");
  CHECK_ERROR(refusal(R"({"a":1})"), kind, "a number", "'a'");
  CHECK_ERROR(refusal(R"({"a":[]})"), kind, "an array");
  CHECK_ERROR(refusal(R"({"a":{}})"), kind, "'a' lacks");
  CHECK_ERROR(refusal(R"({"a":{"dtype":"F64","shape":[]}})"), kind, "'a' lacks");
  CHECK_ERROR(refusal(R"({"a":{"dtype":"F64","dtype":"F64"}})"), kind, "'dtype' twice");
  CHECK_ERROR(refusal(R"({"a":{"size":1}})"), kind, "unknown key 'size'");
  CHECK_ERROR(refusal(R"({"a":{"dtype":1}})"), kind, "a number");
  CHECK_ERROR(refusal(R"({"a":{"dtype":{}}})"), kind, "an object");
  CHECK_ERROR(refusal(R"({"a":{"shape":{}}})"), kind, "an object");
  CHECK_ERROR(refusal(R"({"__metadata__":1})"), kind, "a number");
  CHECK_ERROR(refusal(R"({"__metadata__":{"a":1}})"), kind, "a number");
  CHECK_ERROR(refusal(R"({"__metadata__":{"a":{}}})"), kind, "an object");
  CHECK_ERROR(refusal(R"({"__metadata__":{"a":"1","a":"2"}})"), kind, "'a' appears twice");
  CHECK_ERROR(refusal(R"({"__metadata__":{},"__metadata__":{}})"), kind, "metadata appears twice");
  CHECK_ERROR(refusal(R"({"__metadata__":{"":"1"}})"), kind, "metadata string has a name of 0 bytes");
  CHECK_ERROR(refusal(one("F64", "[[1]]", "[0,8]")), kind, "an array");
  CHECK_ERROR(refusal(one("F64", "[true]", "[0,8]")), kind, "a boolean");
  CHECK_ERROR(refusal(one("F64", "[1.5]", "[0,8]")), kind, "the number 1.5");
  CHECK_ERROR(refusal(one("F64", "[1e0]", "[0,8]")), kind, "the number 1e0");
  CHECK_ERROR(refusal(one("F64", "[-1]", "[0,8]")), kind, "a negative number");
  CHECK_ERROR(refusal(one("F64", "[\"1\"]", "[0,8]")), kind, "a string");
  CHECK_ERROR(refusal(one("F64", "[1]", "[0]")), kind, "1 data_offsets");
  CHECK_ERROR(refusal(one("F64", "[1]", "[0,8,8]")), kind, "a number");
  CHECK_ERROR(refusal(one("F64", "[1]", "[]")), kind, "0 data_offsets");
  CHECK_ERROR(refusal(one("F128", "[1]", "[0,8]")), kind, "unknown type 'F128'");
  CHECK_ERROR(refusal(one("f64", "[1]", "[0,8]")), kind, "unknown type 'f64'");
  CHECK_ERROR(refusal(std::string(R"({"":)") + entry("F64", "[1]", "[0,8]") + "}"), kind, "0 bytes");
  CHECK_ERROR(refusal(std::string(R"({"a\u0000b":)") + entry("F64", "[1]", "[0,8]") + "}"), kind, "control characters");
  CHECK_ERROR(refusal(std::string(R"({")") + std::string(5000, 'n') + R"(":)" + entry("F64", "[1]", "[0,8]") + "}"),
              kind, "5000 bytes");
}

// fault: 26
TEST_CASE("sizes and places that do not add up are refused") {
  const auto kind = ErrorKind::corrupt_data;
  const auto two = [](const std::string& a, const std::string& b) {
    return std::string(R"({"a":)") + entry("F32", "[1]", a) + R"(,"b":)" + entry("F32", "[1]", b) + "}";
  };
  CHECK(parse_text(two("[4,8]", "[0,4]"), 8).tensors[0].name == "b");
  CHECK_ERROR(refusal(two("[0,4]", "[0,4]")), kind, "overlap");
  CHECK_ERROR(refusal(two("[0,4]", "[2,6]")), kind, "overlap");
  CHECK_ERROR(refusal(two("[0,4]", "[5,9]"), 9), kind, "gap");
  CHECK_ERROR(refusal(two("[1,5]", "[5,9]"), 9), kind, "'a'", "should begin at byte 0");
  CHECK_ERROR(
      refusal(std::string(R"({"a":)") + entry("F32", "[1]", "[0,4]") + R"(,"a":)" + entry("F32", "[1]", "[4,8]") + "}"),
      kind, "'a' appears twice");
  CHECK_ERROR(refusal(one("F64", "[1]", "[0,8]"), 7), kind, "take 8 bytes, but 7", "truncated");
  CHECK_ERROR(refusal(one("F64", "[1]", "[0,8]"), 9), kind, "take 8 bytes, but 9", "too long");
  CHECK_ERROR(refusal(one("F64", "[2]", "[0,8]")), kind, "should take 16 bytes");
  CHECK_ERROR(refusal(one("F64", "[1]", "[0,18446744073709551615]")), kind, "should take 8 bytes");
  CHECK_ERROR(refusal(one("F64", "[1]", "[18446744073709551608,0]")), kind, "should begin at byte 0");
  CHECK_ERROR(refusal(one("F64", "[1]", "[0,18446744073709551616]")), kind, "the number 18446744073709551616");
  CHECK_ERROR(refusal(one("F64", "[18446744073709551615]", "[0,8]")), kind, "dimension 18446744073709551615");
  CHECK_ERROR(refusal(one("F64", "[2305843009213693952,8]", "[0,0]"), 0), kind, "overflows");
  CHECK_ERROR(refusal(one("U8", "[4294967296,4294967296]", "[0,0]"), 0), kind, "overflows");
  std::string many = "[1";
  for (int i = 0; i < 64; ++i) many += ",1";
  CHECK_ERROR(refusal(one("F64", many + "]", "[0,8]")), kind, "more than 64 dimensions");
}

// fault: 26
TEST_CASE("the length prefix is checked against the limit and the file") {
  const auto prefix = [](std::uint64_t length) {
    std::string bytes(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i) & 0xff);
    return bytes;
  };
  const auto kind = ErrorKind::corrupt_data;
  CHECK(parse_header_length(prefix(0x010203), 0x010203 + 8) == 0x010203);
  CHECK_ERROR(error_of([&] { parse_header_length("1234567", 7); }), kind, "the file has 7 bytes");
  CHECK_ERROR(error_of([&] { parse_header_length(prefix(93), 100); }), kind, "93 bytes", "only 100");
  CHECK_ERROR(error_of([&] { parse_header_length(prefix(~0ULL), 100); }), kind, "18446744073709551615");
  CHECK_ERROR(error_of([&] { parse_header_length(prefix((16 << 20) + 1), 1ULL << 40); }), kind, "16777216 are allowed");
}

// fault: 26
TEST_CASE("a header of the largest size cannot make the reader allocate much more than its own size") {
  const std::size_t size = kHostileBytes;
  const auto repeated = [size](const std::string& head, const std::string& part) {
    std::string text = head;
    text.reserve(size);
    while (text.size() + part.size() <= size) text += part;
    return text;
  };
  const auto numbered = [size](const std::string& head, const std::string& value) {
    std::string text = head;
    for (int i = 0; text.size() + value.size() + 50 < size; ++i) {
      text.append("\"").append(std::to_string(i)).append("\":").append(value).append(",");
    }
    return text;
  };
  const std::vector<std::string> hostile = {
      std::string("{\"a\":").append(size - 5, '['),
      repeated("{", "\"a\":{"),
      repeated("{\"__metadata__\":{", "\"a\":\"\","),
      repeated("{\"a\":{\"shape\":[", "1,"),
      std::string("{\"").append(size - 2, 'n'),
      std::string("{\"").append(size - 2, '\\'),
      std::string("{\"a\":{\"dtype\":\"").append(size - 15, 'F'),
      std::string("{\"a\":{\"shape\":[").append(size - 15, '1'),
      std::string("{\"a\":").append(size - 5, 't'),
      numbered("{", entry("U8", "[0]", "[0,0]")),
      numbered("{\"__metadata__\":{", "\"\""),
      numbered("{\"__metadata__\":{", std::string("\"").append(900'000, 'v').append("\"")),
  };
  for (const std::string& text : hostile) {
    CAPTURE(text.substr(0, 40));
    const std::size_t peak = peak_allocation_of([&] { CHECK_ERROR(refusal(text), ErrorKind::corrupt_data, "header"); });
    CHECK(peak <= 64 << 20);
  }
}

// fault: 26
TEST_CASE("thousands of damaged headers: each is refused or is a header that fits its data exactly") {
  SafetensorsHeader header = example();
  lay_out(header);
  const std::string text = serialise_header(header).substr(8);
  const std::uint64_t data_bytes = header.tensors.back().end;
  int refused = 0, accepted = 0;
  for (unsigned seed = 0; seed < kDamaged; ++seed) {
    std::mt19937 random(seed);
    std::string damaged = text;
    const unsigned changes = 1 + random() % 4;
    for (unsigned i = 0; i < changes; ++i) {
      const std::size_t at = random() % damaged.size();
      switch (random() % 4) {
        case 0: damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8)); break;
        case 1: damaged[at] = static_cast<char>(random()); break;
        case 2: damaged.erase(at, 1 + random() % 8); break;
        default: damaged.insert(at, 1, "{}[]\",:0129-e. \\"[random() % 16]); break;
      }
      if (damaged.empty()) damaged.push_back('x');
    }
    const std::size_t peak = peak_allocation_of([&] {
      try {
        const SafetensorsHeader parsed = parse_header(damaged, data_bytes);
        std::uint64_t offset = 0;
        for (const TensorEntry& tensor : parsed.tensors) {
          REQUIRE(tensor.begin == offset);
          offset = tensor.end;
        }
        REQUIRE(offset == data_bytes);
        ++accepted;
      } catch (const Error& error) {
        REQUIRE(error.kind() == ErrorKind::corrupt_data);
        ++refused;
      }
    });
    REQUIRE(peak < 1 << 20);
  }
  // Some changes leave a valid header, in a name or a string: it takes the digest to find those.
  CHECK(refused > static_cast<int>(kDamaged / 2));
  CHECK(accepted > 0);
}

}  // namespace safetensors_header_test
