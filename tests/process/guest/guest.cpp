// A program that does itself what Lockstep does to a process: guest terminate|signals|unwinding|crash|allocator|fork|
// threads|output|spawn. Prints "FAILED: ..." for each expectation that does not hold, and "done" at its end.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/Allocator.h>
#include <pthread.h>
#include <stdio_ext.h>
#include <sys/wait.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <typeinfo>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/world.h"
#include "lockstep/job/launch/spawn.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kLarge = 400;  // a weight of kLarge^2 floats lies in shared memory

void say(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

void expect(bool holds, const std::string& what) {
  if (!holds) say("FAILED: " + what);
}

using Handler = void (*)(int);

Handler handler_of(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler;
}

std::atomic<int> g_signals{0};
void own_handler(int /*signal*/) { ++g_signals; }

// What a child that executes nothing else ends with; -1 if it does not end within 20 s.
int status_of(pid_t child) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (!deadline.expired()) {
      ::usleep(1000);
      continue;
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct Model : torch::nn::Module {
  Model() : layer(register_module("layer", torch::nn::Linear(kLarge, kLarge))) {}
  at::Tensor forward(const at::Tensor& x) {
    if (in_forward) in_forward();
    return layer->forward(x);
  }
  torch::nn::Linear layer;
  std::function<void()> in_forward;
};

using Wrapped = DistributedDataParallel<std::shared_ptr<Model>>;

void train(Wrapped& ddp) {
  for (int step = 0; step < 3; ++step) ddp.forward(at::ones({4, kLarge})).sum().backward();
}

bool is_torchs_engine() {
  return typeid(torch::autograd::Engine::get_default_engine()) == typeid(torch::autograd::Engine);
}

// Each handler goes on to the one before it.
std::terminate_handler g_before_first = nullptr, g_before_second = nullptr;
void first_handler() {
  say("the first handler");
  g_before_first();
}
void second_handler() {
  say("the second handler");
  g_before_second();
}

void terminate_twice() {
  g_before_first = std::set_terminate(first_handler);
  {
    const World world = init_process_group();
    world.barrier();
  }
  expect(std::get_terminate() == first_handler, "the handler of terminate is given back");
  const World world = init_process_group();
  g_before_second = std::set_terminate(second_handler);
  const World other = init_process_group();
  world.barrier();
  if (world.rank() == 0) std::jthread([] { throw std::runtime_error("a mistake in a thread"); });
  try {
    world.barrier();
  } catch (const Error& error) {
    say(error.what());
  }
}

void own_signals() {
  std::signal(SIGINT, own_handler);
  for (int i = 0; i < 2; ++i) {
    const World world = init_process_group();
    expect(!world.stop_requested(), "nobody asked for a stop");
    expect(handler_of(SIGINT) == own_handler, "a handler that was there before stays");
    expect(handler_of(SIGTERM) != SIG_DFL, "SIGTERM is a request meanwhile");
    if (i == 1) std::signal(SIGTERM, own_handler);
    expect(handler_of(SIGPIPE) == SIG_DFL, "SIGPIPE has its default action");
    world.barrier();
    if (i == 1) continue;
    const pid_t child = ::fork();
    if (child == 0) {
      ::raise(SIGHUP);
      ::_exit(0);
    }
    expect(status_of(child) == 128 + SIGHUP, "a child dies of a signal as it would without its parent's World");
  }
  expect(handler_of(SIGHUP) == SIG_DFL, "the default action of SIGHUP is restored");
  expect(handler_of(SIGTERM) == own_handler, "a handler that the program installed meanwhile stays");
  expect(handler_of(SIGINT) == own_handler, "the older handler stays to the end");
  ::raise(SIGTERM);
  ::raise(SIGINT);
  expect(g_signals == 2, "the program's handlers run");
}

// A launcher's SIGTERM arrives before the error has been printed.
void fail_and_be_told_to_stop() {
  try {
    const World world = init_process_group();
    expect(!world.stop_requested(), "nobody asked for a stop");
    throw std::runtime_error("the cause");
  } catch (const std::exception& error) {
    ::raise(SIGTERM);
    say(error.what());
  }
}

struct sigaction g_recorder {};
void chained_crash(int signal, siginfo_t* info, void* context) {
  say("the later handler");
  g_recorder.sa_sigaction(signal, info, context);
}

// A handler from before the World, and one from later that goes on to ours, which goes on to the first.
void crash() {
  std::signal(SIGSEGV, [](int) {
    say("the earlier handler");
    std::_Exit(7);
  });
  const World world = init_process_group();
  struct sigaction action {};
  action.sa_sigaction = chained_crash;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGSEGV, &action, &g_recorder);
  expect((g_recorder.sa_flags & SA_SIGINFO) != 0, "crashes are recorded");
  world.barrier();
  if (world.rank() == 0) ::raise(SIGSEGV);
  world.barrier();
}

// Counts what it hands out, and takes it from torch's.
class OwnAllocator final : public c10::Allocator {
 public:
  explicit OwnAllocator(c10::Allocator* next) : next_(next) {}
  c10::DataPtr allocate(std::size_t bytes) override {
    ++count;
    return next_->allocate(bytes);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
  std::atomic<int> count{0};

 private:
  c10::Allocator* next_;
};

void own_allocator() {
  c10::Allocator* const torchs = c10::GetAllocator(c10::kCPU);
  OwnAllocator& mine = *new OwnAllocator(torchs);
  const World world = init_process_group();
  {
    Wrapped ddp(std::make_shared<Model>(), world);
    expect(!is_torchs_engine(), "backwards that throw are noted meanwhile");
    train(ddp);
    expect(c10::GetAllocator(c10::kCPU) != torchs, "gradients are allocated in shared memory");
    c10::SetAllocator(c10::kCPU, &mine);
    expect(c10::GetAllocator(c10::kCPU) == &mine, "the program's allocator replaces ours");
    const int before = mine.count;
    train(ddp);
    expect(mine.count > before, "the program's allocator is used");
    expect(c10::GetAllocator(c10::kCPU) == &mine, "the program's allocator stays");
  }
  expect(is_torchs_engine(), "torch's engine is given back");
}

int g_at_exit = 0;

// The child frees the tensors that it has from its parent, makes others, and ends as programs do.
[[noreturn]] void be_child(const World& world, std::vector<at::Tensor>& parents) {
  bool is_refused = false;
  try {
    world.barrier();
  } catch (const Error& error) {
    is_refused = error.kind() == ErrorKind::invalid_argument;
  }
  parents.clear();
  const at::Tensor large = at::ones({kLarge, kLarge});
  const bool is_usable = large.sum().item<float>() == kLarge * kLarge;
  g_at_exit = is_refused && is_usable ? 5 : 1;
  std::exit(1);
}

void fork_in_forward() {
  std::atexit([] {
    if (g_at_exit != 0) std::_Exit(g_at_exit);
  });
  const World world = init_process_group();
  auto model = std::make_shared<Model>();
  Wrapped ddp(model, world);
  train(ddp);
  int status = 0;
  model->in_forward = [&] {
    std::vector<at::Tensor> tensors{at::empty({kLarge, kLarge})};
    const pid_t child = ::fork();
    if (child == 0) be_child(world, tensors);
    status = status_of(child);
  };
  ddp.forward(at::ones({4, kLarge})).sum().backward();
  expect(status == 5, "a child ends as it wants: " + std::to_string(status));
  model->in_forward = nullptr;
  train(ddp);
}

std::set<std::string> threads() {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) found.insert(entry.path());
  return found;
}

bool blocks(const std::string& task, int signal) {
  std::ifstream file(task + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("SigBlk:")) return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1) != 0;
  }
  return true;  // it has ended
}

