#include "lockstep/base/descriptor_limit.h"

#include <algorithm>
#include <cerrno>

#include "lockstep/base/error.h"

namespace lockstep::internal {
namespace {

constexpr rlim_t kMost = rlim_t{1} << 20;

}  // namespace

rlimit raise_descriptor_limit() {
  rlimit before{};
  if (::getrlimit(RLIMIT_NOFILE, &before) != 0) throw system_error("reading the limit on descriptors", errno);
  const rlimit raised{.rlim_cur = std::min(before.rlim_max, kMost), .rlim_max = before.rlim_max};
  if (raised.rlim_cur > before.rlim_cur && ::setrlimit(RLIMIT_NOFILE, &raised) != 0) {
    throw system_error("raising the limit on descriptors", errno);
  }
  return before;
}

}  // namespace lockstep::internal
