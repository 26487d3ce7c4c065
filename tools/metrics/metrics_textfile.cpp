#include "tools/metrics/metrics_textfile.h"

#include <chrono>
#include <exception>
#include <span>
#include <utility>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"

namespace lockstep::tools {

using namespace internal;

namespace {

// node_exporter is another user.
constexpr AtomicFileOptions kReadByAll{.mode = 0644, .obeys_umask = false, .survives_power_cut = false};
constexpr auto kBetweenWrites = std::chrono::seconds(5);

}  // namespace

MetricsTextfile::MetricsTextfile(std::filesystem::path path, std::function<std::string()> text)
    : path_(std::filesystem::absolute(path)), text_(std::move(text)) {
  try {
    write();
  } catch (const Error& error) {
    throw Error(ErrorKind::invalid_argument, fmt::format("--metrics-textfile: {}", error.what()));
  }
  thread_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kBetweenWrites, [this] { return is_over_; })) {
      lock.unlock();
      write_or_warn();
      lock.lock();
    }
  });
}

MetricsTextfile::~MetricsTextfile() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_one();
  thread_.join();
  write_or_warn();
}

void MetricsTextfile::write() {
  const std::string text = text_();
  AtomicFile file(path_, kReadByAll);
  file.write(std::as_bytes(std::span(text)));
  file.publish();
}

void MetricsTextfile::write_or_warn() {
  try {
    write();
    warned_ = false;
  } catch (const std::exception& error) {
    if (!std::exchange(warned_, true)) log_warning(fmt::format("metrics: {}", error.what()));
  }
}

}  // namespace lockstep::tools
