#include "lockstep/rendezvous/join_plan.h"

#include <charconv>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/rendezvous/url.h"

namespace lockstep {
namespace {

Error invalid(const std::string& text) { return Error(ErrorKind::invalid_argument, text); }

template <typename Number>
Number parse_number(std::string_view text, std::string_view what) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  if (result.ec != std::errc() || result.ptr != end)
    throw invalid(fmt::format("{} is '{}', not an integer", what, text));
  return number;
}

class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  // An empty variable counts as not set, as shell scripts mean it.
  std::optional<std::string> text(const char* name) const {
    const char* value = environment_ ? environment_(name) : nullptr;
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  }
  std::optional<int> number(const char* name) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    return parse_number<int>(*value, name);
  }
  bool any_of(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (text(name)) return true;
    }
    return false;
  }

 private:
  const Environment& environment_;
};

// The one value that argument and URL give, if any; both is an error.
std::optional<int> argument_or_url(const std::optional<int>& argument, const Url& url, const char* name) {
  const auto found = url.query.find(name);
  if (found == url.query.end()) return argument;
  if (argument) {
    throw invalid(fmt::format("{} is given twice, as {} in init_method and as {} in the arguments; give it once", name,
                              found->second, *argument));
  }
  return parse_number<int>(found->second, fmt::format("{} in init_method", name));
}

void check_numbers(const JoinPlan& plan) {
  if (plan.size < 1) throw invalid(fmt::format("world size {} is not positive", plan.size));
  if (plan.rank < 0 || plan.rank >= plan.size) {
    throw invalid(fmt::format("rank {} is outside the legal interval [0, {}] of world size {}", plan.rank,
                              plan.size - 1, plan.size));
  }
  const int local_size = plan.local_size.value_or(plan.size);
  if (local_size < 1 || local_size > plan.size) {
    throw invalid(fmt::format("LOCAL_WORLD_SIZE {} does not fit world size {}", local_size, plan.size));
  }
  if (plan.local_rank && (*plan.local_rank < 0 || *plan.local_rank >= local_size)) {
    throw invalid(fmt::format("LOCAL_RANK {} is outside the legal interval [0, {}]", *plan.local_rank, local_size - 1));
  }
  if (plan.node_rank && *plan.node_rank < 0) throw invalid(fmt::format("GROUP_RANK {} is negative", *plan.node_rank));
}

void read_job(const Reader& reader, JoinPlan& plan) {
  const auto first_of = [&](const char* own, const char* torch, const char* otherwise) {
    if (auto value = reader.text(own)) return *value;
    return reader.text(torch).value_or(otherwise);
  };
  plan.job_id = first_of("LOCKSTEP_JOB_ID", "TORCHELASTIC_RUN_ID", "default");
  const char* source = reader.text("LOCKSTEP_GENERATION") ? "LOCKSTEP_GENERATION" : "TORCHELASTIC_RESTART_COUNT";
  plan.generation =
      parse_number<std::uint64_t>(first_of("LOCKSTEP_GENERATION", "TORCHELASTIC_RESTART_COUNT", "0"), source);
  plan.local_rank = reader.number("LOCAL_RANK");
  plan.local_size = reader.number("LOCAL_WORLD_SIZE");
  plan.node_rank = reader.number("GROUP_RANK");
  plan.token_fd = reader.number("LOCKSTEP_TOKEN_FD");
  plan.token_file = reader.text("LOCKSTEP_TOKEN_FILE").value_or("");
  plan.address = reader.text("LOCKSTEP_ADDRESS").value_or("");
  plan.interfaces = reader.text("LOCKSTEP_IFNAME").value_or("");
  plan.node_label = reader.text("LOCKSTEP_NODE").value_or("");
}

void plan_given_store(const JoinOptions& options, JoinPlan& plan) {
  if (!options.init_method.empty()) {
    throw invalid(fmt::format("both a store and init_method '{}' are given; give one of them", options.init_method));
  }
  std::vector<const char*> missing;
  if (!options.rank) missing.push_back("rank");
  if (!options.world_size) missing.push_back("world_size");
  if (!missing.empty()) throw invalid(fmt::format("a store is given without {}", fmt::join(missing, " and ")));
  plan.meeting = Meeting::given_store;
  plan.rank = *options.rank;
  plan.size = *options.world_size;
  plan.source = "arguments store, rank, world_size";
}

