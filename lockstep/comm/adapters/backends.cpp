#include "lockstep/comm/adapters/backends.h"

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
  std::string known;
  for (const std::string& each : backends()) known += (known.empty() ? "" : ", ") + each;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{} \"{}\" is not in this build, which has {}", source, name, known));
}

}  // namespace

std::vector<std::string> backends() {
  std::vector<std::string> names{std::string(kNativeBackend)};
  for (const BackendEntry& entry : backend_table()) names.emplace_back(entry.name);
  return names;
}

bool internal::has_backend(std::string_view name) noexcept { return name == kNativeBackend || find(name) != nullptr; }

std::string internal::choose_backend(std::string_view name) {
  const bool by_environment = name.empty();
  if (by_environment) name = EnvironmentReader().choice("LOCKSTEP_BACKEND").value_or(kNativeBackend);
  if (!has_backend(name)) {
    refuse(name, by_environment ? "the backend that LOCKSTEP_BACKEND names," : "the backend");
  }
  return std::string(name);
}

std::function<Bootstrap()> internal::bootstrap_of(std::string_view backend) {
  const BackendEntry* entry = find(backend);
  return entry == nullptr || entry->bootstrap == nullptr ? std::function<Bootstrap()>() : entry->bootstrap;
}

bool supports(std::string_view backend, OpKind kind, ReduceOp op, DType dtype) {
  if (backend == kNativeBackend) return supports(kind, op, dtype);
  const BackendEntry* entry = find(backend);
  if (entry == nullptr) refuse(backend, "the backend");
  return supports(kind, op, dtype, entry->reductions);
}

std::unique_ptr<Engine> internal::make_backend_engine(std::string_view backend, const CarrierSite& site,
                                                      Deadline deadline) {
  const BackendEntry* entry = find(backend);
  if (entry == nullptr) refuse(backend, "the backend");
  return std::make_unique<CarrierEngine>(site, entry->make, entry->reductions, deadline);
}

}  // namespace lockstep
