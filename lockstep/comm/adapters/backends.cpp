#include "lockstep/comm/adapters/backends.h"

#include <optional>

#include "lockstep/base/choose_name.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/adapters/backend_table.h"
#include "lockstep/comm/adapters/carrier_engine.h"

namespace lockstep {

using namespace internal;

namespace {

const BackendEntry* find(std::string_view name) {
  for (const BackendEntry& entry : backend_table()) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

[[noreturn]] void refuse(std::string_view name, std::string_view source) {
  const BackendEntry* entry = find(name);
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{} \"{}\" is not in this build, which has {}{}{}", source, name, fmt::join(backends(), ", "),
                          entry == nullptr ? "" : ": ", entry == nullptr ? "" : entry->remedy));
}

const BackendEntry& entry_of(std::string_view name, std::string_view source) {
  const BackendEntry* entry = find(name);
  if (entry == nullptr || !entry->is_built()) refuse(name, source);
  return *entry;
}

}  // namespace

std::vector<std::string> backends() {
  std::vector<std::string> names{std::string(kNativeBackend)};
  for (const BackendEntry& entry : backend_table()) {
    if (entry.is_built()) names.emplace_back(entry.name);
  }
  return names;
}

bool internal::has_backend(std::string_view name) noexcept {
  const BackendEntry* entry = find(name);
  return name == kNativeBackend || (entry != nullptr && entry->is_built());
}

std::string internal::choose_backend(std::string_view name) {
  std::string_view source = "the backend";
  const auto variable = name.empty() ? EnvironmentReader().text("LOCKSTEP_BACKEND") : std::nullopt;
  if (variable) {
    std::vector<std::string_view> known{kNativeBackend};
    for (const BackendEntry& entry : backend_table()) known.push_back(entry.name);
    name = choose_name("LOCKSTEP_BACKEND", *variable, known);
    source = "the backend that LOCKSTEP_BACKEND names,";
  }
  if (!name.empty() && name != kNativeBackend) entry_of(name, source);
  return std::string(name);
}

std::function<Bootstrap()> internal::bootstrap_of(std::string_view backend) {
  const BackendEntry* entry = find(backend);
  return entry == nullptr || entry->bootstrap == nullptr ? std::function<Bootstrap()>() : entry->bootstrap;
}

bool supports(std::string_view backend, OpKind kind, ReduceOp op, DType dtype) {
  if (backend == kNativeBackend) return supports(kind, op, dtype);
  const BackendEntry& entry = entry_of(backend, "the backend");
  // What a device's communicator cannot do goes through the memory of the host.
  if (entry.make == nullptr) return supports(kind, op, dtype);
  return supports(kind, op, dtype, entry.reductions);
}

bool internal::is_native(std::string_view backend) noexcept {
  if (backend.empty() || backend == kNativeBackend) return true;
  const BackendEntry* entry = find(backend);
  return entry != nullptr && entry->make == nullptr;
}

std::unique_ptr<Engine> internal::make_backend_engine(std::string_view backend, const CarrierSite& site,
                                                      Deadline deadline) {
  const BackendEntry& entry = entry_of(backend, "the backend");
  return std::make_unique<CarrierEngine>(site, entry.make, entry.reductions, deadline);
}

}  // namespace lockstep
