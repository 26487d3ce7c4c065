#include "tools/report/page.h"

#include <openssl/evp.h>

#include <array>
#include <charconv>

#include "lockstep/base/format.h"
#include "lockstep/formats/safetensors/digest.h"
#include "tools/report/html.h"

namespace lockstep::tools {

using namespace internal;

namespace {

// As a Content-Security-Policy names it: the Base64 of its SHA-256.
std::string policy_hash(std::string_view text) {
  const std::string digits = digest_of(DigestKind::sha_256, text);
  std::array<unsigned char, 32> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::from_chars(digits.data() + 2 * i, digits.data() + 2 * i + 2, bytes[i], 16);
  }
  std::array<unsigned char, 45> base64{};
  const int length = ::EVP_EncodeBlock(base64.data(), bytes.data(), static_cast<int>(bytes.size()));
  return {reinterpret_cast<const char*>(base64.data()), static_cast<std::size_t>(length)};
}

std::string head_of(const std::string& title) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{}'; "
      "base-uri 'none'; form-action 'none'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n",
      policy_hash(page_style()), escaped(title), page_style());
}

std::string title_of(const std::vector<RunRecord>& runs) {
  std::vector<std::string> names;
  for (const RunRecord& run : runs) names.push_back(run.name);
  return fmt::format("Training report: {}", fmt::join(names, ", "));
}

}  // namespace

std::string left_out(const std::vector<RunRecord>& runs, const std::vector<std::string>& names, std::string_view why) {
  if (names.empty()) return "";
  if (runs.size() == 1) return element("p", "none", fmt::format("Left out: {}", why));
  return element("p", "none", fmt::format("Left out for {}: {}", fmt::join(names, ", "), why));
}

std::string run_heading(const std::vector<RunRecord>& runs, const RunRecord& run) {
  return runs.size() == 1 ? "" : element("h3", "", run.name);
}

std::string report_page(const std::vector<RunRecord>& runs, const std::string& made) {
  const std::string title = title_of(runs);
  return head_of(title) + "<body>\n<main>\n" + element("h1", "", title) + overview_section(runs) +
         epochs_section(runs) + steps_section(runs) + failures_section(runs) + checkpoints_section(runs) +
         environment_section(runs) + "</main>\n" + element("footer", "", made) + "</body>\n</html>\n";
}

}  // namespace lockstep::tools
