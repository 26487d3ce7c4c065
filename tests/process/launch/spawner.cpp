// Calls spawn() in the way that the first argument names, and prints how it ended.
#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>

#include "lockstep/comm/store/tcp_store.h"
#include "lockstep/job/launch/spawn.h"

namespace {

using Worker = std::function<void(int rank)>;

void wait_for_a_signal() {
  while (true) ::pause();
}

void ready(int rank) {
  std::printf("rank %d ready\n", rank);
  std::fflush(stdout);
}

int open_descriptors() {
  int count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

char state_of(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t end_of_name = text.rfind(") ");
  return end_of_name == std::string::npos ? '?' : text.at(end_of_name + 2);
}

[[noreturn]] void segfault() {
  std::signal(SIGSEGV, SIG_DFL);  // sanitizers catch it otherwise
  std::raise(SIGSEGV);
  std::abort();
}

const std::map<std::string, Worker> kWorkers{
    {"fine", [](int rank) { std::printf("rank %d of %s\n", rank, std::getenv("WORLD_SIZE")); }},
    {"throw",
     [](int rank) {
       if (rank == 1) throw std::runtime_error("boom");
       wait_for_a_signal();
     }},
    {"throw_int",
     [](int rank) {
       if (rank == 1) throw 7;
       wait_for_a_signal();
     }},
    {"lost_peer",
     [](int rank) {
       // All of them end while the parent is stopped, so that it sees their deaths at once.
       if (rank == 2) ::kill(::getppid(), SIGSTOP);
       while (state_of(::getppid()) != 'T') ::usleep(1000);
       if (rank == 2) throw std::runtime_error("the cause");
       throw lockstep::Error(lockstep::ErrorKind::peer_lost, "a consequence");
     }},
    {"exit7",
     [](int rank) {
       if (rank == 1) ::_exit(7);
       wait_for_a_signal();
     }},
    {"segv",
     [](int rank) {
       if (rank == 1) segfault();
       wait_for_a_signal();
     }},
    {"stubborn",
     [](int rank) {
       std::signal(SIGTERM, SIG_IGN);
       ready(rank);
       // The last one fails once all ignore the signal: it is told so by its standard input, which only rank 0 has.
       if (rank == 0 && std::getchar() != EOF) throw std::runtime_error("boom");
       wait_for_a_signal();
     }},
    {"store",
     [](int rank) {
       // Every rank counts itself and waits for the last one.
       const auto deadline = lockstep::Deadline::after(std::chrono::seconds(20));
       lockstep::internal::HandshakeSettings settings;
       settings.token = lockstep::Token::for_this_process();
       settings.job_id = std::getenv("LOCKSTEP_JOB_ID");
       settings.mine = lockstep::internal::local_identity(rank, 3, 0);
       lockstep::TcpStore store(lockstep::parse_endpoint(std::getenv("LOCKSTEP_STORE")), settings);
       if (store.add("ranks", 1, deadline) == 3) store.set("all here", "yes", deadline);
       std::printf("rank %d: %s\n", rank, store.get("all here", deadline).c_str());
     }},
    {"sleep",
     [](int rank) {
       ready(rank);
       wait_for_a_signal();
     }},
};

int report_spawn(int argc, char** argv, const Worker& worker, const lockstep::SpawnOptions& options) {
  try {
    lockstep::spawn(argc, argv, worker, options);
  } catch (const lockstep::ProcessFailed& error) {
    std::printf("failed: rank %d code %d signal %d: %s\n", error.rank(), error.exit_code(), error.signal(),
                error.what());
    return 1;
  } catch (const lockstep::Error& error) {
    std::printf("error: %s\n", error.what());
    return 1;
  }
  std::printf("all fine\n");
  return 0;
}

// The ranks of the second job pass by the first call of the same name, and by the one of another name.
int two_jobs(int argc, char** argv) {
  lockstep::spawn(argc, argv, [](int rank) { std::printf("first %d\n", rank); }, {.nprocs = 2});
  lockstep::spawn(argc, argv, [](int rank) { std::printf("other %d\n", rank); }, {.nprocs = 1, .name = "other"});
  lockstep::spawn(argc, argv, [](int rank) { std::printf("second %d\n", rank); }, {.nprocs = 2});
  return 0;
}

int loop(int argc, char** argv) {
  const int before = open_descriptors();
  for (int i = 0; i < 20; ++i) {
    lockstep::spawn(argc, argv, [](int) {}, {.nprocs = 2});
    if (open_descriptors() != before) {
      std::printf("%d descriptors, before %d\n", open_descriptors(), before);
      return 1;
    }
  }
  const bool no_child_left = ::waitpid(-1, nullptr, 0) < 0;
  std::printf(no_child_left ? "nothing left\n" : "a child is left\n");
  return 0;
}

// Starts ranks without waiting for them, and ends as the mode says.
int with_a_handle(int argc, char** argv, const std::string& mode) {
  const Worker worker = [mode](int rank) {
    if (mode == "handle_throw" && rank == 1) throw std::runtime_error("boom");
    if (mode != "handle_fine") wait_for_a_signal();
  };
  lockstep::SpawnHandle handle = lockstep::spawn_async(argc, argv, worker, {.nprocs = 2});
  std::printf("pids %d %d\n", handle.pids().at(0), handle.pids().at(1));
  std::fflush(stdout);
  const auto long_enough = lockstep::Deadline::after(std::chrono::seconds(20));
  try {
    if (mode == "handle_drop") return 0;
    if (mode == "handle_terminate") {
      const bool early = handle.join(lockstep::Deadline::after(std::chrono::milliseconds(50)));
      std::printf("%s\n", early ? "ended" : "still running");
      handle.terminate();
    }
    const bool ended = handle.join(long_enough);
    std::printf("%s\n", ended && handle.join(long_enough) ? "all ended" : "late");
    handle = {};
    return 0;
  } catch (const lockstep::ProcessFailed& error) {
    std::printf("failed: rank %d\n", error.rank());
  }
  try {
    handle.join();
  } catch (const lockstep::ProcessFailed& error) {
    std::printf("again: %s\n", error.what());
  }
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "two_jobs") return two_jobs(argc, argv);
  if (mode == "loop") return loop(argc, argv);
  if (mode.starts_with("handle_")) return with_a_handle(argc, argv, mode);
  if (mode == "elsewhere" && std::getenv("LOCKSTEP_SPAWN") != nullptr && std::string(std::getenv("RANK")) == "1") {
    return 0;
  }
  if (mode == "handler") std::signal(SIGINT, [](int) {});
  const std::string worker = mode == "elsewhere" || mode == "handler" || mode == "prefix" ? "sleep" : mode;
  const bool prefix = mode == "prefix";
  return report_spawn(argc, argv, kWorkers.at(mode == "prefix" ? "fine" : worker),
                      {.nprocs = 3, .grace = std::chrono::milliseconds(300), .prefix_output = prefix});
}
