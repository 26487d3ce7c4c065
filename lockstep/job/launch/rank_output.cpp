#include "lockstep/job/launch/rank_output.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log_line.h"
#include "lockstep/base/open_for_writing.h"
#include "lockstep/base/own_links.h"
#include "lockstep/job/launch/fill_in.h"
#include "lockstep/job/launch/launcher_line.h"

namespace lockstep::internal {
namespace {

constexpr int kProgressRank = 0;
constexpr std::size_t kMostJsonBytes = std::size_t{96} << 10;

// Within a character of UTF-8.
bool is_continued(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

bool colours_wanted() {
  const EnvironmentReader reader;
  return !reader.has("NO_COLOR") && reader.text("TERM") != "dumb";
}

// A blank at its end has no colour.
std::string coloured(const std::string& prefix, int rank) {
  static constexpr int kColours[] = {36, 33, 35, 32, 34, 31};
  const std::size_t end = prefix.find_last_not_of(' ') + 1;
  return fmt::format("\033[{}m{}\033[m{}", kColours[static_cast<std::size_t>(rank) % std::size(kColours)],
                     prefix.substr(0, end), prefix.substr(end));
}

std::size_t index_of(RankStream stream) { return static_cast<std::size_t>(stream); }

int of_rank(const std::map<int, int>& streams, int rank) {
  constexpr int kAllRanks = -1;
  const auto own = streams.find(rank);
  const auto all = streams.find(kAllRanks);
  return own != streams.end() ? own->second : all != streams.end() ? all->second : 0;
}

// In objects that fit into a message between agents.
void append_json(std::string& text, LogLine line, std::string_view message) {
  line.message = message;
  const std::string object = json_of(line);
  if (object.size() <= kMostJsonBytes) {
    text += object;
    return;
  }
  std::size_t half = message.size() / 2;
  while (half > 1 && is_continued(message[half])) --half;
  append_json(text, line, message.substr(0, half));
  append_json(text, line, message.substr(half));
}

// Links of other users are not followed, see own_links.h.
void make_log_folder(const std::string& folder) {
  std::error_code failure;
  const std::string doing = fmt::format("cannot make the log directory '{}'", folder);
  std::filesystem::create_directories(folder, failure);
  if (failure) throw Error(ErrorKind::invalid_argument, fmt::format("{}: {}", doing, failure.message()));
  open_folder(folder, doing);
}

}  // namespace

RankOutput::RankOutput(const RankOutputOptions& options, int ranks)
    : options_(options),
      prefix_(options.prefix),
      json_(log_format() == LogFormat::json),
      verbatim_(ranks == 1 && options.prefix != PrefixMode::always && !json_ && !options.is_one_of_several),
      standard_output_(options.standard_output),
      ranks_(static_cast<std::size_t>(ranks)) {
  auto standard_error = std::make_unique<OutputSink>(options.standard_error);
  if (!standard_error->same_place(standard_output_)) standard_error_ = std::move(standard_error);
  name_ranks(0);
  choose_streams();
  if (!options_.log_directory.empty() && !options.is_one_of_several) open_logs(options_.log_directory);
}

bool RankOutput::is_logged(int rank, RankStream stream) const {
  const int bit = stream == RankStream::standard_output ? 1 : 2;
  return !options_.chooses_streams || (of_rank(options_.redirects, rank) & bit) != 0 ||
         (of_rank(options_.tee, rank) & bit) != 0;
}

bool RankOutput::is_shown(int rank, RankStream stream) const {
  const int bit = stream == RankStream::standard_output ? 1 : 2;
  if (!options_.shown_ranks.empty() && std::ranges::find(options_.shown_ranks, rank) == options_.shown_ranks.end()) {
    return false;
  }
  return (of_rank(options_.redirects, rank) & bit) == 0 || (of_rank(options_.tee, rank) & bit) != 0;
}

void RankOutput::choose_streams() {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    for (const RankStream stream : {RankStream::standard_output, RankStream::standard_error}) {
      ranks_[rank].streams[index_of(stream)].is_shown = is_shown(static_cast<int>(rank), stream);
    }
  }
}

void RankOutput::name_ranks(int first_rank) {
  first_rank_ = first_rank;
  const bool prefixed = prefix_ == PrefixMode::always || (prefix_ == PrefixMode::automatic && ranks_.size() > 1);
  const bool wanted = colours_wanted();
  for (int index = 0; index < static_cast<int>(ranks_.size()) && prefixed; ++index) {
    const int rank = first_rank + index;
    const std::string text =
        fill_in(fill_in(options_.prefix_template, "rank", std::to_string(rank)), "local_rank", std::to_string(index));
    for (const RankStream stream : {RankStream::standard_output, RankStream::standard_error}) {
      ranks_[static_cast<std::size_t>(index)].prefix[index_of(stream)] =
          wanted && sink(stream).is_terminal() ? coloured(text, rank) : text;
    }
  }
}

void RankOutput::begin_attempt(int number, int first_rank) {
  for (Rank& rank : ranks_) {
    for (Stream& stream : rank.streams) stream = {};
    rank.error_text = {};
  }
  attempt_ = number;
  name_ranks(first_rank);
  choose_streams();
  const std::string& directory = options_.log_directory;
  if (!directory.empty()) open_logs(number == 0 ? directory : fmt::format("{}/attempt_{}", directory, number));
}

RankOutput::LogFile RankOutput::open_log(const std::string& folder, const std::string& name) {
  const std::string path = fmt::format("{}/{}", folder, name);
  const std::string doing = fmt::format("cannot write '{}'", path);
  UniqueFd directory = open_folder(folder, doing);
  return {create_in_place_of({.path = path, .directory = std::move(directory), .name = name}, kSharedMode, doing),
          path};
}

void RankOutput::open_logs(const std::string& directory) {
  make_log_folder(options_.log_directory);
  if (directory != options_.log_directory) make_log_folder(directory);
  for (const RankStream stream : {RankStream::standard_output, RankStream::standard_error}) {
    const char* name = stream == RankStream::standard_output ? "stdout" : "stderr";
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!is_logged(static_cast<int>(rank), stream)) continue;
      ranks_[rank].streams[index_of(stream)].log =
          open_log(directory, fmt::format("rank_{}.{}.log", first_rank_ + static_cast<int>(rank), name));
    }
    if (options_.duplicated[index_of(stream)].empty()) continue;
    duplicates_[index_of(stream)] = open_log(directory, fmt::format("filtered_{}.log", name));
  }
}

