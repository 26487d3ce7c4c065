#include "lockstep/job/inspect/compare_hosts.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr double kMostSecondsApart = 1;

// "2.13.0+cpu /usr/lib/..." -> "2.13.0": the release is what has to be the same.
std::string version_of(const std::string& found) {
  const bool has_one = found.find_first_of("0123456789") == 0;
  return has_one ? found.substr(0, found.find_first_of(" ,+")) : "none known";
}

bool has_version(const std::string& subject) {
  return subject == "lockstep" || subject.starts_with("torch of ") || subject.starts_with("libtorch of ");
}

Finding compare(const std::string& subject, const std::map<std::string, std::string>& versions) {
  std::string text;
  bool same = true;
  for (const auto& [host, version] : versions) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", host, version);
    same = same && version == versions.begin()->second;
  }
  Finding finding{.subject = fmt::format("{} on all hosts", subject)};
  finding.found = same ? "the same" : text;
  if (same) return finding;
  finding.verdict = Verdict::warning;
  finding.remedy = "the ranks of a job need the same release on all hosts";
  return finding;
}

Finding compare_clocks(const std::vector<HostFindings>& hosts) {
  const auto [least, most] = std::ranges::minmax_element(hosts, {}, &HostFindings::clock_ahead_seconds);
  const double apart = *most->clock_ahead_seconds - *least->clock_ahead_seconds;
  Finding finding{.subject = "clocks of all hosts"};
  if (apart <= kMostSecondsApart) {
    finding.found = "less than a second apart";
    return finding;
  }
  finding.verdict = Verdict::warning;
  finding.found = fmt::format("the clock of {} is {:.1f} s ahead of that of {}", most->host, apart, least->host);
  finding.remedy = "times in their logs do not match; synchronise them by chrony or NTP";
  return finding;
}

}  // namespace

Findings compare_hosts(const std::vector<HostFindings>& hosts) {
  Findings all;
  std::map<std::string, std::map<std::string, std::string>> versions;  // by subject, by host
  for (const HostFindings& each : hosts) {
    for (Finding finding : each.findings) {
      if (has_version(finding.subject)) versions[finding.subject][each.host] = version_of(finding.found);
      finding.subject = fmt::format("{}: {}", each.host, finding.subject);
      all.push_back(std::move(finding));
    }
    if (!each.findings.empty()) continue;
    all.push_back({Verdict::error, fmt::format("{}: checks", each.host), "it returned no result",
                   "see the messages above; 'ssh HOST true' must work without a prompt"});
  }
  for (const auto& [subject, of_hosts] : versions) all.push_back(compare(subject, of_hosts));
  if (std::ranges::all_of(hosts, [](const auto& host) { return host.clock_ahead_seconds.has_value(); }) &&
      !hosts.empty()) {
    all.push_back(compare_clocks(hosts));
  }
  return all;
}

std::string line_of(const Findings& findings) {
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& each : findings) {
    list.push_back({static_cast<int>(each.verdict), each.subject, each.found, each.remedy});
  }
  return list.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

Findings findings_of_line(const std::string& line) {
  Findings findings;
  try {
    for (const auto& [verdict, subject, found, remedy] :
         nlohmann::json::parse(line).get<std::vector<std::tuple<int, std::string, std::string, std::string>>>()) {
      const auto worst = static_cast<int>(Verdict::error);
      findings.push_back({static_cast<Verdict>(std::clamp(verdict, 0, worst)), subject, found, remedy});
    }
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::invalid_argument, fmt::format("the report of a host cannot be read: {}", error.what()));
  }
  return findings;
}

}  // namespace lockstep::internal
