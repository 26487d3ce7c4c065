#include "lockstep/job/launch/tcp_bytes.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "lockstep/base/format.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {
namespace {

constexpr int kMostAnswers = 1 << 14;      // with many sockets each
constexpr int kMostDescriptors = 1 << 16;  // of a process

bool ask(int fd, std::uint8_t family) {
  struct {
    nlmsghdr header;
    inet_diag_req_v2 request;
  } message{};
  message.header.nlmsg_len = sizeof message;
  message.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  message.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  message.request.sdiag_family = family;
  message.request.sdiag_protocol = IPPROTO_TCP;
  message.request.idiag_ext = 1U << (INET_DIAG_INFO - 1);
  message.request.idiag_states = ~std::uint32_t{0};
  return ::send(fd, &message, sizeof message, 0) == static_cast<ssize_t>(sizeof message);
}

// Of the attributes behind a socket.
std::uint64_t bytes_in(const rtattr* attribute, int left) {
  for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left)) {
    tcp_info info{};
    const auto size = static_cast<std::size_t>(RTA_PAYLOAD(attribute));
    if (attribute->rta_type != INET_DIAG_INFO) continue;
    std::memcpy(&info, RTA_DATA(attribute), std::min(size, sizeof info));  // older kernels know less
    return info.tcpi_bytes_received + info.tcpi_bytes_acked;
  }
  return 0;
}

// Whether there is more to come.
bool take(const char* data, std::size_t size, std::unordered_map<std::uint64_t, std::uint64_t>& bytes) {
  const auto* message = reinterpret_cast<const nlmsghdr*>(data);
  for (auto left = static_cast<unsigned>(size); NLMSG_OK(message, left); message = NLMSG_NEXT(message, left)) {
    if (message->nlmsg_type == NLMSG_DONE || message->nlmsg_type == NLMSG_ERROR) return false;
    if (message->nlmsg_type != SOCK_DIAG_BY_FAMILY || message->nlmsg_len < NLMSG_LENGTH(sizeof(inet_diag_msg)))
      continue;
    const auto* socket = static_cast<const inet_diag_msg*>(NLMSG_DATA(message));
    const int attributes = static_cast<int>(message->nlmsg_len - NLMSG_LENGTH(sizeof *socket));
    if (socket->idiag_inode == 0) continue;  // nobody has it open
    bytes[socket->idiag_inode] = bytes_in(reinterpret_cast<const rtattr*>(socket + 1), attributes);
  }
  return true;
}

// Of what a descriptor leads to: "socket:[811]"
std::optional<std::uint64_t> socket_inode(std::string_view text) {
  constexpr std::string_view kSocket = "socket:[";
  std::uint64_t inode = 0;
  if (!text.starts_with(kSocket)) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data() + kSocket.size(), text.data() + text.size(), inode);
  return error == std::errc() ? std::optional(inode) : std::nullopt;
}

template <class Use>
void for_each_socket(int pid, const Use& use) {
  std::error_code error;
  std::filesystem::directory_iterator entry(fmt::format("/proc/{}/fd", pid), error);
  for (int i = 0; !error && entry != std::filesystem::directory_iterator() && i < kMostDescriptors; ++i) {
    std::error_code unread;
    const std::filesystem::path leads_to = std::filesystem::read_symlink(entry->path(), unread);
    if (const auto inode = socket_inode(leads_to.native())) use(*inode);
    entry.increment(error);
  }
}

}  // namespace

TcpBytes TcpBytes::read() {
  TcpBytes result;
  const UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG));
  if (!fd) return result;
  alignas(nlmsghdr) static thread_local char buffer[32 << 10];
  for (const int family : {AF_INET, AF_INET6}) {
    if (!ask(fd.get(), static_cast<std::uint8_t>(family))) continue;
    for (int answer = 0; answer < kMostAnswers; ++answer) {
      const ssize_t got = ::recv(fd.get(), buffer, sizeof buffer, 0);
      if (got <= 0 || !take(buffer, static_cast<std::size_t>(got), result.bytes_)) break;
    }
  }
  return result;
}

void TcpBytes::leave_out(int pid) {
  if (bytes_.empty()) return;
  for_each_socket(pid, [this](std::uint64_t inode) { bytes_.erase(inode); });
}

std::uint64_t TcpBytes::of_process(int pid) const {
  std::uint64_t sum = 0;
  if (bytes_.empty()) return sum;
  for_each_socket(pid, [&](std::uint64_t inode) {
    const auto found = bytes_.find(inode);
    if (found != bytes_.end()) sum += found->second;
  });
  return sum;
}

}  // namespace lockstep::internal