// Lines of all ranks, each with its rank.
void RankOutput::duplicate(RankStream stream, int rank, std::string_view line) {
  LogFile& log = duplicates_[index_of(stream)];
  const auto& texts = options_.duplicated[index_of(stream)];
  const auto has = [line](const std::string& text) { return line.find(text) != std::string_view::npos; };
  if (log.fd && std::ranges::any_of(texts, has)) write_log(log, fmt::format("[{}] {}\n", first_rank_ + rank, line));
}

OutputSink& RankOutput::sink(RankStream stream) {
  return stream == RankStream::standard_error && standard_error_ ? *standard_error_ : standard_output_;
}

const ErrorText& RankOutput::error_text(int rank) const { return ranks_[static_cast<std::size_t>(rank)].error_text; }

void RankOutput::feed(int rank_number, RankStream stream_kind, std::string_view bytes) {
  Rank& rank = ranks_[static_cast<std::size_t>(rank_number)];
  Stream& stream = rank.streams[index_of(stream_kind)];
  OutputSink& target = sink(stream_kind);
  write_log(stream.log, bytes);
  std::string text;
  stream.splitter.feed(bytes, [&](std::string_view line) {
    duplicate(stream_kind, rank_number, line);
    show_line(text, rank_number, stream_kind, line);
  });
  if (!stream.is_shown) return;
  target.append(verbatim_ ? bytes : text);
  if (target.is_terminal() && !verbatim_ && !json_) {
    if (rank_number == kProgressRank && stream_kind == progress_stream_ && !text.empty()) target.set_status({});
    show_progress(rank, stream_kind);
  }
}

