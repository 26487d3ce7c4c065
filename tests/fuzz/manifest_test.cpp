#include "lockstep/train/checkpoint/manifest.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>

#include "lockstep/formats/safetensors/digest.h"
#include "lockstep/train/checkpoint/signature_check.h"
#include "tests/fuzz/fuzz.h"

namespace manifest_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

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

SigningKey key() { return SigningKey(Token::from_bytes(std::string(Token::kBytes, 'k'))); }

// Of SHA-256, and perhaps signed.
std::string other_example(const SigningKey* key) {
  Manifest manifest = example();
  manifest.digest = DigestKind::sha_256;
  return serialise(manifest, key);
}

// Ends it with the digest of what it says, mostly one of its own kind.
void seal(Bytes& text, fuzz::Random& random) {
  const bool is_long = text.rfind("\"sha256\":\"") != Bytes::npos;
  const DigestName& name = name_of(is_long == random.one_in(16) ? DigestKind::xxh3_128 : DigestKind::sha_256);
  const std::string mark = ",\"" + std::string(name.key) + "\":\"";
  text.resize(std::min(text.size(), text.rfind(mark)));
  text += mark + std::string(name.digits, '0') + "\"}\n";
  const std::size_t digits = text.size() - 3 - name.digits;
  text.replace(digits, name.digits, digest_of(name.kind, text));
}

}  // namespace

TEST_CASE("manifests of checkpoint sets") {
  const SigningKey mine = key();
  const SignatureCheck check(SignatureCheck::Need::none, mine);
  const Bytes right = other_example(&mine);
  fuzz::run({.name = "manifests",
             .seeds = {serialise(example()), serialise(Manifest{}), other_example(nullptr), other_example(&mine)},
             .words = {"\"",      "[",        "]",         "{",          "}",          ",",
                       ":",       "0",        "9",         "-",          "1e9",        "18446744073709551615",
                       "null",    "\"rows\"", "\"shape\"", "\"pieces\"", "\"files\"",  "\"file\"",
                       "/",       "..",       "\\u0000",   "\\",         "\"sha256\"", "\"hmac_sha256\"",
                       "\"xxh3\""},
             .repair = [](Bytes& bytes, fuzz::Random& random) { seal(bytes, random); },
             .kinds = {ErrorKind::corrupt_data, ErrorKind::unauthorized},
             .memory_limit = std::size_t{2} << 20,
             .parse =
                 [&](ByteView bytes) {
                   const Origin origin("a manifest");
                   const Manifest manifest = parse_manifest(bytes, origin);
                   for (const auto& [name, tensor] : manifest.tensors) {
                     std::int64_t row = 0;
                     for (const SetPiece& piece : tensor.pieces) {
                       if (piece.first_row != row || piece.file >= manifest.files.size())
                         throw std::logic_error("a gap");
                       row = piece.end_row;
                     }
                     if (row != tensor.rows()) throw std::logic_error("rows are missing");
                   }
                   if (check.check(bytes, "a manifest") == SignatureState::right && bytes != right) {
                     throw std::logic_error("a signature of something else");
                   }
                   const std::string text = serialise(manifest);
                   if (serialise(parse_manifest(text, origin)) != text) throw std::logic_error("another text");
                 }});
}

}  // namespace manifest_test
