#include "bench/summary.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/error.h"

namespace bench {
namespace {

// The value below which this share of them lies, between two neighbours in proportion.
double quantile(const std::vector<double>& sorted, double share) {
  const double position = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

Summary summarize(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values.front(), quantile(values, 0.1), quantile(values, 0.5), quantile(values, 0.9)};
}

double median(std::vector<double> values) { return summarize(std::move(values)).p50; }

RecordFile::RecordFile(const std::string& path) {
  if (path.empty()) return;
  file_.open(path);
  if (!file_) throw lockstep::Error(lockstep::ErrorKind::invalid_argument, "--json: cannot write " + path);
}

void RecordFile::write(const nlohmann::ordered_json& record) {
  if (file_.is_open()) file_ << record << std::endl;
}

}  // namespace bench