// What Lockstep itself says in a rank keeps its time and its level.
void RankOutput::show_line(std::string& text, int rank_number, RankStream stream, std::string_view line) {
  Rank& rank = ranks_[static_cast<std::size_t>(rank_number)];
  const bool is_error = stream == RankStream::standard_error;
  const int number = first_rank_ + rank_number;
  const std::optional<LogLine> own = json_ && is_error ? read_library_line(line) : std::nullopt;
  if (is_error) rank.error_text.feed(own ? library_text(own->level, number, own->message) : visible_text(line));
  if (verbatim_) return;
  if (json_) {
    append_json(text,
                {.time = own ? own->time : log_time(),
                 .level = own ? own->level : "",
                 .host = log_host(),
                 .rank = number,
                 .attempt = attempt_,
                 .stream = is_error ? "stderr" : "stdout"},
                own ? own->message : line);
    return;
  }
  text.append(rank.prefix[index_of(stream)]);
  text.append(sink(stream).is_terminal() ? visible_text(line) : line);
  text.push_back('\n');
}

// A progress bar redraws its line with carriage returns and no newline: rank 0's is shown as the terminal's status
// line, those of others only once they are complete.
void RankOutput::show_progress(Rank& rank, RankStream stream_kind) {
  LineSplitter& splitter = rank.streams[index_of(stream_kind)].splitter;
  if (splitter.partial().find('\r') == std::string_view::npos) return;
  if (&rank == &ranks_[kProgressRank]) {
    progress_stream_ = stream_kind;
    const std::string_view visible = visible_text(splitter.partial());
    sink(stream_kind).set_status(fmt::format("{}{}", rank.prefix[index_of(stream_kind)], visible));
  }
  splitter.drop_overwritten();
}

void RankOutput::finish(int rank_number, RankStream stream_kind) {
  Rank& rank = ranks_[static_cast<std::size_t>(rank_number)];
  Stream& stream = rank.streams[index_of(stream_kind)];
  stream.log.fd.reset();
  if (verbatim_ || stream.splitter.partial().empty()) {
    stream.splitter.finish([&](std::string_view line) {
      duplicate(stream_kind, rank_number, line);
      if (stream_kind == RankStream::standard_error) rank.error_text.feed(visible_text(line));
    });
  } else {
    feed(rank_number, stream_kind, "\n");
  }
}

void RankOutput::tend() {
  for (const RankStream stream : {RankStream::standard_output, RankStream::standard_error}) {
    sink(stream).tend();
    const std::string trouble = sink(stream).take_trouble();
    const char* name = stream == RankStream::standard_output ? "output" : "error";
    if (!trouble.empty()) say(fmt::format("standard {} {}", name, trouble), LogLevel::warning);
  }
}

Deadline RankOutput::wake_at() const {
  const Deadline wake = standard_output_.wake_at();
  return standard_error_ ? std::min(wake, standard_error_->wake_at()) : wake;
}

void RankOutput::write_ready() {
  for (OutputSink* target : {&standard_output_, &sink(RankStream::standard_error)}) {
    pollfd ready{target->fd(), POLLOUT, 0};
    while (target->pending() && ::poll(&ready, 1, 0) > 0) target->write_some();
  }
}

void RankOutput::close() {
  write_ready();
  standard_output_.give_up();
  tend();
  if (const std::uint64_t lost = standard_output_.lost_lines(); lost > 0) {
    say(fmt::format("{} line{} of standard output {} lost", lost, lost == 1 ? "" : "s", lost == 1 ? "was" : "were"),
        LogLevel::warning);
  }
  write_ready();
}

void RankOutput::say(std::string_view line, LogLevel level) {
  sink(RankStream::standard_error).append_always(launcher_line(line, level, attempt_));
}

void RankOutput::write_log(LogFile& log, std::string_view bytes) {
  while (!bytes.empty() && log.fd) {
    const ssize_t written = ::write(log.fd.get(), bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      say(fmt::format("warning: the log file {} can no longer be written: {}; the job continues without it", log.path,
                      std::strerror(errno)));
      log.fd.reset();
    }
  }
}

}  // namespace lockstep::internal
