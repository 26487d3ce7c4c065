// An HttpConnection is one request of a client and its answer, by HTTP/1.1 without bodies of requests. For the poll
// loop of a server; never blocks, and never throws for what the client does.
#pragma once

#include <poll.h>

#include <functional>
#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::tools {

struct HttpAnswer {
  int code = 200;
  std::string body = {};
  std::string type = "text/plain; charset=utf-8";
};

class HttpConnection {
 public:
  static constexpr std::size_t kMostRequestBytes = 8192;
  static constexpr Duration kLimit = std::chrono::seconds(5);  // for the whole of it

  // `answer`: of a GET of this path, without what follows '?'.
  using Answer = std::function<HttpAnswer(std::string_view path)>;
  explicit HttpConnection(internal::UniqueFd fd) : fd_(std::move(fd)), until_(Deadline::after(kLimit)) {}

  pollfd wanted() const;
  Deadline until() const { return until_; }
  void tend(const Answer& answer);
  bool has_asked() const { return phase_ != Phase::reads; }  // a whole request has come
  bool is_over() const { return phase_ == Phase::over || until_.expired(); }

 private:
  // Closed with unread bytes, a connection would be reset, and the answer lost: what still comes is thrown away.
  enum class Phase { reads, writes, drains, over };

  void read(const Answer& answer);
  void write();
  void drain();

  internal::UniqueFd fd_;
  Deadline until_;
  Phase phase_ = Phase::reads;
  std::string request_;
  std::string unsent_;
};

// The whole answer to what has come; empty if more of the request is to come.
std::string answer_to(std::string_view request, const HttpConnection::Answer& answer);

}  // namespace lockstep::tools