// Rank and size from arguments, URL or environment, in this order.
void read_rank_and_size(const JoinOptions& options, const Url& url, const Reader& reader,
                        std::vector<const char*>& missing, JoinPlan& plan) {
  auto rank = argument_or_url(options.rank, url, "rank");
  auto size = argument_or_url(options.world_size, url, "world_size");
  if (!rank) rank = reader.number("RANK");
  if (!size) size = reader.number("WORLD_SIZE");
  if (!rank) missing.push_back("RANK");
  if (!size) missing.push_back("WORLD_SIZE");
  plan.rank = rank.value_or(0);
  plan.size = size.value_or(1);
}

void plan_env(const JoinOptions& options, const Url& url, const Reader& reader, JoinPlan& plan) {
  if (!url.target.empty())
    throw invalid(fmt::format("init_method '{}': nothing may follow env://", options.init_method));
  const bool anything = options.rank || options.world_size || !url.query.empty() ||
                        reader.any_of({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCKSTEP_STORE"});
  if (!anything) {
    plan.source = "alone";
    return;
  }
  std::vector<const char*> missing;
  read_rank_and_size(options, url, reader, missing, plan);
  plan.source = "environment RANK, WORLD_SIZE";
  if (const auto store = reader.text("LOCKSTEP_STORE")) {
    plan.meeting = Meeting::launcher;
    plan.endpoint = parse_endpoint(*store);
    plan.source += ", LOCKSTEP_STORE";
  } else if (plan.size > 1 || !missing.empty()) {
    const auto address = reader.text("MASTER_ADDR");
    const auto port = reader.text("MASTER_PORT");
    if (!address) missing.push_back("MASTER_ADDR");
    if (!port) missing.push_back("MASTER_PORT");
    plan.meeting = Meeting::rank_zero;
    if (address && port) plan.endpoint = {*address, parse_port(*port, "MASTER_PORT")};
    plan.source += ", MASTER_ADDR, MASTER_PORT";
  }
  if (!missing.empty()) {
    throw invalid(
        fmt::format("the environment lacks {}; start the program with a launcher (lockstep run, torchrun), or set "
                    "{} in every process",
                    fmt::join(missing, ", "), missing.size() == 1 ? "it" : "them"));
  }
  if (plan.meeting == Meeting::rank_zero && reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    if (plan.endpoint.port == 65535) throw invalid("MASTER_PORT is 65535, but the port above it is needed as well");
    ++plan.endpoint.port;
  }
}

void plan_url(const JoinOptions& options, const Url& url, const Reader& reader, JoinPlan& plan) {
  std::vector<const char*> missing;
  read_rank_and_size(options, url, reader, missing, plan);
  if (!missing.empty()) {
    throw invalid(
        fmt::format("init_method '{}' needs rank and world_size, as in '?rank=1&world_size=4', as arguments or in "
                    "the environment; missing: {}",
                    options.init_method, fmt::join(missing, ", ")));
  }
  plan.source = options.init_method;
  if (url.scheme == "tcp") {
    plan.meeting = Meeting::rank_zero;
    plan.endpoint = parse_endpoint(url.target);
    return;
  }
  if (url.target.empty() || url.target.front() != '/') {
    throw invalid(
        fmt::format("init_method '{}': a file URL has three slashes and an absolute path, as in file:///tmp/meet",
                    options.init_method));
  }
  plan.meeting = Meeting::file;
  plan.path = url.target;
}

}  // namespace

JoinPlan plan_join(const JoinOptions& options, const Environment& environment) {
  const Reader reader(environment);
  JoinPlan plan;
  read_job(reader, plan);
  if (options.store) {
    plan_given_store(options, plan);
  } else {
    const Url url = parse_url(options.init_method.empty() ? "env://" : options.init_method);
    url.scheme == "env" ? plan_env(options, url, reader, plan) : plan_url(options, url, reader, plan);
  }
  check_numbers(plan);
  if (plan.meeting == Meeting::rank_zero) {
    if (plan.size == 1) {
      plan.meeting = Meeting::alone;
    } else if (plan.endpoint.port == 0) {
      throw invalid(fmt::format("{}: with port 0 the other ranks cannot find rank 0; choose a port", plan.source));
    }
    const std::string bind = reader.text("LOCKSTEP_BIND").value_or(plan.endpoint.host);
    plan.bind_host = bind == "any" ? "0.0.0.0" : bind;
  }
  return plan;
}

}  // namespace lockstep
