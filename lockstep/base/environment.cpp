#include "lockstep/base/environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "lockstep/base/choose_name.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/nearest_name.h"

namespace lockstep::internal {
namespace {

constexpr std::string_view kPrefix = "LOCKSTEP_";
constexpr std::array<std::string_view, 2> kForeign{"LOCKSTEP_TEST_", "LOCKSTEP_BENCH_"};
constexpr std::size_t kFarthestMeant = 3;  // changed letters in a name that is still taken for a typing mistake

struct Values {
  std::string_view text;  // as the documentation has them; of a choice all of them, "on, off"
  std::int64_t least = INT64_MIN, most = INT64_MAX;
};
constexpr Values text(std::string_view what) { return {what}; }
constexpr Values choice(std::string_view names) { return {names}; }
constexpr Values number(std::int64_t least, std::int64_t most) { return {"", least, most}; }
constexpr Values duration(std::int64_t least_s, std::int64_t most_s) { return {"", least_s, most_s}; }

struct Variable {
  std::string_view name;
  Values values;
  std::string_view fallback;  // the default, for the documentation
};

// Lockstep's own. Sorted.
constexpr Variable kVariables[] = {
    {"LOCKSTEP_ADDRESS", text("an address"), "found by probing"},
    {"LOCKSTEP_BACKEND", text("a backend"), "native"},
    {"LOCKSTEP_BIND", text("an address, or any"), "MASTER_ADDR"},
    {"LOCKSTEP_CHECKSUMS", choice("on, off"), "on"},
    {"LOCKSTEP_CONNECTIONS", number(1, 64), "1"},
    {"LOCKSTEP_FLIGHT", text("a folder"), ""},
    {"LOCKSTEP_FLIGHT_FD", number(0, INT32_MAX), ""},
    {"LOCKSTEP_GENERATION", number(0, INT64_MAX), "0"},
    {"LOCKSTEP_HANG_CAP_SECONDS", number(1, INT32_MAX), "1800"},
    {"LOCKSTEP_HANG_SECONDS", number(1, INT32_MAX), "60"},
    {"LOCKSTEP_HOST_TIMEOUT", duration(2, 600), "3"},
    {"LOCKSTEP_IFNAME", text("eth0, or eth0,eth1"), "all that are up"},
    {"LOCKSTEP_JOB_ID", text("any text"), "from the launcher"},
    {"LOCKSTEP_JOINED_FD", number(0, INT32_MAX), ""},
    {"LOCKSTEP_LAUNCHER", choice("none, env, slurm, openmpi, mpich, flux, pmix, kubernetes"), ""},
    {"LOCKSTEP_LOG", choice("debug, info, warning, warn, error, off"), "info"},
    {"LOCKSTEP_LOG_FORMAT", choice("text, json"), "text"},
    {"LOCKSTEP_NODE", text("any text"), ""},
    {"LOCKSTEP_OUTER_JOBS", text("names"), ""},
    {"LOCKSTEP_RDZV_ENDPOINT", text("host:port"), ""},
    {"LOCKSTEP_RESTART_REASON", text("any text"), ""},
    {"LOCKSTEP_SPAWN", text("a name"), ""},
    {"LOCKSTEP_SPAWN_REPORT", number(0, INT32_MAX), ""},
    {"LOCKSTEP_STORE", text("host:port"), ""},
    {"LOCKSTEP_TERMINAL", text("1"), ""},
    {"LOCKSTEP_TOKEN_FD", number(0, INT32_MAX), ""},
    {"LOCKSTEP_TOKEN_FILE", text("a path"), "~/.lockstep/token"},
    {"LOCKSTEP_TRANSPORT", text("a transport"), "automatic"},
};
static_assert(std::ranges::is_sorted(kVariables, {}, &Variable::name));

// Those of others: launchers, the system, and libraries on whose results they have an effect.
constexpr std::string_view kOfOthers =
    " RANK WORLD_SIZE MASTER_ADDR MASTER_PORT LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK "
    " TORCHELASTIC_ERROR_FILE TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_USE_AGENT_STORE "
    " PET_DUPLICATE_STDERR_FILTERS PET_DUPLICATE_STDOUT_FILTERS PET_EVENT_LOG_HANDLER PET_LOCAL_ADDR "
    " PET_LOCAL_RANKS_FILTER PET_LOG_DIR PET_MASTER_ADDR PET_MASTER_PORT PET_MAX_RESTARTS PET_MODULE "
    " PET_MONITOR_INTERVAL PET_NNODES PET_NODE_RANK PET_NO_PYTHON PET_NPROC_PER_NODE PET_RDZV_BACKEND PET_RDZV_CONF "
    " PET_RDZV_ENDPOINT PET_RDZV_ID PET_REDIRECTS PET_ROLE PET_RUN_PATH PET_SHUTDOWN_TIMEOUT PET_SIGNALS_TO_HANDLE "
    " PET_STANDALONE PET_START_METHOD PET_TEE PET_VIRTUAL_LOCAL_RANK "
    " PYTHON_EXEC TORCH_ELASTIC_SHUTDOWN_TIMEOUT TORCH_NCCL_ASYNC_ERROR_HANDLING CUDA_VISIBLE_DEVICES "
    " TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE "
    " SLURM_JOBID SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_LOCALID SLURM_NODEID SLURM_NODELIST SLURM_NTASKS SLURM_PROCID "
    " SLURM_RESTART_COUNT SLURM_STEP_ID SLURM_STEP_NODELIST SLURM_STEP_NUM_NODES SLURM_STEP_NUM_TASKS "
    " SLURM_STEP_TASKS_PER_NODE "
    " OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE "
    " OMPI_MCA_ess_base_jobid OMPI_MCA_orte_hnp_uri PMIX_NAMESPACE PMIX_RANK "
    " PMI_FD PMI_RANK PMI_SIZE MPI_LOCALNRANKS MPI_LOCALRANKID "
    " FLUX_JOB_ID FLUX_JOB_NNODES FLUX_JOB_SIZE FLUX_TASK_LOCAL_ID FLUX_TASK_RANK JOB_COMPLETION_INDEX "
    " NODE_RANK HOME XDG_RUNTIME_DIR XDG_STATE_HOME TMPDIR PATH TERM NO_COLOR PYTHONUNBUFFERED "
    " OMP_NUM_THREADS OMP_DYNAMIC OMP_THREAD_LIMIT MKL_CBWR MKL_DEBUG_CPU_TYPE MKL_DYNAMIC MKL_ENABLE_INSTRUCTIONS "
    " DNNL_CPU_ISA_HINTS DNNL_DEFAULT_FPMATH_MODE DNNL_MAX_CPU_ISA ONEDNN_CPU_ISA_HINTS ONEDNN_DEFAULT_FPMATH_MODE "
    " ONEDNN_MAX_CPU_ISA ATEN_CPU_CAPABILITY TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_MKLDNN_MATMUL_MIN_DIM "
    "NVIDIA_TF32_OVERRIDE CUBLAS_WORKSPACE_CONFIG NCCL_HOSTID ";

const Variable* find(std::string_view name) {
  const auto* found = std::ranges::lower_bound(kVariables, name, {}, &Variable::name);
  return found != std::end(kVariables) && found->name == name ? found : nullptr;
}

// "a, b, c" -> the three
std::vector<std::string_view> names_in(std::string_view list) {
  std::vector<std::string_view> names;
  for (std::size_t start = 0; start < list.size();) {
    const std::size_t end = std::min(list.find(", ", start), list.size());
    names.push_back(list.substr(start, end - start));
    start = end + 2;
  }
  return names;
}

std::string describe_range(std::int64_t least, std::int64_t most, bool is_above) {
  if (is_above || most < std::numeric_limits<int>::max()) return fmt::format("; it can be {} to {}", least, most);
  return least < 0 ? ", not an integer" : fmt::format(", not an integer of at least {}", least);
}

std::string describe_unknown(std::string_view name) {
  std::vector<std::string> names;
  for (const Variable& each : kVariables) names.emplace_back(each.name);
  const auto nearest = nearest_name(name, names, kFarthestMeant);
  return fmt::format(
      "{} is set, but Lockstep has no such variable, so it has no effect; {}", name,
      nearest ? fmt::format("did you mean {}?", *nearest) : fmt::format("known variables: {}", fmt::join(names, ", ")));
}

}  // namespace

const char* process_environment(const char* name) { return std::getenv(name); }

std::optional<std::string> EnvironmentReader::text(const char* name) const {
  if (find(name) == nullptr && kOfOthers.find(fmt::format(" {} ", name)) == std::string_view::npos) {
    throw Error(ErrorKind::internal, fmt::format("{} is missing from the table of variables", name));
  }
  const char* value = environment_ ? environment_(name) : nullptr;
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

bool EnvironmentReader::has_any_of(std::initializer_list<const char*> names) const {
  return std::ranges::any_of(names, [this](const char* name) { return has(name); });
}

std::optional<std::string> EnvironmentReader::first_of(std::initializer_list<const char*> names) const {
  for (const char* name : names) {
    if (auto value = text(name)) return value;
  }
  return std::nullopt;
}

std::optional<std::string_view> EnvironmentReader::choice(const char* name) const {
  const auto value = text(name);
  if (!value) return std::nullopt;
  return choose_name(name, *value, names_in(find(name)->values.text));
}

std::optional<std::int64_t> EnvironmentReader::integer(const char* name, std::int64_t least, std::int64_t most) const {
  const auto value = text(name);
  if (!value) return std::nullopt;
  const Variable* own = find(name);
  const Values limits = own != nullptr ? own->values : Values{};
  return parse_integer(name, *value, std::max(least, limits.least), std::min(most, limits.most));
}

std::optional<std::chrono::milliseconds> EnvironmentReader::duration(const char* name, std::string_view written) const {
  const auto value = text(name);
  if (!value) return std::nullopt;
  const Values limits = find(name)->values;
  double number = 0;
  const char* end = value->data() + value->size();
  const auto result = std::from_chars(value->data(), end, number, std::chars_format::fixed);
  const bool is_number = result.ec == std::errc() && result.ptr == end;
  if (is_number && number >= static_cast<double>(limits.least) && number <= static_cast<double>(limits.most)) {
    return std::chrono::round<std::chrono::milliseconds>(std::chrono::duration<double>(number));
  }
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{} is '{}'; it can be {} to {} seconds", written.empty() ? name : written, *value,
                          limits.least, limits.most));
}

std::int64_t parse_integer(std::string_view name, std::string_view text, std::int64_t least, std::int64_t most) {
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  const bool is_integer = result.ec != std::errc::invalid_argument && result.ptr == end;
  const bool is_known = result.ec == std::errc();
  if (is_integer && is_known && number >= least && number <= most) return number;
  const bool is_above = is_integer && (is_known ? number > most : !text.starts_with('-'));
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{} is '{}'{}", name, text, describe_range(least, most, is_above)));
}

std::vector<std::string> describe_unknown_variables(const char* const* environment) {
  std::vector<std::string> sentences;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry(*environment);
    const std::string_view name = entry.substr(0, entry.find('='));
    if (!name.starts_with(kPrefix) || find(name) != nullptr) continue;
    if (std::ranges::any_of(kForeign, [&](std::string_view prefix) { return name.starts_with(prefix); })) continue;
    sentences.push_back(describe_unknown(name));
  }
  std::ranges::sort(sentences);
  return sentences;
}

void warn_of_unknown_variables() {
  static std::atomic_flag done;
  if (done.test_and_set()) return;
  for (const std::string& sentence : describe_unknown_variables(::environ)) log_warning(sentence);
}

}  // namespace lockstep::internal
