#include "lockstep/job/elastic/host_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/pipe.h"

namespace lockstep::internal {
namespace {

constexpr std::array kStreamsOfHost{RankStream::standard_output, RankStream::standard_error};

// A text that fits into messages.
void post_text(std::string_view text, RankStream stream, Coordinator& coordinator) {
  while (!text.empty()) {
    std::size_t size = std::min(text.size(), kMostOutputBytes);
    // Lines of several hosts are mixed, so a message ends with a line if it can.
    if (size < text.size()) {
      const std::size_t newline = text.rfind('\n', size - 1);
      if (newline != std::string_view::npos) size = newline + 1;
    }
    coordinator.post(Output{stream, std::string(text.substr(0, size))});
    text.remove_prefix(size);
  }
}

}  // namespace

HostOutput::HostOutput(RankOutputOptions options, int ranks, Way way) {
  if (way != Way::alone) {
    // Ranks of several hosts are told apart by their numbers, which are not known yet.
    if (options.prefix == PrefixMode::automatic) options.prefix = PrefixMode::always;
    options.is_one_of_several = true;
  }
  for (std::size_t i = 0; i < streams_.size() && way == Way::sent; ++i) {
    streams_[i].pipe = make_pipe("the ranks' output", PipeMode::non_blocking);
    (i == 0 ? options.standard_output : options.standard_error) = streams_[i].pipe.writer.get();
  }
  output_ = std::make_unique<RankOutput>(options, ranks);
}

void HostOutput::watch_pipes(std::vector<pollfd>& set, const Coordinator& coordinator) const {
  if (!has_pipes() || !coordinator.takes_output()) return;
  for (const Stream& each : streams_) set.push_back({each.pipe.reader.get(), POLLIN, 0});
}

void HostOutput::send_lines(Coordinator& coordinator) {
  if (!has_pipes()) return;
  for (const RankStream stream : kStreamsOfHost)
    send_all_of(streams_[static_cast<std::size_t>(stream)], stream, coordinator);
}

void HostOutput::send_all_of(Stream& from, RankStream stream, Coordinator& coordinator) {
  std::array<char, std::size_t{64} << 10> buffer;
  while (coordinator.takes_output()) {
    const ssize_t got = ::read(from.pipe.reader.get(), buffer.data(), buffer.size());
    if (got <= 0) return;
    from.partial.append(buffer.data(), static_cast<std::size_t>(got));
    const std::size_t newline = from.partial.rfind('\n');
    if (newline == std::string::npos) {
      if (from.partial.size() < kMostOutputBytes) continue;
      post_text(std::exchange(from.partial, {}), stream, coordinator);
    } else {
      post_text(std::string_view(from.partial).substr(0, newline + 1), stream, coordinator);
      from.partial.erase(0, newline + 1);
    }
  }
}

void HostOutput::watch_all(std::vector<pollfd>& set, const Coordinator& coordinator) {
  for (const RankStream stream : kStreamsOfHost) {
    const OutputSink& sink = output_->sink(stream);
    if (sink.pending()) set.push_back({sink.fd(), POLLOUT, 0});
  }
  watch_pipes(set, coordinator);
}

void HostOutput::tend(Coordinator& coordinator) {
  for (const RankStream stream : kStreamsOfHost) {
    OutputSink& sink = output_->sink(stream);
    pollfd ready{sink.fd(), POLLOUT, 0};
    if (sink.pending() && ::poll(&ready, 1, 0) > 0) sink.write_some();
  }
  output_->tend();
  send_lines(coordinator);
}

void HostOutput::flush(Coordinator& coordinator, Deadline deadline) {
  while (!deadline.expired() && coordinator.lost().empty()) {
    std::vector<pollfd> set;
    watch_all(set, coordinator);
    coordinator.watch(set);
    tend(coordinator);
    const bool pending =
        output_->sink(RankStream::standard_output).pending() || output_->sink(RankStream::standard_error).pending();
    if (!pending && coordinator.takes_output()) break;
    ::poll(set.data(), set.size(), std::min(deadline, coordinator.wake_at()).poll_timeout_ms());
    coordinator.tend();
  }
  for (const RankStream stream : kStreamsOfHost) {
    Stream& from = streams_[static_cast<std::size_t>(stream)];
    post_text(std::exchange(from.partial, {}), stream, coordinator);
  }
}

}  // namespace lockstep::internal
