// RankOutput merges what the ranks print: whole lines, each with its rank in front, onto the launcher's standard output
// and error; optionally also byte for byte into a file per rank and stream. Keeps each rank's last lines of standard
// error for the report. If LOCKSTEP_LOG_FORMAT says json, each line becomes an object. Not thread-safe;
// never blocks on a reader (log files are written directly).
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/log.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/job/launch/error_text.h"
#include "lockstep/job/launch/line_splitter.h"
#include "lockstep/job/launch/output_sink.h"

namespace lockstep::internal {

enum class RankStream { standard_output, standard_error };

enum class PrefixMode {
  automatic,  // if there is more than one rank
  always,
  never,
};

struct RankOutputOptions {
  PrefixMode prefix = PrefixMode::automatic;
  std::string prefix_template = "[${rank}] ";  // with ${rank} and ${local_rank}
  std::string log_directory{};  // made if missing; files rank_<r>.stdout.log and .stderr.log are replaced
  // Streams by local rank, -1 for all: 1 output, 2 error, 3 both. Those in `redirects` go to log files and are not
  // shown, those in `tee` go there and are shown. Without a choice all are shown, and in log files if there is a
  // directory.
  std::map<int, int> redirects{};
  std::map<int, int> tee{};
  bool chooses_streams = false;
  std::vector<int> shown_ranks{};  // local ranks; empty: all
  // Lines of standard output, and of standard error, with one of these texts are also in filtered_<stream>.log.
  std::array<std::vector<std::string>, 2> duplicated{};
  // Where the output goes. Borrowed.
  int standard_output = 1;
  int standard_error = 2;
  // One of several hosts: log files are opened by the first begin_attempt(). What other hosts print goes to the same
  // place, so even a single rank without a prefix is shown in whole lines.
  bool is_one_of_several = false;
};

class RankOutput {
 public:
  // Throws Error{invalid_argument} if the log directory or a file in it cannot be made.
  RankOutput(const RankOutputOptions& options, int ranks);

  // The ranks begin once more: their log files are in the folder attempt_<number> of the log directory; for 0 in that
  // itself. `first_rank`: what the lowest is called, in prefixes and names of files. Errors as above.
  void begin_attempt(int number, int first_rank = 0);

  void feed(int rank, RankStream stream, std::string_view bytes);
  // The rank's stream has ended: completes a line that lacks its newline.
  void finish(int rank, RankStream stream);
  // To be called at wake_at() and after a sink was written: reports what cannot be written, and stops waiting for it.
  void tend();
  Deadline wake_at() const;
  // Writes what the readers take now. Never blocks.
  void write_ready();
  // The job is over. Writes what the readers take now, drops the rest, and reports what was lost. Never blocks.
  void close();
  // A line of the launcher's own, on standard error: see launcher_line().
  void say(std::string_view line, LogLevel level = LogLevel::info);

  const ErrorText& error_text(int rank) const;
  // Where the stream goes: to be polled and written by the caller.
  OutputSink& sink(RankStream stream);

 private:
  struct LogFile {
    UniqueFd fd;  // closed: there is none
    std::string path;
  };
  struct Stream {
    LineSplitter splitter;
    LogFile log;
    bool is_shown = true;
  };
  struct Rank {
    std::string prefix[2];  // for standard output and error: colour depends on where they lead
    std::array<Stream, 2> streams;
    ErrorText error_text;
  };

  static LogFile open_log(const std::string& folder, const std::string& name);
  void open_logs(const std::string& directory);
  void name_ranks(int first_rank);
  bool is_logged(int rank, RankStream stream) const;
  void show_line(std::string& text, int rank, RankStream stream, std::string_view line);
  bool is_shown(int rank, RankStream stream) const;
  void choose_streams();
  void duplicate(RankStream stream, int rank, std::string_view line);
  void write_log(LogFile& log, std::string_view bytes);
  void show_progress(Rank& rank, RankStream stream);

  const RankOutputOptions options_;
  const PrefixMode prefix_;
  const bool json_;
  int first_rank_ = 0;
  int attempt_ = 0;
  bool verbatim_;  // the job has one rank and no prefix: bytes are passed on unchanged
  OutputSink standard_output_;
  std::unique_ptr<OutputSink> standard_error_;               // null: the same place as standard output
  RankStream progress_stream_ = RankStream::standard_error;  // the one that drew the status line last
  std::vector<Rank> ranks_;
  std::array<LogFile, 2> duplicates_;
};

}  // namespace lockstep::internal
