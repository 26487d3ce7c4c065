// Error is the one exception type of Lockstep: `kind` says how to react, `detail` where it happened.
// A value type: copyable, thread-safe to read.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace lockstep {

enum class ErrorKind {
  invalid_argument,  // the call can never succeed; change the program or its arguments
  timeout,           // a deadline passed while a peer was alive but did not take part
  peer_lost,         // a peer died or left the group
  desync,            // ranks disagree about which collective they are in
  aborted,           // a rank ended the group on purpose; the text quotes why
  corrupt_data,      // a file or a message is damaged
  unauthorized,      // a peer or file failed authentication
  internal,          // the operating system or Lockstep itself failed
};

std::string_view to_string(ErrorKind kind);  // "peer_lost"

// Where an error happened. -1 and empty mean "does not apply".
struct ErrorDetail {
  int rank = -1;
  int peer = -1;
  std::string operation = {};
  std::uint64_t sequence = 0;
  double elapsed_seconds = -1;
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, ErrorDetail detail = {});

  ErrorKind kind() const noexcept { return kind_; }
  const ErrorDetail& detail() const noexcept { return detail_; }

 private:
  ErrorKind kind_;
  ErrorDetail detail_;
};

// An Error{internal} for a failed system call: "<what>: <strerror(saved_errno)>".
Error system_error(const std::string& what, int saved_errno);

}  // namespace lockstep
