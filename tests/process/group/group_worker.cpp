// One rank of a test with real processes:
//   group_worker barriers N | all_reduce ELEMENTS | wait_for RANK | throw RANK | uncaught RANK | refuse RANK
//                | mismatch | sums | parts | splits | poor_part | crowded | train STEPS | lockstep_mode SHARDS | listen
//                RANK | late_backward RANK
//   group_worker host SCENARIO [NUMBER]   for each line "RANK PORT" of standard input, forks a rank of a job of two
// TEST_JOIN_MS and TEST_CALL_MS bound joining and each collective; TEST_ADDRESSES_MIB, the addresses that a rank may
// take beyond those that it has: while it joins, and during `splits`. Every line begins with the rank. A failure is
// printed as "error <kind> <monotonic seconds> <seconds in the call> <text>"; the exit status is then 3.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <sys/resource.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/hash.h"
#include "lockstep/comm/group/world.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"

namespace {

using lockstep::Error;
using lockstep::ErrorKind;
using lockstep::World;

lockstep::TimePoint last_call;  // when the newest collective began

void say(const std::string& line) {
  const char* rank = std::getenv("RANK");
  const std::string text = fmt::format("{} {}\n", rank == nullptr ? "-" : rank, line);
  if (::write(STDOUT_FILENO, text.data(), text.size()) < 0) std::_Exit(4);
}

void say_running() { say(fmt::format("running {}", ::getpid())); }

template <class Call>
void collective(Call call) {
  last_call = lockstep::steady_clock().now();
  call();
}

void require(bool fine, const std::string& what) {
  if (!fine) throw Error(ErrorKind::internal, what);
}

void barriers(const World& world, std::int64_t rounds) {
  const auto start = lockstep::steady_clock().now();
  for (std::int64_t i = 0; rounds == 0 || i < rounds; ++i) {
    collective([&] { world.barrier(); });
    if (i == 0) say_running();
  }
  say(fmt::format("done {:.3f}", lockstep::seconds(lockstep::steady_clock().now() - start)));
}

void all_reduce_for_ever(const World& world, std::int64_t elements) {
  const at::Tensor tensor = at::zeros({elements});
  const float sum = static_cast<float>(world.size() * (world.size() + 1)) / 2;
  for (bool first = true;; first = false) {
    tensor.fill_(world.rank() + 1);
    collective([&] { world.group().all_reduce(tensor); });
    const auto* values = tensor.const_data_ptr<float>();
    require(values[0] == sum && values[elements / 2] == sum && values[elements - 1] == sum, "a wrong sum");
    if (first) say_running();
  }
}

void wait_for(const World& world, int absent) {
  say_running();
  while (world.rank() == absent) ::pause();
  collective([&] { world.group().all_reduce(at::zeros({1000})); });
}

// The last barrier is held up by a rank that waits for a line.
void listen(const World& world, int listener) {
  say_running();
  collective([&] { world.barrier(); });
  say("in the last barrier");
  std::string line;
  if (world.rank() == listener) std::getline(std::cin, line);
  collective([&] { world.barrier(); });
  say("went on");
}

void throw_in(const World& world, int thrower) {
  for (;;) {
    collective([&] { world.barrier(); });
    if (world.rank() == thrower) throw std::runtime_error("a mistake in the program");
  }
}

// Nobody catches it.
void throw_from_thread(const World& world, int thrower) {
  for (;;) {
    collective([&] { world.barrier(); });
    if (world.rank() == thrower) std::thread([] { throw std::runtime_error("a mistake in a thread"); }).join();
  }
}

void refuse(const World& world, int odd) {
  for (;;) {
    collective([&] { world.barrier(); });
    collective([&] { world.group().all_reduce(world.rank() == odd ? at::Tensor() : at::zeros({4})); });
  }
}

void report(const Error& error) {
  const auto now = lockstep::steady_clock().now();
  say(fmt::format("error {} {:.6f} {:.6f} {}", to_string(error.kind()), lockstep::seconds(now.time_since_epoch()),
                  lockstep::seconds(now - last_call), error.what()));
}

// Ends well: a rank that left by an exception would end the last call of those who are still in it.
void mismatch(const World& world) {
  try {
    collective([&] { world.group().all_reduce(at::zeros({4 + world.rank()})); });
  } catch (const Error& error) {
    try {
      world.group().all_reduce(at::ones({4}));
      require(false, "the group works on");
    } catch (const Error& again) {
      require(std::string(again.what()) == error.what(), again.what());
    }
    report(error);
  }
}

void sums(const World& world) {
  const int factor = world.size() * (world.size() + 1) / 2;
  for (const auto type : {at::kFloat, at::kDouble, at::kInt, at::kLong}) {
    for (const std::int64_t elements : {1, 1000, 1000003}) {
      const at::Tensor numbers = at::arange(elements, at::TensorOptions().dtype(type));
      const at::Tensor mine = numbers * (world.rank() + 1);
      world.group().all_reduce(mine);
      require(at::equal(mine, numbers * factor), fmt::format("a wrong sum of {} {}", elements, c10::toString(type)));
    }
  }
  say(fmt::format("right over {}", world.group().transport()));
}

// Its gradients are both larger and smaller than what is kept in shared memory.
struct Net : torch::nn::Module {
  Net()
      : first(register_module("first", torch::nn::Linear(40, 500))),
        second(register_module("second", torch::nn::Linear(500, 7))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = first->forward(x).relu();
    if (between) hidden.register_hook([this](const at::Tensor&) { between(); });
    return second->forward(hidden);
  }
  torch::nn::Linear first, second;
  std::function<void()> between;  // in a backward, when only the second layer is done
};

void train(const World& world, std::int64_t steps) {
  at::manual_seed(100 + static_cast<std::uint64_t>(world.rank()));  // other weights and other data on every rank
  lockstep::DistributedDataParallel ddp(std::make_shared<Net>(), world.group(), {.bucket_cap_mb = 0.02});
  for (std::int64_t step = 0; step < steps; ++step) {
    ddp.zero_grad();
    ddp(at::randn({8, 40})).square().mean().backward();
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : ddp.parameters()) parameter.sub_(parameter.grad(), 0.1);
  }
  std::string bits;
  for (const at::Tensor& parameter : ddp.parameters()) {
    bits.append(static_cast<const char*>(parameter.const_data_ptr()), parameter.nbytes());
  }
  say(fmt::format("hash {:016x} over {}", lockstep::internal::hash_of(bits), world.group().transport()));
}

