// Ranks that save without a group: which of them write.
#include "lockstep/train/checkpoint/one_writer.h"

#include <doctest/doctest.h>

#include <chrono>

#include "lockstep/base/machine.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/set_reader.h"
#include "tests/support/small_set.h"
#include "tests/support/temporary_directory.h"

namespace one_writer_test {

using namespace lockstep;
using namespace lockstep::internal;
using lockstep::testing::SmallSet;

TEST_CASE("the saves of a set are counted, in memory that does not grow") {
  SaveNumbers numbers;
  CHECK(numbers.next("a") == 1);
  CHECK(numbers.next("a") == 2);
  CHECK(numbers.next("b") == 1);
  for (int i = 0; i < 10'000; ++i) numbers.next(std::to_string(i));
  CHECK(numbers.size() == SaveNumbers::kMost);
  CHECK(numbers.next("a") > 2);  // no save has a number again that it had before
}

TEST_CASE("what another rank has saved as often is not saved again, and any other save is") {
  const TemporaryDirectory directory;
  const SmallSet content{.step = 4, .writers = 1};
  {
    SetDirectory set(directory.path(), content.step);
    Manifest manifest =
        lockstep::testing::manifest_of(content, {lockstep::testing::write_part(set.path(), content, 0)});
    manifest.written.insert({{"job", "j"}, {"rank", "0"}, {"save", "2"}});
    set.publish(serialise(manifest));
  }
  const WriterTurn turn(directory.path(), Deadline::after(std::chrono::seconds(20)));
  const std::map<std::string, std::string> mine{{"job", "j"}, {"rank", "1"}};
  CHECK(turn.is_saved(4, mine, 1));
  CHECK(turn.is_saved(4, mine, 2));
  CHECK_FALSE(turn.is_saved(4, mine, 3));  // this rank means another save
  CHECK_FALSE(turn.is_saved(5, mine, 1));
  CHECK_FALSE(turn.is_saved(4, {{"job", "j"}, {"rank", "0"}}, 2));  // itself
  CHECK_FALSE(turn.is_saved(4, {{"job", "k"}, {"rank", "1"}}, 1));
  CHECK_FALSE(turn.is_saved(4, {}, 1));
}

// fault: 51
TEST_CASE("whether a set is older than this process does not depend on the clock of the machine") {
  const TemporaryDirectory directory;
  const std::map<std::string, std::string> mine{{"job", "j"}, {"rank", "1"}};
  const auto saved = [&](std::uint64_t step, std::map<std::string, std::string> moment, std::chrono::hours file_time) {
    const SmallSet content{.step = step, .writers = 1};
    SetDirectory set(directory.path(), step);
    Manifest manifest =
        lockstep::testing::manifest_of(content, {lockstep::testing::write_part(set.path(), content, 0)});
    manifest.written.insert({{"job", "j"}, {"rank", "0"}, {"save", "1"}});
    manifest.written.merge(moment);
    set.publish(serialise(manifest));
    const std::filesystem::path file = set_path(directory.path(), step) / kManifestName;
    std::filesystem::last_write_time(file, std::filesystem::file_time_type::clock::now() + file_time);
    return WriterTurn(directory.path(), Deadline::after(std::chrono::seconds(20))).is_saved(step, mine, 1);
  };
  using std::chrono::hours;
  CHECK(saved(1, moment_of_writing(), hours(-10)));
  const std::map<std::string, std::string> at_boot{{"boot", boot_id()}, {"uptime_s", "0"}};
  CHECK_FALSE(saved(2, at_boot, hours(10)));
  CHECK_FALSE(saved(3, {{"boot", "of another machine"}, {"uptime_s", "9999999"}}, hours(-10)));
  CHECK(saved(4, {{"boot", "of another machine"}, {"uptime_s", "0"}}, hours(10)));
}

}  // namespace one_writer_test
