#include "lockstep/checkpoint/manifest.h"

#include <doctest/doctest.h>

#include <stdexcept>

#include "lockstep/formats/digest.h"
#include "tests/fuzz/fuzz.h"

using namespace lockstep;
using namespace lockstep::internal;

namespace {

constexpr std::size_t kDigits = 32;
constexpr std::string_view kMark = "\"xxh3\":\"";

Manifest example() {
  Manifest manifest{.step = 400, .world_size = 2, .metadata = {{"a", "b"}}, .metrics = {{"loss", 0.5}}};
  manifest.written = {{"time", "2026-01-02T03:04:05Z"}};
  manifest.files = {{.name = "part-0", .bytes = 100, .rank = 0, .host = "h"},
                    {.name = "part-1", .bytes = 9, .rank = 1}};
  manifest.tensors["w"] = {.dtype = "F32",
                           .shape = {4, 2},
                           .pieces = {{.file = 0, .first_row = 0, .end_row = 3, .digest = "11"},
                                      {.file = 1, .first_row = 3, .end_row = 4, .digest = "22"}}};
  manifest.tensors["s"] = {.dtype = "I64", .shape = {}, .pieces = {{.file = 1, .first_row = 0, .end_row = 1}}};
  manifest.user = R"({"epoch":3,"list":[1,[2,{}],"x"]})";
  return manifest;
}

// Ends it with the digest of what it says.
void seal(Bytes& text) {
  const std::size_t mark = text.rfind(kMark);
  text.resize(mark == Bytes::npos ? text.size() : mark);
  text += std::string(kMark) + std::string(kDigits, '0') + "\"}\n";
  const std::size_t digits = text.size() - 3 - kDigits;
  text.replace(digits, kDigits, xxh3_128(ByteView(text)));
}

}  // namespace

TEST_CASE("manifests of checkpoint sets") {
  fuzz::run({.name = "manifests",
             .seeds = {serialise(example()), serialise(Manifest{})},
             .words = {"\"",   "[",        "]",         "{",          "}",         ",",
                       ":",    "0",        "9",         "-",          "1e9",       "18446744073709551615",
                       "null", "\"rows\"", "\"shape\"", "\"pieces\"", "\"files\"", "\"file\"",
                       "/",    "..",       "\\u0000",   "\\"},
             .repair = [](Bytes& bytes, fuzz::Random&) { seal(bytes); },
             .memory_limit = std::size_t{2} << 20,
             .parse =
                 [](ByteView bytes) {
                   const Origin origin("a manifest");
                   const Manifest manifest = parse_manifest(bytes, origin);
                   for (const auto& [name, tensor] : manifest.tensors) {
                     std::int64_t row = 0;
                     for (const Piece& piece : tensor.pieces) {
                       if (piece.first_row != row || piece.file >= manifest.files.size())
                         throw std::logic_error("a gap");
                       row = piece.end_row;
                     }
                     if (row != tensor.rows()) throw std::logic_error("rows are missing");
                   }
                   const std::string text = serialise(manifest);
                   if (serialise(parse_manifest(text, origin)) != text) throw std::logic_error("another text");
                 }});
}
