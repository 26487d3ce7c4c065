#include "lockstep/job/launch/recordings_folder.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "lockstep/base/format.h"
#include "lockstep/base/observe/flight_file.h"
#include "lockstep/base/observe/flight_memory.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/job/launch/flight_recordings.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

namespace recordings_folder_test {

using namespace lockstep;
using namespace lockstep::internal;
namespace fs = std::filesystem;

namespace {

void record(const std::string& folder, int rank) {
  FlightMemory::make_private({.rank = rank, .world_size = 2}).save(folder + "/" + flight_file_name(rank), "");
}

std::string job(int number) { return fmt::format("{:016x}", number); }

// Saves recordings of one rank as its launcher does, for a rank that has failed.
std::string save(const std::string& job_id, const std::string& folder, int attempt) {
  const FlightRecordings recordings(job_id, 0, 1, 1);
  recordings.memory(0)->sign();
  Outcome outcome;
  outcome.ranks.emplace_back().failure.text = "failed";
  return recordings.save(outcome, folder, attempt);
}

// As if it had ended `age` ago.
void make_job(const std::string& parent, int number, std::chrono::hours age) {
  const std::string folder = make_job_folder(parent, job(number));
  record(folder, 0);
  record(folder, 1);
  if (number == kKeptJobs + 2) std::ofstream(folder + "/notes.txt") << "a file of the user's";
  fs::last_write_time(folder, fs::file_time_type::clock::now() - age);
}

}  // namespace

TEST_CASE("recordings live among the user's state, and where that cannot be, among temporary files") {
  const TemporaryDirectory directory;
  const std::string state = directory / "state/lockstep/flight";
  const std::string folder = make_job_folder(state, job(1));
  CHECK(folder == state + "/" + job(1));
  struct stat status {};
  REQUIRE(::stat((directory / "state").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
  REQUIRE(::stat(folder.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);

  ::setenv("TMPDIR", directory.path().c_str(), 1);
  for (const std::string nowhere : {"", "/proc/nowhere/lockstep"}) {
    CHECK(make_job_folder(nowhere, job(2)) == directory / ("lockstep-flight-" + job(2)));
  }
  ::unsetenv("TMPDIR");
}

// fault: S9
TEST_CASE("the last jobs of the last days are kept, and nobody else's files are touched") {
  const TemporaryDirectory directory;
  const std::string parent = directory / "flight";
  for (int i = 0; i < kKeptJobs + 3; ++i) make_job(parent, i, std::chrono::hours(i + 1));
  make_job(parent, 100, std::chrono::hours(24 * kKeptDays + 1));
  // Folders that only look like a job's.
  fs::create_directory(parent + "/mine");
  record(parent + "/mine", 0);
  fs::create_directory_symlink(parent + "/mine", parent + "/" + job(200));
  prune_job_folders(parent);
  for (int i = 0; i < kKeptJobs; ++i) CHECK(fs::exists(parent + "/" + job(i) + "/rank_1.flight"));
  CHECK_FALSE(fs::exists(parent + "/" + job(kKeptJobs)));
  CHECK_FALSE(fs::exists(parent + "/" + job(kKeptJobs + 1)));
  CHECK_FALSE(fs::exists(parent + "/" + job(100)));
  CHECK(fs::exists(parent + "/" + job(kKeptJobs + 2) + "/notes.txt"));
  CHECK_FALSE(fs::exists(parent + "/" + job(kKeptJobs + 2) + "/rank_0.flight"));
  CHECK(fs::exists(parent + "/mine/rank_0.flight"));
  prune_job_folders(directory / "nothing");
}

// fault: S9
TEST_CASE("only recordings are removed, whatever other files are called") {
  const TemporaryDirectory directory;
  record(directory.path(), 0);
  for (const char* name : {"rank_1.flight", "rank_x.flight", "other.flight", "rank_2.flight.bak"}) {
    std::ofstream(directory / name) << "a text of the user's";
  }
  fs::create_directory(directory / "rank_3.flight");
  fs::create_symlink(directory / "other.flight", directory / "rank_4.flight");
  remove_recordings(directory.path());
  CHECK_FALSE(fs::exists(directory / "rank_0.flight"));
  for (const char* name :
       {"rank_1.flight", "rank_x.flight", "other.flight", "rank_2.flight.bak", "rank_3.flight", "rank_4.flight"}) {
    CHECK(fs::exists(directory / name));
  }
}

// fault: S9
TEST_CASE("launchers of one job save into one folder, and what another job has left there goes") {
  const TemporaryDirectory directory;
  const std::string folder = directory / "flight";
  make_flight_directory(folder);
  for (int rank = 0; rank < 4; ++rank) {
    FlightMemory::make_private({.rank = rank, .world_size = 4, .job_id = job(1)})
        .save(folder + "/" + flight_file_name(rank), "");
  }
  for (int host = 0; host < 2; ++host) {
    const FlightRecordings recordings(job(2), host, 1, 2);
    recordings.memory(host)->sign();
    CHECK(recordings.save({}, folder) != "");
    CHECK(recordings.save({}, folder, 3) != "");
  }
  for (const std::string& place : {folder, folder + "/attempt_3"}) {
    const std::vector<FlightSnapshot> snapshots = read_flight_directory(place);
    REQUIRE(snapshots.size() == 2);
    CHECK(snapshots[0].job == job(2));
  }
  CHECK(save(job(3), folder, 0) != "");  // had no fourth attempt
  CHECK(recorded_attempts(folder) == std::vector{0});
  CHECK_FALSE(fs::exists(folder + "/attempt_3"));
}

TEST_CASE("of a job that fails again and again the first attempt and the last ones are kept") {
  const TemporaryDirectory directory;
  ::setenv("XDG_STATE_HOME", directory.path().c_str(), 1);
  const std::string folder = state_folder() + "/" + job(1);
  for (const int attempt : {0, 1, 2, 4}) CHECK(contains(save(job(1), "", attempt), attempt_folder(folder, attempt)));
  CHECK(recorded_attempts(folder) == std::vector{0, 1, 2, 4});
  std::ofstream(folder + "/attempt_1/notes.txt") << "a file of the user's";
  for (const int attempt : {9, 10}) CHECK(save(job(1), "", attempt) != "");
  CHECK(recorded_attempts(folder) == std::vector{0, 4, 9, 10});
  CHECK(fs::exists(folder + "/attempt_1/notes.txt"));
  CHECK_FALSE(fs::exists(folder + "/attempt_2"));
  fs::create_directory(folder + "/attempt_03");  // no name of ours
  record(folder + "/attempt_03", 0);
  fs::create_directory_symlink(folder + "/attempt_4", folder + "/attempt_11");
  CHECK(recorded_attempts(folder) == std::vector{0, 4, 9, 10});
  CHECK(newest_job_folder(state_folder()) == folder);
  fs::create_directory(state_folder() + "/" + job(2));  // newer, and empty
  CHECK(newest_job_folder(state_folder()) == folder);
  CHECK(newest_job_folder(directory / "nothing") == "");
  ::unsetenv("XDG_STATE_HOME");
}

// fault: S9
TEST_CASE("recordings go into no folder that a link leads to, and none of another user") {
  const TemporaryDirectory directory;
  fs::create_directory(directory / "elsewhere");
  fs::create_directory(directory / "flight");
  fs::create_directory_symlink(directory / "elsewhere", directory / "flight/attempt_1");
  const std::string lost = save(job(1), directory / "flight", 1);
  CHECK(contains(lost, "the flight recording could not be saved"));
  CHECK(contains(lost, "not a folder of this user"));
  ::setenv("TMPDIR", directory.path().c_str(), 1);
  fs::create_directory_symlink(directory / "elsewhere", directory / ("lockstep-flight-" + job(1)));
  CHECK_ERROR(error_of([] { make_job_folder("", job(1)); }), ErrorKind::unauthorized, "not a folder of this user");
  ::unsetenv("TMPDIR");
  if (::geteuid() == 0) {  // only root makes links of other users
    const std::string link = directory / "link";
    fs::create_directory_symlink(directory / "elsewhere", link);
    REQUIRE(::lchown(link.c_str(), 65534, 65534) == 0);
    CHECK(contains(save(job(1), link, 0), "is a link of user 65534"));
  }
  CHECK(fs::is_empty(directory / "elsewhere"));
}

}  // namespace recordings_folder_test
