#include "tools/metrics/http_connection.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "lockstep/base/format.h"

namespace lockstep::tools {

using namespace internal;

namespace {

std::string_view reason_of(int code) {
  switch (code) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    default: return "Service Unavailable";
  }
}

std::string text_of(const HttpAnswer& answer, bool with_body) {
  const std::string head = fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\nConnection: "
      "close\r\n{}\r\n",
      answer.code, reason_of(answer.code), answer.type, answer.body.size(),
      answer.code == 405 ? "Allow: GET, HEAD\r\n" : "");
  return with_body ? head + answer.body : head;
}

bool is_again(ssize_t count) { return count < 0 && (errno == EAGAIN || errno == EINTR); }

}  // namespace

std::string answer_to(std::string_view request, const HttpConnection::Answer& answer) {
  if (request.find("\r\n\r\n") == std::string_view::npos) {
    if (request.size() < HttpConnection::kMostRequestBytes) return {};
    return text_of({.code = 400, .body = "the request is too long\n"}, true);
  }
  const std::string_view line = request.substr(0, request.find("\r\n"));
  const std::size_t first = line.find(' ');
  const std::size_t second = line.rfind(' ');
  if (first == std::string_view::npos || second == first || !line.substr(second + 1).starts_with("HTTP/1.")) {
    return text_of({.code = 400, .body = "this is not an HTTP/1.1 request\n"}, true);
  }
  const std::string_view method = line.substr(0, first);
  std::string_view path = line.substr(first + 1, second - first - 1);
  path = path.substr(0, path.find('?'));
  if (method == "GET" || method == "HEAD") return text_of(answer(path), method == "GET");
  return text_of({.code = 405, .body = "use GET\n"}, true);
}

pollfd HttpConnection::wanted() const {
  const short events = phase_ == Phase::writes ? POLLOUT : POLLIN;
  return {fd_.get(), events, 0};
}

void HttpConnection::tend(const Answer& answer) {
  if (phase_ == Phase::reads) read(answer);
  if (phase_ == Phase::writes) write();
  if (phase_ == Phase::drains) drain();
}

void HttpConnection::read(const Answer& answer) {
  std::array<char, 2048> bytes{};
  const ssize_t got = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
  if (is_again(got)) return;
  if (got <= 0) {
    phase_ = Phase::over;
    return;
  }
  request_.append(bytes.data(), static_cast<std::size_t>(got));
  unsent_ = answer_to(request_, answer);
  if (!unsent_.empty()) phase_ = Phase::writes;
}

void HttpConnection::write() {
  const ssize_t sent = ::send(fd_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
  if (is_again(sent)) return;
  if (sent < 0) {
    phase_ = Phase::over;
    return;
  }
  unsent_.erase(0, static_cast<std::size_t>(sent));
  if (!unsent_.empty()) return;
  ::shutdown(fd_.get(), SHUT_WR);
  phase_ = Phase::drains;
}

void HttpConnection::drain() {
  std::array<char, 2048> bytes{};
  const ssize_t got = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
  if (got <= 0 && !is_again(got)) phase_ = Phase::over;
}

}  // namespace lockstep::tools
