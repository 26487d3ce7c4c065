#include "tools/report/metrics_reader.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

namespace metrics_reader_test {

using namespace lockstep;
using namespace lockstep::tools;

namespace {

std::string steps(int step) {
  return R"({"kind":"steps","step":)" + std::to_string(step) +
         R"(,"steps":10,"world_size":2,"ranks":[)"
         R"({"rank":1,"data_s":0.5,"step_s":1.5,"late_s":null},{"rank":0,"data_s":0.25,"step_s":1.5}],"straggler":1})"
         "\n";
}

std::string epoch(int number, double loss) {
  return "{\"epoch\": " + std::to_string(number) + ", \"train_loss\": " + std::to_string(loss) + "}\n";
}

}  // namespace

TEST_CASE("an epoch has its numbers; null is one that is not known, and what is no number is passed over") {
  const RunRecord run = parse_metrics(
      "{\"epoch\": 3, \"train_loss\": 0.5, \"val_loss\": null, \"note\": \"x\", \"world_size\": 4, \"step\": 70}\n");
  REQUIRE(run.epochs.size() == 1);
  const EpochLine& line = run.epochs[0];
  CHECK(line.epoch == 3);
  CHECK(line.step == 70);
  CHECK(line.world_size == 4);
  REQUIRE(line.metrics.size() == 2);
  CHECK(line.metrics[0].first == "train_loss");
  CHECK(line.metrics[0].second == 0.5);
  CHECK(line.metrics[1].first == "val_loss");
  CHECK(std::isnan(line.metrics[1].second));
  CHECK(run.damaged_count == 0);
}

TEST_CASE("an epoch's metrics may come in several lines; a line with a name that was there is the epoch once more") {
  const std::string validation = R"({"epoch": 1, "step": 9, "val_loss": 0.25})"
                                 "\n";
  RunRecord run = parse_metrics(epoch(0, 3) + epoch(1, 2) + validation);
  REQUIRE(run.epochs.size() == 2);
  CHECK(run.replaced == 0);
  CHECK(run.epochs[1].step == 9);
  CHECK(run.epochs[1].metrics == std::vector<std::pair<std::string, double>>{{"train_loss", 2}, {"val_loss", 0.25}});
  run = parse_metrics(epoch(1, 2) + validation + epoch(1, 4));
  REQUIRE(run.epochs.size() == 1);
  CHECK(run.epochs[0].metrics == std::vector<std::pair<std::string, double>>{{"train_loss", 4}});
}

TEST_CASE("a run that begins anew, or goes on from an earlier step, replaces what was there behind it") {
  const std::string before = epoch(0, 3) + epoch(1, 2) + steps(20) + steps(40) + epoch(2, 1);
  RunRecord run = parse_metrics(before +
                                R"({"kind":"run","step":0})"
                                "\n" +
                                epoch(0, 5));
  REQUIRE(run.epochs.size() == 1);
  CHECK(run.epochs[0].metrics[0].second == 5);
  CHECK(run.steps.empty());
  CHECK(run.replaced == 5);
  run = parse_metrics(before +
                      R"({"kind":"run","step":25})"
                      "\n" +
                      steps(35));
  CHECK(run.epochs.size() == 3);
  REQUIRE(run.steps.size() == 2);
  CHECK(run.steps[1].step == 35);
  CHECK(parse_metrics(before + R"({"kind":"run"})"
                               "\n")
            .epochs.size() == 3);
}

TEST_CASE("values that are nested deeply are refused, where a text is expected") {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  for (const std::string name : {"reason", "attempt"}) {
    const RunRecord run = parse_metrics("{\"kind\":\"restart\",\"" + name + "\":" + deep + "}\n");
    REQUIRE(run.damaged_count == 1);
    CHECK(run.damaged[0].what.find("where a string is expected") != std::string::npos);
  }
  CHECK(parse_metrics("{\"epoch\":" + deep + "}\n").damaged_count == 1);
  CHECK(parse_metrics("{\"epoch\":1,\"note\":" + deep + "}\n").epochs.size() == 1);
}

TEST_CASE("ranks are sorted, and a time that is not there is not known") {
  const RunRecord run = parse_metrics(steps(40));
  REQUIRE(run.steps.size() == 1);
  const StepsLine& line = run.steps[0];
  CHECK(line.step == 40);
  CHECK(line.steps == 10);
  CHECK(line.straggler == 1);
  REQUIRE(line.ranks.size() == 2);
  CHECK(line.ranks[0].rank == 0);
  CHECK(line.ranks[0].of(StepPart::data) == 0.25);
  CHECK(line.ranks[1].of(StepPart::data) == 0.5);
  CHECK(std::isnan(line.ranks[1].of(StepPart::late)));
  CHECK(std::isnan(line.ranks[1].of(StepPart::hidden)));
}

TEST_CASE("starts, restarts and checkpoints are read") {
  const RunRecord run = parse_metrics(
      R"({"kind":"run","command":["./train","--lr",0.1],"host":"n1","started":"2026-11-25T18:40:21Z","threads":2,)"
      R"("versions":{"torch":"2.13.0"}})"
      "\n\n"
      R"({"kind":"restart","attempt":1,"reason":"rank 2 was killed","at":"2026-11-25T18:50:00Z"})"
      "\n"
      R"({"kind":"checkpoint","step":10,"path":"out/step-10","seconds":0.5})"
      "\n");
  REQUIRE(run.starts.size() == 1);
  CHECK(run.starts[0].command == std::vector<std::string>{"./train", "--lr", "0.1"});
  CHECK(run.starts[0].threads == "2");
  CHECK(run.starts[0].versions[0].second == "2.13.0");
  REQUIRE(run.restarts.size() == 1);
  CHECK(run.restarts[0].line == 3);
  CHECK(run.restarts[0].attempt == "1");
  CHECK(run.restarts[0].reason == "rank 2 was killed");
  REQUIRE(run.saves.size() == 1);
  CHECK(run.saves[0].seconds == 0.5);
}

TEST_CASE("unknown kinds and fields are passed over") {
  const RunRecord run = parse_metrics("{\"kind\":\"weather\",\"rain\":true}\n{\"epoch\":0,\"a\":1,\"b\":[{}]}\n");
  CHECK(run.damaged_count == 0);
  CHECK(run.epochs.size() == 1);
}

TEST_CASE("a run that goes back replaces what it does again") {
  const RunRecord resumed =
      parse_metrics(epoch(0, 3) + epoch(1, 2) + epoch(2, 1) + epoch(1, 5) + steps(10) + steps(20) + steps(20));
  REQUIRE(resumed.epochs.size() == 2);
  CHECK(resumed.epochs[1].metrics[0].second == 5);
  CHECK(resumed.steps.size() == 2);
  CHECK(resumed.replaced == 3);
  const RunRecord anew = parse_metrics(epoch(0, 3) + epoch(1, 2) + epoch(0, 7));
  REQUIRE(anew.epochs.size() == 1);
  CHECK(anew.epochs[0].metrics[0].second == 7);
}

TEST_CASE("damaged lines are counted and described with their numbers, and the others are read") {
  const std::string text = epoch(0, 1) +
                           "{\"epoch\": 1, \"train_lo\n"
                           "[1, 2]\n"
                           "{\"train_loss\": 1}\n"
                           "{\"epoch\": -1}\n"
                           "{\"epoch\": 18446744073709551615}\n"
                           "{\"epoch\": 1.5}\n"
                           "{\"kind\": 7}\n"
                           "{\"kind\":\"steps\",\"step\":1}\n"
                           "{\"kind\":\"steps\",\"step\":1,\"ranks\":[{\"rank\":0},{\"rank\":0}]}\n"
                           "{\"kind\":\"steps\",\"step\":1,\"ranks\":[{\"rank\":0,\"data_s\":-1}]}\n"
                           "{\"kind\":\"steps\",\"step\":1,\"ranks\":[{\"rank\":0,\"data_s\":\"1\"}]}\n"
                           "{\"kind\":\"steps\",\"step\":1,\"ranks\":[7]}\n"
                           "\xff\xfe\n" +
                           epoch(1, 2) + "{\"epoch\": 2";
  const RunRecord run = parse_metrics(text);
  CHECK(run.epochs.size() == 2);
  CHECK(run.steps.empty());
  CHECK(run.damaged_count == 14);
  REQUIRE(run.damaged.size() == 14);
  CHECK(run.damaged[0].line == 2);
  CHECK(contains(run.damaged[0].what, "is not JSON"));
  CHECK(contains(run.damaged[1].what, "is not a JSON object"));
  CHECK(contains(run.damaged[2].what, "has no \"epoch\""));
  CHECK(contains(run.damaged[3].what, "\"epoch\" is -1"));
  CHECK(contains(run.damaged[5].what, "\"epoch\" is not an integer"));
  CHECK(contains(run.damaged[8].what, "has rank 0 twice"));
  CHECK(contains(run.damaged[9].what, "\"data_s\" is -1"));
  CHECK(run.damaged[13].line == 16);
}

TEST_CASE("of many damaged lines the first are described") {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "x\n";
  const RunRecord run = parse_metrics(text);
  CHECK(run.damaged_count == 100);
  CHECK(run.damaged.size() == 20);
}

TEST_CASE("a line of a megabyte and one that is nested deeply do no harm") {
  const RunRecord run = parse_metrics(std::string(900'000, '[') +
                                      "\n{\"epoch\":0,\"x\":" + std::string(2'000'000, '1') + "}\n" + epoch(0, 1));
  CHECK(run.damaged_count == 2);
  CHECK(run.epochs.size() == 1);
}

TEST_CASE("what is no run is refused by name") {
  const TemporaryDirectory directory;
  CHECK_ERROR(error_of([&] { read_metrics(directory / "none"); }), ErrorKind::invalid_argument, "cannot find the run",
              directory / "none");
  CHECK_ERROR(error_of([&] { read_metrics(directory.path()); }), ErrorKind::invalid_argument, directory.path(),
              "has no metrics.jsonl");
  std::ofstream(directory / "file") << "x";
  CHECK_ERROR(error_of([&] { read_metrics(directory / "file"); }), ErrorKind::invalid_argument,
              "name the one that contains");
  REQUIRE(::mkfifo((directory / "metrics.jsonl").c_str(), 0600) == 0);
  CHECK_ERROR(error_of([&] { read_metrics(directory.path()); }), ErrorKind::invalid_argument, "metrics.jsonl");
}

TEST_CASE("a run is read from its directory") {
  const TemporaryDirectory directory;
  std::ofstream(directory / "metrics.jsonl") << epoch(0, 1) << epoch(1, 0.5);
  const RunRecord run = read_metrics(directory.path());
  CHECK(run.epochs.size() == 2);
  CHECK(run.path == directory.path());
}

}  // namespace metrics_reader_test
