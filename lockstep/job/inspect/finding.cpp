#include "lockstep/job/inspect/finding.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

const char* word_for(Verdict verdict) {
  switch (verdict) {
    case Verdict::ok: return "ok";
    case Verdict::warning: return "warning";
    case Verdict::error: return "error";
  }
  return "";
}

}  // namespace

std::string text_of(const Findings& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text += fmt::format("{:<8} {}: {}\n", word_for(finding.verdict), finding.subject, finding.found);
    if (!finding.remedy.empty()) text += fmt::format("         -> {}\n", finding.remedy);
  }
  return text;
}

std::string json_of(const Findings& findings) {
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"verdict", word_for(finding.verdict)},
                    {"subject", finding.subject},
                    {"found", finding.found},
                    {"remedy", finding.remedy}});
  }
  const nlohmann::json document{{"verdict", word_for(worst_of(findings))}, {"findings", std::move(list)}};
  return document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Verdict worst_of(const Findings& findings) {
  const auto worst = std::ranges::max_element(findings, {}, &Finding::verdict);
  return worst == findings.end() ? Verdict::ok : worst->verdict;
}

std::string bytes_text(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, kUnits[unit]);
}

}  // namespace lockstep::internal