// In the third backward a rank waits for a line before it reduces the gradients of its first layer.
void late_backward(const World& world, int late) {
  const auto net = std::make_shared<Net>();
  lockstep::DistributedDataParallel ddp(net, world.group(), {.bucket_cap_mb = 0.01});
  for (int step = 0; step < 3; ++step) {
    if (step == 2) say_running();
    if (step == 2 && world.rank() == late) {
      net->between = [] {
        std::string line;
        std::getline(std::cin, line);
      };
    }
    ddp.zero_grad();
    const at::Tensor loss = ddp(at::randn({8, 40})).square().mean();
    collective([&] { loss.backward(); });
  }
}

void enter_lockstep_mode(const World& world, int shards) {
  collective([&] { world.group().barrier(); });  // rank 0 has the store: if it is refused, the others are there already
  const lockstep::DistributedDataParallel ddp(std::make_shared<Net>(), world.group(), {.lockstep = {.shards = shards}});
  say(fmt::format("lockstep mode over {}", world.group().transport()));
}

lockstep::Duration milliseconds_of(const char* variable) {
  const char* text = std::getenv(variable);
  return std::chrono::milliseconds(text == nullptr ? 30000 : std::atoi(text));
}

void expect_sum(const lockstep::ProcessGroup& group, double mine, double sum) {
  const at::Tensor value = at::full({1000}, mine);
  collective([&] { group.all_reduce(value); });
  require(at::equal(value, at::full({1000}, sum)), "a wrong sum");
}

