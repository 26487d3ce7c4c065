// A checkpoint set is written, and at every system call of its writers the process is killed, the call fails, or it
// writes less than it should: the set that was there or the new one is there, whole.
#include <doctest/doctest.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>

#include "tests/process/checkpoint/traced_process.h"
#include "tests/process/checkpoint/versioned_file.h"
#include "tests/support/sanitized.h"
#include "tests/support/small_set.h"
#include "tests/support/temporary_directory.h"

namespace set_faults_test {

using namespace lockstep;
using namespace lockstep::internal;
using lockstep::testing::SmallSet;
using lockstep::testing::TracedProcess;
using lockstep::testing::write_set;

namespace fs = std::filesystem;

namespace {

// Those that a save makes, but for memory and signals.
constexpr std::array kFileCalls{SYS_open,       SYS_openat, SYS_read,       SYS_write,     SYS_pwrite64,
                                SYS_fsync,      SYS_rename, SYS_renameat,   SYS_renameat2, SYS_mkdir,
                                SYS_rmdir,      SYS_unlink, SYS_unlinkat,   SYS_flock,     SYS_fstat,
                                SYS_newfstatat, SYS_close,  SYS_getdents64, SYS_fcntl};

constexpr std::uint64_t kNextStep = 401;
constexpr int kStride = lockstep::testing::kIsSanitized ? 3 : 1;  // one of so many calls

// The version of the newest set; Error unless all of it is right.
std::int64_t newest_version(const fs::path& directory) {
  const std::vector<SetPlace> sets = list_sets(directory);
  REQUIRE_FALSE(sets.empty());
  SetReader(sets.front().path).verify();
  return lockstep::testing::version_of(sets.front().path);
}

// One who comes later tidies up, whatever was left.
void check_next_save(const fs::path& directory) {
  write_set(directory, {.step = kNextStep, .version = 9});
  CHECK(newest_version(directory) == 9);
  for (const auto& entry : fs::directory_iterator(directory)) {
    CHECK(step_of_set(entry.path()).has_value());
  }
  remove_set(set_path(directory, kNextStep));
}

// What is done to the writer at its system calls: `at` counts them. False: it came to its end before.
using Fault = std::function<bool(TracedProcess& writer, int at)>;

bool killed_at(TracedProcess& writer, int at) {
  for (int i = 0; i <= at; ++i) {
    if (!writer.step()) return false;
  }
  return true;
}

// Changes the at-th call of a file or the first behind it that can be changed, and lets the process run to its end.
bool changed_at(TracedProcess& writer, int at, const std::function<bool(TracedProcess&)>& change) {
  int seen = 0;
  bool was_changed = false;
  while (writer.step()) {
    const long call = writer.entered_call();
    if (call < 0 || was_changed || std::ranges::find(kFileCalls, call) == kFileCalls.end()) continue;
    if (seen < at) {
      ++seen;
    } else {
      was_changed = change(writer);
    }
  }
  return was_changed;
}

Fault failing_with(int error) {
  return [=](TracedProcess& writer, int at) {
    return changed_at(writer, at, [=](TracedProcess& process) {
      process.fail_call(error);
      return true;
    });
  };
}

bool writing_less(TracedProcess& writer, int at) {
  return changed_at(writer, at, [](TracedProcess& process) {
    const long call = process.entered_call();
    return (call == SYS_write || call == SYS_pwrite64 || call == SYS_read) && process.halve_count();
  });
}

struct Outcome {
  int tries = 0, old_found = 0, new_found = 0;
};

// One process writes all of a set that replaces another.
Outcome strike_publisher(const Fault& fault, bool must_succeed) {
  const TemporaryDirectory directory(memory_directory());
  const fs::path base = directory.path();
  Outcome outcome;
  for (bool has_struck = true; has_struck; outcome.tries += kStride) {
    CAPTURE(outcome.tries);
    write_set(base, {.version = 1});
    int exit_code = -1;
    {
      TracedProcess writer([&] { write_set(base, {.version = 2, .writers = 2}); });
      has_struck = fault(writer, outcome.tries);
      exit_code = writer.exit_code();
    }
    const std::int64_t found = newest_version(base);
    CHECK((found == 1 || found == 2));
    if (exit_code == 0) CHECK(found == 2);
    if (must_succeed) CHECK(exit_code == 0);
    const bool ended_well = exit_code == 0 || exit_code == TracedProcess::kThrew || exit_code == -1;
    CHECK(ended_well);
    ++(found == 1 ? outcome.old_found : outcome.new_found);
    check_next_save(base);
  }
  return outcome;
}

// Rank 0 is this process and publishes the set if the other writer says that it has written its part.
Outcome strike_other_writer(const Fault& fault, bool must_succeed) {
  const TemporaryDirectory directory(memory_directory());
  const fs::path base = directory.path();
  Outcome outcome;
  for (bool has_struck = true; has_struck; outcome.tries += kStride) {
    CAPTURE(outcome.tries);
    write_set(base, {.version = 1});
    const SmallSet content{.version = 2, .writers = 2};
    {
      SetDirectory set(base, content.step);
      const WrittenFile first = write_part(set.path(), content, 0);
      TracedProcess writer([&] { write_part(set.path(), content, 1); });
      has_struck = fault(writer, outcome.tries);
      if (must_succeed) CHECK(writer.exit_code() == 0);
      if (writer.exit_code() == 0) {
        const TemporaryDirectory elsewhere(memory_directory());
        const WrittenFile second = write_part(elsewhere.path(), content, 1);  // what it would have told
        set.publish(serialise(manifest_of(content, {first, second})));
        CHECK(newest_version(base) == 2);
        ++outcome.new_found;
      }
    }
    if (newest_version(base) == 1) ++outcome.old_found;
    check_next_save(base);
  }
  return outcome;
}

}  // namespace

// fault: 5
TEST_CASE("a writer of a set is killed at every entry to and exit from a system call") {
  const Outcome publisher = strike_publisher(killed_at, false);
  CHECK(publisher.old_found > 50 / kStride);
  CHECK(publisher.new_found > 5 / kStride);
  const Outcome other = strike_other_writer(killed_at, false);
  CHECK(other.old_found > 10 / kStride);
  CHECK(other.new_found <= 1);
  MESSAGE(publisher.tries << " moments of the publisher, " << other.tries << " of the other writer");
}

// fault: 23
TEST_CASE("every system call of the writers of a set fails") {
  if (!TracedProcess::kCanChangeCalls) return;
  for (const int error : {EIO, ENOSPC}) {
    CAPTURE(error);
    const Outcome publisher = strike_publisher(failing_with(error), false);
    CHECK(publisher.old_found > 20 / kStride);
    CHECK(publisher.new_found > 2 / kStride);
    const Outcome other = strike_other_writer(failing_with(error), false);
    CHECK(other.old_found > 5 / kStride);
    CHECK(other.new_found >= 1);
    MESSAGE(publisher.tries << " calls of the publisher, " << other.tries << " of the other writer");
  }
}

// fault: 23
TEST_CASE("every write of a set is a short one, and none is lost") {
  if (!TracedProcess::kCanChangeCalls) return;
  CHECK(strike_publisher(writing_less, true).tries > 5);
  CHECK(strike_other_writer(writing_less, true).tries > 2);
}

}  // namespace set_faults_test