// Threads of ours leave signals to the program's; none but the watch for suspensions is left.
void own_threads() {
  at::ones({kLarge, kLarge}).sum();  // torch's own threads
  const std::set<std::string> before = threads();
  for (int i = 0; i < 2; ++i) {
    const World world = init_process_group({.transport = i == 0 ? "automatic" : "tcp"});
    const at::Tensor tensor = at::ones({10});
    Work work = world.all_reduce_async(tensor);
    work.wait();
    world.barrier();
    std::size_t ours = 0;
    for (const std::string& task : threads()) {
      if (before.contains(task)) continue;
      ++ours;
      for (const int signal : {SIGTERM, SIGUSR1, SIGALRM, SIGRTMIN}) {
        expect(blocks(task, signal), "a thread takes signal " + std::to_string(signal) + " of the program");
      }
    }
    expect(ours > 1, "there are threads of ours");
    world.barrier();
  }
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  while (threads().size() > before.size() + 1 && !deadline.expired()) ::usleep(1000);
  expect(threads().size() <= before.size() + 1,
         std::to_string(threads().size()) + " threads are left of " + std::to_string(before.size()));
}

void own_output() {
  static std::array<char, 12345> buffer;
  std::setvbuf(stdout, buffer.data(), _IOFBF, buffer.size());
  const World world = init_process_group();
  expect(__fbufsize(stdout) == buffer.size() && __flbf(stdout) == 0, "the program's buffer stays");
}

void spawn_beside_own_handlers(int argc, char** argv) {
  std::signal(SIGTERM, own_handler);
  std::signal(SIGHUP, own_handler);
  SpawnHandle handle =
      spawn_async(argc, argv,
                  [](int) {
                    sigset_t blocked;
                    ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
                    expect(::sigismember(&blocked, SIGUSR1) == 0, "ranks do not inherit the block of a thread of ours");
                    std::getchar();  // until the parent ends it
                    ::pause();
                  },
                  {.nprocs = 1});
  expect(handler_of(SIGTERM) != own_handler, "signals are passed on to the ranks meanwhile");
  const pid_t child = ::fork();
  if (child == 0) {
    ::raise(SIGTERM);
    ::_exit(g_signals == 1 && handler_of(SIGTERM) == own_handler ? 0 : 1);
  }
  expect(status_of(child) == 0, "a child has the program's handlers");
  expect(!handle.join(Deadline::after(std::chrono::milliseconds(100))), "its signals do not stop the ranks");
  std::signal(SIGINT, own_handler);
  handle.terminate();
  handle.join();
  handle = {};
  expect(handler_of(SIGTERM) == own_handler && handler_of(SIGHUP) == own_handler, "the handlers are restored");
  expect(handler_of(SIGINT) == own_handler, "a handler that the program installed meanwhile stays");
  expect(handler_of(SIGQUIT) == SIG_DFL, "default actions are restored");
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<void()>> modes{{"terminate", terminate_twice},
                                                           {"signals", own_signals},
                                                           {"unwinding", fail_and_be_told_to_stop},
                                                           {"crash", crash},
                                                           {"allocator", own_allocator},
                                                           {"fork", fork_in_forward},
                                                           {"threads", own_threads},
                                                           {"output", own_output},
                                                           {"spawn", [&] { spawn_beside_own_handlers(argc, argv); }}};
  modes.at(argv[1])();
  say("done");
  return 0;
}