// Of four ranks: even and odd ones, and ranks 3, 1, 0 in this order; all in use at once, with messages between them.
void parts(const World& world) {
  const lockstep::ProcessGroup& all = world.group();
  const auto half = all.split(world.rank() % 2);
  const auto three = all.new_group({3, 1, 0});
  require(half.has_value() && half->size() == 2 && half->rank() == world.rank() / 2, "a wrong half");
  require(three.has_value() == (world.rank() != 2), "new_group with wrong members");
  if (three) require(three->rank() == (world.rank() == 3 ? 0 : world.rank() == 1 ? 1 : 2), "a wrong order of members");
  const auto quarter = half->split(world.rank() < 2 ? 5 : -1);
  require(quarter.has_value() == (world.rank() < 2), "a negative color has a group");
  for (int i = 0; i < 50; ++i) {
    const at::Tensor slow = at::full({100'000}, 1.0 + world.rank());
    const lockstep::Work work = all.all_reduce_async(slow);
    expect_sum(*half, world.rank(), world.rank() % 2 == 0 ? 2 : 4);
    if (three) expect_sum(*three, world.rank(), 4);
    if (quarter) expect_sum(*quarter, world.rank(), world.rank());
    const at::Tensor from_left = at::zeros({i * 2000});
    const lockstep::Work received = all.recv_async(from_left, (world.rank() + 3) % 4);
    all.send(at::full({i * 2000}, 1.0 * world.rank()), (world.rank() + 1) % 4);
    received.wait();
    require(at::equal(from_left, at::full({i * 2000}, 1.0 * ((world.rank() + 3) % 4))), "a wrong message");
    work.wait();
    require(at::equal(slow, at::full({100'000}, 10.0)), "a wrong sum of all");
  }
  const auto disagree = [&](auto&& call) {
    const lockstep::ProcessGroup copy = *all.split(0);
    try {
      call(copy);
      require(false, "ranks that disagree made a group");
    } catch (const Error& error) {
      require(error.kind() == ErrorKind::desync, error.what());
    }
  };
  using Group = lockstep::ProcessGroup;
  disagree([&](const Group& group) {
    group.new_group(world.rank() == 0 ? std::vector<int>{0, 1} : std::vector<int>{0, 2});
  });
  disagree([&](const Group& group) { world.rank() == 0 ? static_cast<void>(group.split(0)) : group.barrier(); });
  expect_sum(*all.split(0), world.rank(), 6);  // they have not lost count
  say(fmt::format("parts right over {}", half->transport()));
}

rlim_t mapped_bytes() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<rlim_t>(::getpagesize());
}

void limit_softly(__rlimit_resource resource, rlim_t most) {
  rlimit limit{};
  require(::getrlimit(resource, &limit) == 0, "a limit cannot be read");
  limit.rlim_cur = std::min(most, limit.rlim_max);
  require(::setrlimit(resource, &limit) == 0, "a limit cannot be set");
}

// A tensor of the group is one of all groups that are split off.
void splits(const World& world) {
  const lockstep::ProcessGroup& all = world.group();
  const at::Tensor tensor = all.empty({100'000});
  std::vector<lockstep::ProcessGroup> parts;
  std::string over;
  for (int i = 0; i < 6; ++i) {
    parts.push_back(*all.split(0, -world.rank()));
    require(parts.back().is_shared(tensor), "the tensor is not in the memory of a part");
    tensor.fill_(1 + world.rank());
    collective([&] { parts.back().all_reduce(tensor); });
    require(at::equal(tensor, at::full({100'000}, world.size() * (world.size() + 1) / 2.0)), "a wrong sum");
    over += fmt::format("{}{}", over.empty() ? "" : ", ", parts.back().transport());
  }
  say(fmt::format("{}: {}", all.transport(), over));
}

// Rank 2 may make no memory file for the part that it is the first of.
void poor_part(const World& world) {
  if (world.rank() == 2) limit_softly(RLIMIT_FSIZE, 1 << 20);
  const auto part = world.group().new_group({2, 0});
  if (part) expect_sum(*part, 1, 2);
  say(fmt::format("a part over {}", part ? part->transport() : "nothing"));
}

// Rank 1 may open few descriptors more, which a part with connections of its own needs.
void crowded(const World& world) {
  if (world.rank() == 1) {
    const int next = ::dup(STDOUT_FILENO);
    ::close(next);
    const rlim_t most = static_cast<rlim_t>(next) + 1;
    const rlimit limit{.rlim_cur = most, .rlim_max = most};
    require(::setrlimit(RLIMIT_NOFILE, &limit) == 0, "no limit on descriptors");
  }
  collective([&] { world.group().split(0, 0, {.connections = 2}); });
}

void run(const std::string& scenario, std::int64_t number) {
  lockstep::InitOptions options;
  options.join_timeout = milliseconds_of("TEST_JOIN_MS");
  options.timeout = milliseconds_of("TEST_CALL_MS");
  const char* addresses = std::getenv("TEST_ADDRESSES_MIB");
  if (addresses != nullptr) limit_softly(RLIMIT_AS, mapped_bytes() + (std::strtoull(addresses, nullptr, 10) << 20));
  last_call = lockstep::steady_clock().now();
  const World world = lockstep::init_process_group(options);
  if (scenario == "splits") return splits(world);
  if (addresses != nullptr) limit_softly(RLIMIT_AS, RLIM_INFINITY);
  if (scenario == "barriers") return barriers(world, number);
  if (scenario == "all_reduce") return all_reduce_for_ever(world, number);
  if (scenario == "wait_for") return wait_for(world, static_cast<int>(number));
  if (scenario == "listen") return listen(world, static_cast<int>(number));
  if (scenario == "throw") return throw_in(world, static_cast<int>(number));
  if (scenario == "uncaught") return throw_from_thread(world, static_cast<int>(number));
  if (scenario == "refuse") return refuse(world, static_cast<int>(number));
  if (scenario == "mismatch") return mismatch(world);
  if (scenario == "sums") return sums(world);
  if (scenario == "parts") return parts(world);
  if (scenario == "crowded") return crowded(world);
  if (scenario == "poor_part") return poor_part(world);
  if (scenario == "train") return train(world, number);
  if (scenario == "late_backward") return late_backward(world, static_cast<int>(number));
  if (scenario == "lockstep_mode") return enter_lockstep_mode(world, static_cast<int>(number));
  throw Error(ErrorKind::invalid_argument, "there is no scenario " + scenario);
}

int run_and_report(const std::string& scenario, std::int64_t number) {
  try {
    run(scenario, number);
    return 0;
  } catch (const Error& error) {
    report(error);
  } catch (const std::exception& error) {
    say(fmt::format("raised {}", error.what()));
  }
  return 3;
}

// Forked ranks begin at once, where started ones have to load libtorch first.
int host(const std::string& scenario, std::int64_t number) {
  std::signal(SIGCHLD, SIG_IGN);
  std::string rank, port;
  while (std::cin >> rank >> port) {
    if (::fork() != 0) continue;
    ::setenv("RANK", rank.c_str(), 1);
    ::setenv("WORLD_SIZE", "2", 1);
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", port.c_str(), 1);
    std::_Exit(run_and_report(scenario, number));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool hosting = argc > 1 && std::string(argv[1]) == "host";
  const int first = hosting ? 2 : 1;
  const std::string scenario = argc > first ? argv[first] : "";
  const std::int64_t number = argc > first + 1 ? std::atoll(argv[first + 1]) : 0;
  return hosting ? host(scenario, number) : run_and_report(scenario, number);
}
