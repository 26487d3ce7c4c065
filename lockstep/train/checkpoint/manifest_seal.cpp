#include "lockstep/train/checkpoint/manifest_seal.h"

#include <algorithm>

#include "lockstep/base/format.h"
#include "lockstep/formats/safetensors/safetensors_parser.h"

namespace lockstep::internal {
namespace {

constexpr std::string_view kTextEnd = "\"}\n";
constexpr std::size_t kSignatureDigits = 2 * kProofBytes;

std::string mark_of(std::string_view member) { return fmt::format(",\"{}\":\"", member); }

bool is_digits(ByteView text) {
  return std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// Of the text with its own digits as zeros.
std::string digest_of_text(DigestKind kind, ByteView text) {
  const std::size_t digits = name_of(kind).digits;
  std::string blanked(text);
  blanked.replace(text.size() - kTextEnd.size() - digits, digits, digits, '0');
  return digest_of(kind, blanked);
}

// Whether `text` ends with mark, digits and `end`; then it is cut down to what stands in front, and the digits are
// returned.
std::string_view take_digits(ByteView& text, const std::string& mark, std::size_t digits, std::string_view end) {
  const std::size_t tail = mark.size() + digits + end.size();
  if (text.size() < tail || !text.ends_with(end)) return {};
  const ByteView found = text.substr(text.size() - tail);
  if (!found.starts_with(mark) || !is_digits(found.substr(mark.size(), digits))) return {};
  text.remove_suffix(tail);
  return found.substr(mark.size(), digits);
}

// "md5" of ...,"md5":"0123"}; for the error.
std::string_view unknown_kind(ByteView text) {
  if (!text.ends_with(kTextEnd)) return {};
  const std::size_t value = text.rfind("\":\"", text.size() - kTextEnd.size() - 1);
  const std::size_t name = value == ByteView::npos ? value : text.rfind(",\"", value);
  if (name == ByteView::npos || value <= name + 2 || value - name > 32) return {};
  const std::size_t digits = value + 3;
  return is_digits(text.substr(digits, text.size() - kTextEnd.size() - digits))
             ? text.substr(name + 2, value - name - 2)
             : std::string_view();
}

}  // namespace

std::string sealed(std::string body, DigestKind digest, const SigningKey* key) {
  body.pop_back();  // the brace
  if (key != nullptr) {
    const std::string signature = key->sign(body);
    body += fmt::format("{}{}\"", mark_of(kSignatureMember), signature);
  }
  const std::size_t digits = name_of(digest).digits;
  body += fmt::format("{}{}{}", mark_of(name_of(digest).key), std::string(digits, '0'), kTextEnd);
  return body.replace(body.size() - kTextEnd.size() - digits, digits, digest_of_text(digest, body));
}

ManifestSeal check_seal(ByteView text, const Origin& origin) {
  const std::string damaged = "the manifest is damaged: ";
  for (const DigestName& each : kDigests) {
    ByteView rest = text;
    const std::string_view expected = take_digits(rest, mark_of(each.key), each.digits, kTextEnd);
    if (expected.empty()) continue;
    const std::string found = digest_of_text(each.kind, text);
    if (found != expected) {
      throw_corrupt(origin, fmt::format("{}{} expected {}, found {}", damaged, each.text, expected, found));
    }
    ManifestSeal seal{.digest = each.kind};
    seal.signature = take_digits(rest, mark_of(kSignatureMember), kSignatureDigits, "\"");
    seal.body_bytes = rest.size();
    return seal;
  }
  if (const std::string_view kind = unknown_kind(text); !kind.empty()) {
    throw_corrupt(origin,
                  fmt::format("the manifest has a digest of the unknown kind {}; this build reads {} and {}: a newer "
                              "version has written it, or it is damaged",
                              shown(kind), kDigests[0].key, kDigests[1].key));
  }
  throw_corrupt(origin, damaged + "it does not end with its digest");
}

bool is_signed_with(ByteView text, const ManifestSeal& seal, const SigningKey& key) {
  return key.has_signed(text.substr(0, seal.body_bytes), seal.signature);
}

}  // namespace lockstep::internal
