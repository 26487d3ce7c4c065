// What is reported of many timings of one thing, and where. Not thread-safe.
#pragma once

#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace bench {

struct Summary {
  double min = 0;
  double p10 = 0;
  double p50 = 0;
  double p90 = 0;
};

// REQUIRES: at least one value.
Summary summarize(std::vector<double> values);
double median(std::vector<double> values);

// A file of one JSON object a line.
class RecordFile {
 public:
  // Replaces the file; an empty path drops all records. Throws Error{invalid_argument} if it cannot be written.
  explicit RecordFile(const std::string& path);
  void write(const nlohmann::ordered_json& record);

 private:
  std::ofstream file_;
};

}  // namespace bench
