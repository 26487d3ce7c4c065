#include "lockstep/train/checkpoint/run_log.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/train/checkpoint/manifest.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

namespace run_log_test {

using namespace lockstep;
using namespace lockstep::internal;
using nlohmann::json;

TEST_CASE("a line of steps has means in seconds for each rank") {
  StepReport report{.steps = 20, .ranks = {}, .straggler = {}};
  report.ranks.push_back({.times = {.steps = 1,
                                    .data = 1,
                                    .forward = 2,
                                    .backward = 3,
                                    .optimizer = 0.5,
                                    .waiting = 0.25,
                                    .communicating = 0.125,
                                    .hidden = 0.5},
                          .late = {.mean = 0.0625}});
  report.ranks.push_back({.times = {.steps = 1, .data = 1, .compute = 6}, .late = {}});
  CHECK(steps_line(400, report) ==
        R"({"kind":"steps","step":400,"steps":20,"world_size":2,"ranks":[)"
        R"({"rank":0,"data_s":1.0,"forward_s":2.0,"backward_s":3.0,"optimizer_s":0.5,"waiting_s":0.25,)"
        R"("communicating_s":0.125,"step_s":6.875,"hidden_s":0.5,"late_s":0.0625},)"
        R"({"rank":1,"data_s":1.0,"compute_s":6.0,"optimizer_s":0.0,"waiting_s":0.0,"communicating_s":0.0,)"
        R"("step_s":7.0,"hidden_s":0.0,"late_s":0.0}],"straggler":null})");
  report.straggler = Straggler{.rank = 1, .part = "data"};
  CHECK(json::parse(steps_line(400, report))["straggler"] == 1);
}

TEST_CASE("a line of a run says how it was started, whatever the words hold") {
  RunFacts facts{.command = {"train", "--name", "a \"b\"\n\xff"},
                 .host = "n1",
                 .started = "2026-11-25T18:52:11Z",
                 .threads = 2,
                 .step = 40,
                 .versions = {{"torch", "2.13.0"}},
                 .restarts = 2};
  const json line = json::parse(run_line(facts));
  CHECK(line["kind"] == "run");
  CHECK(line["command"][2] == "a \"b\"\n\xef\xbf\xbd");
  CHECK(line["threads"] == 2);
  CHECK(line["step"] == 40);
  CHECK(line["versions"]["torch"] == "2.13.0");
  CHECK(restart_line(facts) == R"({"kind":"restart","attempt":3,"at":"2026-11-25T18:52:11Z"})");
  facts.restart_reason = "rank 1 was killed";
  CHECK(restart_line(facts) ==
        R"({"kind":"restart","attempt":3,"reason":"rank 1 was killed","at":"2026-11-25T18:52:11Z"})");
  CHECK(checkpoint_line(7, "out/step-7", 0.5) == R"({"kind":"checkpoint","step":7,"path":"out/step-7","seconds":0.5})");
}

TEST_CASE("this process is known by its command and its host") {
  const RunFacts facts = facts_of_this_process();
  REQUIRE_FALSE(facts.command.empty());
  CHECK(contains(facts.command[0], "unit_checkpoint_core"));
  CHECK_FALSE(facts.host.empty());
  CHECK(facts.started.size() == time_of_writing().size());
  CHECK(facts.versions.contains("lockstep"));
}

// fault: S9
TEST_CASE("lines are added to what is there, and what is no file, or cannot be written, is named") {
  const TemporaryDirectory folder;
  append_line(folder / "metrics.jsonl", "{}");
  append_line(folder / "metrics.jsonl", "[]");
  std::ifstream file(folder / "metrics.jsonl");
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  CHECK(all == "{}\n[]\n");
  std::ofstream(folder / "metrics.jsonl", std::ios::app) << "{\"epo";  // as a killed writer leaves it
  append_line(folder / "metrics.jsonl", "{}");
  std::ifstream again(folder / "metrics.jsonl");
  const std::string repaired{std::istreambuf_iterator<char>(again), {}};
  CHECK(repaired == "{}\n[]\n{\"epo\n{}\n");
  REQUIRE(::mkfifo((folder / "fifo").c_str(), 0666) == 0);
  std::filesystem::create_symlink(folder / "metrics.jsonl", folder / "link");
  for (const char* name : {"fifo", "link"}) {
    CHECK_ERROR(error_of([&] { append_line(folder / name, "{}"); }), ErrorKind::invalid_argument, "cannot write", name);
  }
  CHECK_ERROR(error_of([&] { append_line(folder / "none/a", "{}"); }), ErrorKind::invalid_argument, "cannot write",
              "none/a");
}

}  // namespace run_log_test
