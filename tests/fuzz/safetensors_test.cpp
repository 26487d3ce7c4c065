#include <doctest/doctest.h>

#include <stdexcept>

#include "lockstep/formats/safetensors/safetensors_header.h"
#include "lockstep/formats/sharded_safetensors.h"
#include "tests/fuzz/fuzz.h"

namespace safetensors_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

SafetensorsHeader example() {
  SafetensorsHeader header{.metadata = {{"step", "12"}, {"lockstep.xxh3.header", "0123"}}};
  header.tensors = {{.name = "fc.weight", .dtype = "F32", .shape = {10, 4}},
                    {.name = "fc.bias", .dtype = "BF16", .shape = {10}},
                    {.name = "empty", .dtype = "I64", .shape = {0, 3}}};
  lay_out(header);
  return header;
}

}  // namespace

TEST_CASE("safetensors headers") {
  const SafetensorsHeader header = example();
  const std::uint64_t data_bytes = header.tensors.back().end;
  const Bytes text = serialise_header(header);
  fuzz::run({.name = "safetensors headers",
             .seeds = {text},
             .words = {"\"", "[", "]", "{", "}", ",", ":", "0", "9", "-", "1e9", "18446744073709551615", "null",
                       "\"data_offsets\"", "\"shape\"", "\"__metadata__\"", "\\u0000", "\\"},
             .repair =
                 [](Bytes& bytes, fuzz::Random&) {
                   if (bytes.size() < 8) return;
                   for (std::size_t i = 0; i < 8; ++i)
                     bytes[i] = static_cast<char>((bytes.size() - 8) >> (8 * i) & 0xff);
                 },
             .parse =
                 [=](ByteView bytes) {
                   const std::uint64_t length = parse_header_length(bytes.substr(0, 8), bytes.size());
                   const SafetensorsHeader parsed = parse_header(bytes.substr(8, length), data_bytes);
                   std::uint64_t offset = 0;
                   for (const TensorEntry& tensor : parsed.tensors) {
                     if (tensor.begin != offset || tensor.end < offset) throw std::logic_error("a gap");
                     offset = tensor.end;
                   }
                   if (offset != data_bytes) throw std::logic_error("another length");
                 }});
}

TEST_CASE("indices of sharded safetensors") {
  fuzz::run({.name = "indices of sharded safetensors",
             .seeds = {R"({"metadata": {"total_size": 12}, "weight_map": {"a.weight": "m-00001-of-00002.safetensors",
                           "a.bias": "m-00002-of-00002.safetensors"}})"},
             .words = {"\"", "{", "}", "[", "]", ":", ",", "../", "\\u0000", "\\", "null", "1e999", "\"weight_map\":"},
             .memory_limit = std::size_t{1} << 20,
             .parse = [](ByteView bytes) {
               for (const auto& [tensor, file] : parse_safetensors_index(bytes, "input").files) {
                 if (file.empty() || file.find('/') != std::string::npos) throw std::logic_error("a path");
               }
             }});
}

}  // namespace safetensors_test
