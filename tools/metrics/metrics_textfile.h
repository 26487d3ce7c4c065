// A MetricsTextfile writes the metrics of a job into a file every few seconds, for node_exporter's textfile collector:
// as a whole, by rename. In a thread of its own; a write that fails is a warning, the first time.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace lockstep::tools {

class MetricsTextfile {
 public:
  // Writes at once: Error{invalid_argument} with the path if it cannot.
  MetricsTextfile(std::filesystem::path path, std::function<std::string()> text);
  // Once more: the last state of the job stays.
  ~MetricsTextfile();
  MetricsTextfile(const MetricsTextfile&) = delete;
  MetricsTextfile& operator=(const MetricsTextfile&) = delete;

 private:
  void write();
  void write_or_warn();

  const std::filesystem::path path_;
  const std::function<std::string()> text_;
  bool warned_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;  // protected by the mutex
  std::thread thread_;
};

}  // namespace lockstep::tools
