// How ProcessGroup exchanges objects: as bytes, whose lengths may differ. codec -> bytes -> tensors -> group.
// Collective and blocking; errors as in objects.h.
#pragma once

#include <c10/core/DeviceGuard.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/group/group_handle.h"
#include "lockstep/comm/group/objects.h"
#include "lockstep/comm/group/shape_message.h"

namespace lockstep {

class ProcessGroup;

namespace internal {

// Other ranks' errors quote what a codec throws.
template <class T>
std::string encoded(const GroupHandle& group, const T& object) try {
  return ObjectCodec<T>::encode(object);
} catch (...) {
  group.note_exception("encoding of an object");
  throw;
}

template <class T>
T decoded(const GroupHandle& group, std::string_view bytes) {
  const c10::OptionalDeviceGuard guard(group.device());
  return ObjectCodec<T>::decode(bytes);
}

template <class T>
std::vector<T> all_decoded(const GroupHandle& group, const std::vector<std::string>& all) {
  std::vector<T> objects;
  for (const std::string& bytes : all) objects.push_back(decoded<T>(group, bytes));
  return objects;
}

// The bytes of all ranks, in rank order.
std::vector<std::string> all_gather_bytes(const ProcessGroup& group, const std::string& mine,
                                          const CallOptions& options = {});
// The same on root; empty elsewhere.
std::vector<std::string> gather_bytes_to(const ProcessGroup& group, const std::string& mine, int root,
                                         std::size_t most = kMostObjectBytes, const CallOptions& options = {});
std::string broadcast_bytes(const ProcessGroup& group, const std::string& mine, int root,
                            const CallOptions& options = {});
// `all`: on root, one for each rank.
std::string scatter_bytes_from(const ProcessGroup& group, const std::vector<std::string>& all, int root,
                               const CallOptions& options = {});

}  // namespace internal

}  // namespace lockstep
