#include "lockstep/comm/rendezvous/join_plan.h"

#include <map>

#include "lockstep/comm/rendezvous/launchers.h"
#include "lockstep/comm/store/memory_store.h"
#include "tests/support/expect_error.h"
#include "tests/unit/rendezvous/planned.h"

namespace join_plan_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

JoinOptions url(const std::string& text) {
  JoinOptions options;
  options.init_method = text;
  return options;
}

const Variables kEnvironment{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};

}  // namespace

TEST_CASE("with nothing set: alone, as job default, generation 0") {
  const JoinPlan alone = plan({});
  CHECK(alone.rendezvous == Meeting::alone);
  CHECK(alone.rank == 0);
  CHECK(alone.size == 1);
  CHECK(alone.source == "alone");
  CHECK(alone.job_id == "default");
  CHECK(alone.generation == 0);
  CHECK(plan({{"RANK", ""}, {"WORLD_SIZE", ""}}).source == "alone");
  CHECK(plan({}, url("env://")).source == "alone");
}

// feature: A-05
TEST_CASE("the four variables, each named when it is missing") {
  const JoinPlan complete = plan(kEnvironment);
  CHECK(complete.rendezvous == Meeting::rank_zero);
  CHECK(complete.rank == 1);
  CHECK(complete.size == 4);
  CHECK(complete.endpoint == Endpoint{"node0", 29500});
  CHECK(complete.bind_host == "node0");
  CHECK(complete.source == "environment RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT");
  for (const char* address : {"::1", "[::1]"}) {
    Variables variables = kEnvironment;
    variables["MASTER_ADDR"] = address;
    CHECK(plan(variables).endpoint == Endpoint{"::1", 29500});
    CHECK(plan(variables).bind_host == "::1");
  }
  for (const auto& [missing, value] : kEnvironment) {
    Variables variables = kEnvironment;
    variables.erase(missing);
    const Error error = plan_error(variables);
    CHECK_ERROR(error, ErrorKind::invalid_argument, "lacks " + missing + ";", "lockstep run");
  }
  CHECK_ERROR(plan_error({{"RANK", "0"}}), ErrorKind::invalid_argument, "lacks WORLD_SIZE, MASTER_ADDR, MASTER_PORT;");
}

