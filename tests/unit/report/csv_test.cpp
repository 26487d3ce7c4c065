#include "tools/report/csv.h"

#include <doctest/doctest.h>

#include "tools/report/metrics_reader.h"

namespace csv_test {

using namespace lockstep::tools;

namespace {

constexpr const char* kFixed =
    "run,kind,epoch,step,steps,rank,world_size,data_s,forward_s,backward_s,compute_s,optimizer_s,waiting_s,"
    "communicating_s,step_s,hidden_s,late_s,straggler";

RunRecord named(RunRecord run, std::string name) {
  run.name = std::move(name);
  return run;
}

}  // namespace

TEST_CASE("a row for each epoch, and for each rank of timed steps") {
  const RunRecord run = named(parse_metrics("{\"epoch\":0,\"train_loss\":0.1,\"val_loss\":null,\"world_size\":2}\n"
                                            "{\"kind\":\"steps\",\"step\":20,\"steps\":10,\"world_size\":2,\"ranks\":["
                                            "{\"rank\":0,\"data_s\":0.25},{\"rank\":1,\"late_s\":1e-3}],"
                                            "\"straggler\":1}\n"
                                            "{\"epoch\":1,\"train_loss\":0.05,\"val_loss\":2,\"step\":40}\n"),
                              "a");
  CHECK(csv_of({run}) == std::string(kFixed) +
                             ",train_loss,val_loss\n"
                             "a,epoch,0,,,,2,,,,,,,,,,,,0.1,\n"
                             "a,epoch,1,40,,,,,,,,,,,,,,,0.05,2\n"
                             "a,steps,,20,10,0,2,0.25,,,,,,,,,,0,,\n"
                             "a,steps,,20,10,1,2,,,,,,,,,,0.001,1,,\n");
}

TEST_CASE("numbers keep all their bits") {
  const RunRecord run = named(parse_metrics("{\"epoch\":0,\"train_loss\":0.30000000000000004}\n"), "a");
  CHECK(csv_of({run}).find(",0.30000000000000004\n") != std::string::npos);
}

TEST_CASE("texts are quoted where they must be, and are no formulas") {
  const RunRecord run = named(parse_metrics("{\"epoch\":0,\"a,\\\"b\\\"\\nc\":1,\"=1+1\":2,\"rank\":3}\n"), "@x");
  const std::string csv = csv_of({run});
  CHECK(csv.find(",\"a,\"\"b\"\"\nc\"") != std::string::npos);
  CHECK(csv.find(",'=1+1,") != std::string::npos);
  CHECK(csv.find(",metric:rank") != std::string::npos);
  CHECK(csv.find("\n'@x,epoch,0") != std::string::npos);
}

TEST_CASE("without lines there is the head") { CHECK(csv_of({RunRecord{}}) == std::string(kFixed) + "\n"); }

}  // namespace csv_test
