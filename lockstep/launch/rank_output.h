// RankOutput merges what the ranks print: whole lines, each with its rank in front, onto the launcher's standard output
// and error; optionally also byte for byte into a file per rank and stream. Keeps each rank's last lines of standard
// error for the report. Not thread-safe; only flush() blocks on a reader (log files are written directly).
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/launch/error_text.h"
#include "lockstep/launch/line_splitter.h"
#include "lockstep/launch/output_sink.h"

namespace lockstep::internal {

enum class RankStream { standard_output, standard_error };

enum class PrefixMode {
  automatic,  // if there is more than one rank
  always,
  never,
};

struct RankOutputOptions {
  PrefixMode prefix = PrefixMode::automatic;
  std::string log_directory{};  // made if missing; files rank_<r>.stdout.log and .stderr.log are replaced
  // Where the output goes. Borrowed.
  int standard_output = 1;
  int standard_error = 2;
  bool begins_later = false;  // log files are opened by the first begin_attempt()
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
  // The job is over. Writes what is queued, and reports what was lost; returns when all is written, the reader has
  // gone, or the deadline passes. Never throws timeout.
  void flush(Deadline deadline);
  // A line of the launcher's own, on standard error.
  void say(std::string_view line);

  const ErrorText& error_text(int rank) const;
  // Where the stream goes: to be polled and written by the caller.
  OutputSink& sink(RankStream stream);

 private:
  struct Stream {
    LineSplitter splitter;
    UniqueFd log;
  };
  struct Rank {
    std::string prefix[2];  // for standard output and error: colour depends on where they lead
    std::array<Stream, 2> streams;
    ErrorText error_text;
  };

  void open_logs(const std::string& directory);
  void name_ranks(int first_rank);
  void write_log(Stream& stream, std::string_view bytes);
  void show_progress(Rank& rank, RankStream stream);
  void write_all(OutputSink& target, Deadline deadline);

  const std::string log_directory_;
  const PrefixMode prefix_;
  int first_rank_ = 0;
  bool verbatim_;  // one rank and no prefix: bytes are passed on unchanged
  OutputSink standard_output_;
  std::unique_ptr<OutputSink> standard_error_;               // null: the same place as standard output
  RankStream progress_stream_ = RankStream::standard_error;  // the one that drew the status line last
  std::vector<Rank> ranks_;
};

}  // namespace lockstep::internal