TEST_CASE("optional variables, and torchrun's") {
  Variables variables = kEnvironment;
  variables.insert({{"LOCAL_RANK", "1"},
                    {"LOCAL_WORLD_SIZE", "2"},
                    {"GROUP_RANK", "0"},
                    {"TORCHELASTIC_RUN_ID", "run7"},
                    {"TORCHELASTIC_RESTART_COUNT", "3"},
                    {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  const JoinPlan torchrun = plan(variables);
  CHECK(torchrun.local_rank == 1);
  CHECK(torchrun.local_size == 2);
  CHECK(torchrun.node_rank == 0);
  CHECK(torchrun.job_id == "run7");
  CHECK(torchrun.generation == 3);
  CHECK(torchrun.endpoint.port == 29501);
  variables["LOCKSTEP_JOB_ID"] = "mine";
  variables["LOCKSTEP_GENERATION"] = "5";
  CHECK(plan(variables).job_id == "mine");
  CHECK(plan(variables).generation == 5);
  // A port that the system may give to anybody says nothing about the one above it.
  for (const char* port : {"32768", "45693", "65535"}) {
    variables["MASTER_PORT"] = port;
    CHECK(plan(variables).endpoint.port == port_of_job("torchrun " + std::string(port)));
  }
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  CHECK(plan(variables).endpoint.port == 65535);
}

TEST_CASE("a launcher's store replaces MASTER_ADDR and MASTER_PORT, unless a URL is given") {
  Variables variables{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCKSTEP_STORE", "127.0.0.1:4000"}};
  CHECK(plan(variables).rendezvous == Meeting::launcher);
  CHECK(plan(variables).endpoint == Endpoint{"127.0.0.1", 4000});
  CHECK(plan(variables, url("tcp://other:1")).rendezvous == Meeting::rank_zero);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  CHECK(plan(variables).endpoint.port == 4000);
  variables.erase("WORLD_SIZE");
  CHECK_ERROR(plan_error(variables), ErrorKind::invalid_argument, "lacks WORLD_SIZE;");
}

// feature: A-06
TEST_CASE("malformed and contradictory numbers are quoted") {
  const auto with = [](const char* name, const char* value) {
    Variables variables = kEnvironment;
    variables[name] = value;
    return plan_error(variables);
  };
  CHECK_ERROR(with("RANK", "one"), ErrorKind::invalid_argument, "RANK is 'one'");
  CHECK_ERROR(with("WORLD_SIZE", "4x"), ErrorKind::invalid_argument, "WORLD_SIZE is '4x'");
  CHECK_ERROR(with("MASTER_PORT", "http"), ErrorKind::invalid_argument, "MASTER_PORT is 'http'");
  CHECK_ERROR(with("MASTER_PORT", "0"), ErrorKind::invalid_argument, "port 0");
  CHECK_ERROR(with("LOCAL_RANK", "4"), ErrorKind::invalid_argument, "LOCAL_RANK 4", "[0, 3]");
  CHECK_ERROR(with("LOCAL_WORLD_SIZE", "5"), ErrorKind::invalid_argument, "LOCAL_WORLD_SIZE is 5");
  CHECK_ERROR(with("LOCKSTEP_GENERATION", "-1"), ErrorKind::invalid_argument, "LOCKSTEP_GENERATION is '-1'");
  CHECK_ERROR(with("WORLD_SIZE", "0"), ErrorKind::invalid_argument, "world size is 0");
  for (const char* rank : {"-1", "4", "9"}) {
    CHECK_ERROR(with("RANK", rank), ErrorKind::invalid_argument, std::string("rank ") + rank, "[0, 3]");
  }
}

// feature: A-04
TEST_CASE("tcp:// with rank and size in the URL, as arguments, or from the environment") {
  const JoinPlan in_url = plan({}, url("tcp://host:80?rank=1&world_size=4"));
  CHECK(in_url.rendezvous == Meeting::rank_zero);
  CHECK(in_url.rank == 1);
  CHECK(in_url.size == 4);
  CHECK(in_url.endpoint == Endpoint{"host", 80});
  CHECK(in_url.source == "tcp://host:80?rank=1&world_size=4");
  JoinOptions arguments = url("tcp://host:80");
  arguments.rank = 2;
  arguments.world_size = 3;
  CHECK(plan(kEnvironment, arguments).rank == 2);
  CHECK(plan(kEnvironment, arguments).size == 3);
  CHECK(plan(kEnvironment, url("tcp://host:80")).rank == 1);
  arguments.init_method = "tcp://host:80?rank=1";
  CHECK_ERROR(plan_error({}, arguments), ErrorKind::invalid_argument, "rank is given twice", "as 1", "as 2");
  CHECK_ERROR(plan_error({}, url("tcp://host:80?rank=1")), ErrorKind::invalid_argument, "missing: WORLD_SIZE");
  CHECK_ERROR(plan_error({}, url("tcp://host?rank=0&world_size=2")), ErrorKind::invalid_argument, "port is missing");
  CHECK_ERROR(plan_error({}, url("tcp://host:80?rank=a&world_size=2")), ErrorKind::invalid_argument, "'a'");
}

TEST_CASE("file:// takes an absolute path") {
  const JoinPlan file = plan({}, url("file:///tmp/meet?rank=0&world_size=2"));
  CHECK(file.rendezvous == Meeting::file);
  CHECK(file.path == "/tmp/meet");
  CHECK_ERROR(plan_error({}, url("file://meet?rank=0&world_size=2")), ErrorKind::invalid_argument, "three slashes");
}

// feature: A-04
TEST_CASE("a given store needs rank and world size, and no URL") {
  JoinOptions options;
  options.store = std::make_shared<MemoryStore>();
  CHECK_ERROR(plan_error(kEnvironment, options), ErrorKind::invalid_argument, "without rank and world_size");
  options.rank = 0;
  CHECK_ERROR(plan_error({}, options), ErrorKind::invalid_argument, "without world_size");
  options.world_size = 2;
  CHECK(plan({}, options).rendezvous == Meeting::given_store);
  options.init_method = "env://";
  CHECK_ERROR(plan_error({}, options), ErrorKind::invalid_argument, "both a store and init_method 'env://'");
}

// fault: S5
TEST_CASE("a world of one opens nothing, whatever its address; rank 0 can be told where to listen") {
  CHECK(plan({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).rendezvous == Meeting::alone);
  CHECK(plan({}, url("tcp://host:80?rank=0&world_size=1")).rendezvous == Meeting::alone);
  Variables variables = kEnvironment;
  variables["LOCKSTEP_BIND"] = "any";
  CHECK(plan(variables).bind_host == "0.0.0.0");
  variables["LOCKSTEP_BIND"] = "10.0.0.7";
  CHECK(plan(variables).bind_host == "10.0.0.7");
  CHECK(plan(variables).endpoint.host == "node0");
}

}  // namespace join_plan_test
