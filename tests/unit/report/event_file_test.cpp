#include "tools/report/event_file.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tools/report/metrics_reader.h"

namespace event_file_test {

using namespace lockstep::tools;

namespace {

std::string hex(const std::string& bytes) {
  std::string digits;
  for (const char c : bytes) {
    digits += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4];
    digits += "0123456789abcdef"[static_cast<unsigned char>(c) & 15];
  }
  return digits;
}

}  // namespace

// The bytes are those that TensorBoard's own RecordWriter writes for the same events.
TEST_CASE("a file begins with the version, and a scalar is a record") {
  EventFile file;
  const std::string begin = file.bytes();
  CHECK(hex(begin) == "0f000000000000006d532b091a0d627261696e2e4576656e743a32fc985129");
  file.add_scalar("loss", 300, 0.5, 1.0);
  CHECK(hex(file.bytes().substr(begin.size())) ==
        "1b000000000000001a0d9e13"
        "09000000000000f03f10ac022a0d0a0b0a046c6f7373150000003f"
        "4e5c1fd1");
}

TEST_CASE("what is no float is left out") {
  EventFile file;
  const std::size_t size = file.bytes().size();
  for (const double value : {kUnknown, std::numeric_limits<double>::infinity(), 1e300})
    file.add_scalar("x", 1, value, 0);
  CHECK(file.bytes().size() == size);
}

TEST_CASE("a run's epochs and steps are scalars") {
  const std::string bytes = event_file_of(parse_metrics(
      "{\"epoch\":0,\"train_loss\":0.5}\n{\"kind\":\"steps\",\"step\":9,\"ranks\":[{\"rank\":3,\"late_s\":1}]}\n"));
  CHECK(bytes.find("train_loss") != std::string::npos);
  CHECK(bytes.find("late_s/rank 3") != std::string::npos);
  CHECK(bytes.find("data_s/rank 3") == std::string::npos);
}

TEST_CASE("times") {
  CHECK(seconds_of_iso_time("2026-11-25T18:40:21Z") == 1795632021);
  CHECK(seconds_of_iso_time("2026-11-25T18:40:21.123+01:00") == 1795628421);
  for (const char* text : {"", "yesterday", "2026-11-25", "2026-11-25T18:40:21", "2026-11-25T18:40:21Z!"}) {
    CHECK(std::isnan(seconds_of_iso_time(text)));
  }
}

}  // namespace event_file_test
