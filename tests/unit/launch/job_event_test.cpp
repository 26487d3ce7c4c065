#include "lockstep/job/launch/job_event.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

namespace job_event_test {

using namespace lockstep::internal;

namespace {

nlohmann::json read(const JobEvent& event) {
  const std::string text = json_of(event);
  CHECK(text.find('\n') == text.size() - 1);
  return nlohmann::json::parse(text);
}

}  // namespace

TEST_CASE("an event names the hosts and their ranks") {
  const auto object = read({.kind = JobEvent::Kind::start,
                            .job_id = "a785",
                            .run_id = "night",
                            .world_size = 3,
                            .hosts = {{"n1", 0, 2}, {"n2", 2, 1}}});
  CHECK(object["event"] == "start");
  CHECK(object["hosts"][0]["ranks"] == nlohmann::json{0, 1});
  CHECK(object["hosts"][1]["host"] == "n2");
  CHECK(object["hosts"][1]["ranks"] == nlohmann::json::array({2}));
  CHECK(object["cause"].is_null());
  CHECK(object["stopped_by"].is_null());
  CHECK_FALSE(object.contains("exit_code"));
}

TEST_CASE("the cause is a rank, a hang, or a lost host") {
  RankEnd end;
  end.rank = 2;
  end.host = "n2";
  end.status.code = 3;
  end.failure.text = "exited with code 3";
  end.error = "ValueError: no";
  end.last_operation = "barrier #4";
  JobEvent event{.kind = JobEvent::Kind::end, .outcome = Outcome{.ranks = {end}}, .exit_code = 3};
  auto object = read(event);
  CHECK(object["exit_code"] == 3);
  CHECK(object["cause"] == nlohmann::json{{"rank", 2},
                                          {"host", "n2"},
                                          {"failure", "exited with code 3"},
                                          {"error", "ValueError: no"},
                                          {"last_operation", "barrier #4"}});
  event.outcome = Outcome{.ranks = {}, .hang = "nobody moves"};
  CHECK(read(event)["cause"] == nlohmann::json{{"failure", "nobody moves"}});
  event.outcome = Outcome{.ranks = {}, .stop_signal = 2};
  event.outcome->lost.push_back({.host = "n9", .first_rank = 4, .ranks = 2, .why = "gone"});
  event.stop_signal = 2;
  object = read(event);
  CHECK(object["cause"]["host"] == "n9");
  CHECK_FALSE(object["cause"].contains("rank"));
  CHECK(object["stopped_by"] == "SIGINT");
}

}  // namespace job_event_test
