#include "lockstep/comm/rendezvous/shared_gpus.h"

#include <dlfcn.h>

#include <exception>
#include <map>
#include <string_view>

#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

// at::cuda::getDeviceProperties(c10::DeviceIndex) of libtorch with CUDA, which a program may have loaded. What it
// returns is a cudaDeviceProp: this begins with a text and the UUID.
constexpr const char* kGetProperties = "_ZN2at4cuda19getDevicePropertiesEa";
struct Properties {
  char name[256];
  unsigned char uuid[16];
};
using GetProperties = const Properties* (*)(signed char device);

std::string text_of(const unsigned char (&uuid)[16]) {
  std::string text;
  for (std::size_t i = 0; i < sizeof uuid; ++i) {
    text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
  }
  return text;
}

}  // namespace

std::string gpu_uuid(int device) {
  const auto get_properties = reinterpret_cast<GetProperties>(::dlsym(RTLD_DEFAULT, kGetProperties));
  if (get_properties == nullptr) return "";
  try {
    const Properties& properties = *get_properties(static_cast<signed char>(device));
    const bool is_part = std::string_view(properties.name, sizeof properties.name).find(" MIG ") != std::string::npos;
    return is_part ? "" : text_of(properties.uuid);
  } catch (const std::exception&) {  // no such device: its user gets the error
    return "";
  }
}

std::vector<std::pair<int, std::string>> shared_gpus(const std::vector<Member>& members) {
  std::map<std::string, std::vector<std::string>> users;
  for (const Member& member : members) users[member.gpu].push_back(to_string(member));
  std::vector<std::pair<int, std::string>> shared;
  for (const Member& member : members) {
    const std::vector<std::string>& names = users[member.gpu];
    if (member.gpu.empty() || names.size() < 2 || names.front() != to_string(member)) continue;
    shared.emplace_back(
        member.rank, fmt::format("{} use the same GPU, {}: they share its memory and its time, and NCCL cannot connect "
                                 "them; local_device() gives each rank of a host its own GPU",
                                 fmt::join(names, " and "), member.gpu));
  }
  return shared;
}

}  // namespace lockstep::internal
