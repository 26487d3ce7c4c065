#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>

#include "lockstep/train/checkpoint/manifest_seal.h"
#include "lockstep/train/checkpoint/signature_check.h"
#include "tests/support/expect_error.h"
#include "tests/support/small_set.h"
#include "tests/support/temporary_directory.h"

namespace signature_test {

using namespace lockstep;
using namespace lockstep::internal;
using lockstep::testing::SmallSet;
using lockstep::testing::version_of;
using lockstep::testing::write_set;

namespace fs = std::filesystem;

namespace {

const Origin kOrigin("m.json");
const SmallSet kSha256 = {.digest = DigestKind::sha_256};
using Need = SignatureCheck::Need;

SigningKey key_of(char byte) { return SigningKey(Token::from_bytes(std::string(Token::kBytes, byte))); }

std::string signed_text(const SigningKey& key) {
  const TemporaryDirectory directory;
  return SetReader::read_manifest(write_set(directory.path(), kSha256, &key));
}

// The same text under a digest that is right.
std::string with_digest(std::string text) {
  const std::size_t digits = text.size() - 3 - 64;
  text.replace(digits, 64, 64, '0');
  return text.replace(digits, 64, digest_of(DigestKind::sha_256, text));
}

std::string replaced(std::string text, const std::string& part, const std::string& other) {
  const std::size_t at = text.find(part);
  REQUIRE(at != std::string::npos);
  return text.replace(at, part.size(), other);
}

void write_token(const fs::path& path, char digit) {
  std::ofstream(path) << std::string(2 * Token::kBytes, digit) << "\n";
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
}

// For this process, while it lives.
class TokenVariable {
 public:
  explicit TokenVariable(const fs::path& path) { ::setenv("LOCKSTEP_TOKEN_FILE", path.c_str(), 1); }
  TokenVariable(const TokenVariable&) = delete;
  TokenVariable& operator=(const TokenVariable&) = delete;
  ~TokenVariable() { ::unsetenv("LOCKSTEP_TOKEN_FILE"); }
};

}  // namespace

TEST_CASE("digests are those of other programs, however the bytes come") {
  CHECK(digest_of(DigestKind::sha_256, "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(digest_of(DigestKind::sha_256, "") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(digest_of(DigestKind::xxh3_128, "abc") == "06b05ab6733a618578af5f94892f3950");
  for (const DigestName& each : kDigests) {
    RunningDigest running(each.kind);
    const std::string text = "digests";
    for (const char& c : text) {
      running.add(std::as_bytes(std::span(&c, 1)));
      running.digits();  // which changes nothing
    }
    CHECK(running.digits() == digest_of(each.kind, text));
    CHECK(running.digits().size() == each.digits);
  }
}

// fault: 24
TEST_CASE("a set with SHA-256 digests is whole, and every flipped bit of it is found") {
  const TemporaryDirectory directory;
  const fs::path set = write_set(directory.path(), {.version = 3, .rows = 2, .digest = DigestKind::sha_256});
  SetReader reader(set);
  CHECK(reader.manifest().digest == DigestKind::sha_256);
  CHECK(reader.manifest().tensors.at("scalar").pieces[0].digest.size() == 64);
  reader.verify();
  CHECK(version_of(reader) == 3);
  for (const auto& entry : fs::directory_iterator(set)) {
    std::fstream file(entry.path(), std::ios::binary | std::ios::in | std::ios::out);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      file.seekp(static_cast<std::streamoff>(at)).put(static_cast<char>(bytes[at] ^ 4)).flush();
      CAPTURE(entry.path());
      CAPTURE(at);
      CHECK(error_of([&] { SetReader(set).verify(); }).kind() == ErrorKind::corrupt_data);
      file.seekp(static_cast<std::streamoff>(at)).put(bytes[at]).flush();
    }
  }
  SetReader(set).verify();
}

// fault: 26
TEST_CASE("digests of two kinds, or of one that is unknown, are refused") {
  const TemporaryDirectory directory;
  const fs::path set = write_set(directory.path(), kSha256);
  const std::string text = SetReader::read_manifest(set);
  const auto error_with = [&](const std::string& changed) {
    return error_of([&] { parse_manifest(changed, kOrigin); });
  };
  CHECK_ERROR(error_with(with_digest(replaced(text, "\"sha256\"", "\"xxh3\""))), ErrorKind::corrupt_data,
              "a piece has an unknown member 'xxh3'");
  const std::size_t end = text.rfind("\"sha256\"");
  CHECK_ERROR(error_with(text.substr(0, end) + "\"md5\":\"0123456789abcdef\"}\n"), ErrorKind::corrupt_data,
              "a digest of the unknown kind 'md5'; this build reads xxh3 and sha256");
  CHECK_ERROR(error_with(text.substr(0, end) + "\"sha256\":\"0123456789abcdef\"}\n"), ErrorKind::corrupt_data,
              "unknown kind 'sha256'");
  CHECK_ERROR(error_with(text.substr(0, end - 1) + "}\n"), ErrorKind::corrupt_data, "does not end with its digest");
  // Files of the other kind, whose manifest is right.
  const fs::path other = write_set(directory / "other", {});
  fs::remove(set / "part-00000-of-00002.safetensors");
  fs::copy(other / "part-00000-of-00002.safetensors", set);
  CHECK(error_of([&] { SetReader(set).verify(); }).kind() == ErrorKind::corrupt_data);
}

// fault: S9
TEST_CASE("the token that signed a manifest is told from others") {
  const SigningKey mine = key_of('a'), other = key_of('b');
  const std::string text = signed_text(mine);
  CHECK(parse_manifest(text, kOrigin).is_signed);
  CHECK(SignatureCheck(Need::required, mine).check(text, "m.json") == SignatureState::right);
  for (const Need need : {Need::none, Need::required}) {
    CHECK_ERROR(error_of([&] { SignatureCheck(need, other).check(text, "m.json"); }), ErrorKind::unauthorized,
                "m.json was signed with another token, or changed since");
  }
  const std::string plain = serialise(parse_manifest(text, kOrigin));
  CHECK(SignatureCheck(Need::none, mine).check(plain, "m.json") == SignatureState::absent);
  CHECK_ERROR(error_of([&] { SignatureCheck(Need::required, mine).check(plain, "m.json"); }), ErrorKind::unauthorized,
              "m.json is not signed, but a signature is required");
}

// fault: S9
TEST_CASE("whoever changes a signed manifest and makes its digest anew is refused") {
  const SigningKey key = key_of('a');
  const std::string text = signed_text(key);
  const auto error_with = [&](const std::string& changed) {
    return error_of([&] { SignatureCheck(Need::required, key).check(with_digest(changed), "m.json"); });
  };
  CHECK(with_digest(text) == text);
  CHECK_ERROR(error_with(replaced(text, "\"step\":400", "\"step\":401")), ErrorKind::unauthorized, "changed since");
  CHECK_ERROR(error_with(replaced(text, "\"host\":\"h0\"", "\"host\":\"h9\"")), ErrorKind::unauthorized, "changed");
  const std::size_t mark = text.rfind("\"hmac_sha256\":\"") + 15;
  for (std::size_t at = mark; at < mark + 64; ++at) {
    std::string changed = text;
    changed[at] = changed[at] == '0' ? '1' : '0';
    CHECK_ERROR(error_with(changed), ErrorKind::unauthorized, "changed since");
  }
  const std::string signature = ",\"hmac_sha256\":\"" + text.substr(mark, 64) + "\"";
  const std::string without = replaced(text, signature, "");
  CHECK_ERROR(error_with(without), ErrorKind::unauthorized, "is not signed");
  // What is no signature, or stands elsewhere, is none, and no manifest has such a member.
  for (const std::string& changed :
       {text.substr(0, mark) + text.substr(mark + 1), text.substr(0, mark) + text.substr(mark + 64),
        replaced(text, signature, signature + signature),
        replaced(without, "{\"files\"", "{" + signature.substr(1) + ",\"files\"")}) {
    CHECK(error_with(changed).kind() == ErrorKind::unauthorized);
    CHECK_ERROR(error_of([&] { parse_manifest(with_digest(changed), kOrigin); }), ErrorKind::corrupt_data,
                "'hmac_sha256'");
  }
}

TEST_CASE("a signature over digests that prove nothing is neither written nor read") {
  const SigningKey key = key_of('a');
  const TemporaryDirectory directory;
  Manifest manifest = parse_manifest(SetReader::read_manifest(write_set(directory.path(), {})), kOrigin);
  CHECK_ERROR(error_of([&] { serialise(manifest, &key); }), ErrorKind::invalid_argument, "digests are not SHA-256");
}

TEST_CASE("the user's own token is looked for only where there is a signature") {
  const TemporaryDirectory directory;
  const SignatureCheck relaxed(Need::none), strict(Need::required);
  const std::string plain = SetReader::read_manifest(write_set(directory.path(), {}));
  {
    const TokenVariable variable(directory / "no such file");
    CHECK(relaxed.check(plain, "m.json") == SignatureState::absent);
    CHECK_ERROR(error_of([&] { SigningKey::of_this_user(); }), ErrorKind::invalid_argument, "no such file");
  }
  write_token(directory / "token", '6');
  write_token(directory / "other", '7');
  const TokenVariable variable(directory / "token");
  const SigningKey key = SigningKey::of_this_user();
  const std::string text = signed_text(key);
  CHECK(relaxed.check(text, "m.json") == SignatureState::right);
  CHECK(strict.check(text, "m.json") == SignatureState::right);
  CHECK(SignatureCheck(Need::none, SigningKey::from_file(directory / "token")).check(text, "m.json") ==
        SignatureState::right);
  {
    const TokenVariable broken(directory / "no such file");
    CHECK_ERROR(error_of([&] { relaxed.check(text, "m.json"); }), ErrorKind::unauthorized,
                "checking the signature of a checkpoint: cannot read the token file");
  }
  const TokenVariable changed(directory / "other");
  CHECK_ERROR(error_of([&] { relaxed.check(text, "m.json"); }), ErrorKind::unauthorized, "another token");
}

TEST_CASE("without any token a signature is not checked, unless that is required") {
  const TemporaryDirectory home;
  const std::string before = ::getenv("HOME") == nullptr ? "" : ::getenv("HOME");
  ::setenv("HOME", home.path().c_str(), 1);
  const std::string text = signed_text(key_of('a'));
  CHECK(SignatureCheck(Need::none).check(text, "m.json") == SignatureState::unknown);
  CHECK_ERROR(error_of([&] { SignatureCheck(Need::required).check(text, "m.json"); }), ErrorKind::unauthorized,
              "there is no token to check the signature", "LOCKSTEP_TOKEN_FILE");
  CHECK(fs::is_empty(home.path()));
  SigningKey::of_this_user();
  CHECK(fs::exists(home / ".lockstep/token"));
  CHECK_ERROR(error_of([&] { SignatureCheck(Need::none).check(text, "m.json"); }), ErrorKind::unauthorized);
  ::setenv("HOME", before.c_str(), 1);
}

}  // namespace signature_test
