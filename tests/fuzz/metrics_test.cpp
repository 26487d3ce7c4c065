#include <doctest/doctest.h>

#include "lockstep/base/hash.h"
#include "tests/fuzz/fuzz.h"
#include "tools/report/csv.h"
#include "tools/report/event_file.h"
#include "tools/report/metrics_reader.h"
#include "tools/report/page.h"

namespace metrics_test {

using namespace lockstep;
using namespace lockstep::tools;

namespace {

constexpr const char* kRun =
    R"({"kind":"run","command":["./train"],"host":"n1","started":"2026-11-25T18:40:21Z","versions":{"torch":"2"}}
{"kind":"steps","step":20,"steps":10,"world_size":2,"straggler":1,"ranks":[{"rank":0,"step_s":1},{"rank":1,"late_s":0}]}
{"epoch": 0, "train_loss": 0.5, "val_accuracy": null, "samples_per_second": 1e3, "world_size": 2}
{"kind":"checkpoint","step":20,"path":"out/step-20","seconds":0.5}
{"kind":"restart","attempt":1,"reason":"why","at":"2026-11-25T18:41:00Z"}
{"epoch": 1, "train_loss": 0.25, "world_size": 1}
)";

// A run whose lines are damaged is a run with fewer lines; what is made of it is always whole.
void report(ByteView bytes) {
  RunRecord run = parse_metrics(bytes);
  if (internal::hash_of(bytes) % 8 != 0) return;  // the page takes ten times as long as reading
  run.name = run.path = "run";
  const std::string page = report_page({run}, "made");
  CHECK(page.ends_with("</html>\n"));
  CHECK(page.size() < 1'000'000);
  CHECK(page.find("<script") == std::string::npos);
  CHECK(csv_of({run}).starts_with("run,kind,"));
  CHECK(!event_file_of(run).empty());
}

}  // namespace

TEST_CASE("metrics of a run") {
  fuzz::run(
      {.name = "metrics of a run",
       .seeds = {kRun},
       .words = {"\"kind\"", "\"ranks\"", "<script>", "1e308", "-1", "null", "[", "{", "}\n", "18446744073709551615"},
       .memory_limit = std::size_t{8} << 20,
       .parse = report});
}

}  // namespace metrics_test
