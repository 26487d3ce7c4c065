#include "tests/fuzz/fuzz.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <memory>

#include "lockstep/base/clock.h"
#include "tests/support/sanitized.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>

extern "C" __attribute__((visibility("default"))) const char* __asan_default_options();

// Parsers allocate little and free it at once: most of the sanitizer's time would go into the stack of each allocation
// and into memory that has just been freed and is kept for long. A run of one input shows whole stacks with
// ASAN_OPTIONS=malloc_context_size=30.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1:malloc_context_size=2:quarantine_size_mb=4:thread_local_quarantine_size_kb=256:"
         "max_malloc_fill_size=0";
}

// Of the sanitizer's allocator; g++ comes without the header that declares them.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, std::size_t),
                                                         void (*on_free)(const volatile void*));
extern "C" std::size_t __sanitizer_get_allocated_size(const volatile void* memory);
#endif

namespace lockstep::fuzz {

namespace {

constexpr int kPatienceSeconds = 20;  // of computing, for kBlock inputs
constexpr std::uint64_t kBlock = 512;

// What is under way, for handlers of signals.
const char* g_name = "";
std::uint64_t g_seed = 0;
volatile std::uint64_t g_case = 0;

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::uint64_t default_cases() {
#if defined(__SANITIZE_ADDRESS__)
  return 100'000;
#else
  return 5'000;
#endif
}

std::string how_to_repeat() {
  char text[256];
  std::snprintf(text, sizeof text,
                "fuzz: input %llu for '%s'; to have it again: LOCKSTEP_FUZZ_SEED=%llu "
                "LOCKSTEP_FUZZ_CASE=%llu <this program> -tc='*%s*'\n",
                static_cast<unsigned long long>(g_case), g_name, static_cast<unsigned long long>(g_seed),
                static_cast<unsigned long long>(g_case), g_name);
  return text;
}

void say_how_to_repeat() {
  const std::string text = how_to_repeat();
  [[maybe_unused]] const ssize_t written = ::write(2, text.data(), text.size());
}

extern "C" void on_signal(int signal) {
  say_how_to_repeat();
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

// Memory that the parser, which is one thread, holds and has held at most.
std::size_t g_live = 0;
std::size_t g_peak = 0;
bool g_measures = false;

#if defined(__SANITIZE_ADDRESS__)
void on_malloc(const volatile void*, std::size_t bytes) {
  if (!g_measures) return;
  g_live += bytes;
  g_peak = std::max(g_peak, g_live);
}
void on_free(const volatile void* memory) {
  if (!g_measures || memory == nullptr) return;
  const std::size_t bytes = __sanitizer_get_allocated_size(memory);
  g_live -= std::min(bytes, g_live);  // what was there before is not counted
}
#endif

void prepare() {
  static const bool once = [] {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
    __sanitizer_set_death_callback(say_how_to_repeat);
#else
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT}) ::signal(signal, on_signal);
#endif
    ::signal(SIGVTALRM, on_signal);
    return true;
  }();
  static_cast<void>(once);
}

// Ends the program if it computes for longer; 0: no more.
void watch(int patience_seconds) {
  itimerval timer{};
  timer.it_value.tv_sec = patience_seconds;
  ::setitimer(ITIMER_VIRTUAL, &timer, nullptr);
}

std::uint64_t interesting_number(Random& random, std::size_t input_bytes) {
  static constexpr std::uint64_t kNumbers[] = {0,
                                               1,
                                               2,
                                               3,
                                               4,
                                               7,
                                               8,
                                               15,
                                               16,
                                               31,
                                               32,
                                               63,
                                               64,
                                               65,
                                               127,
                                               128,
                                               255,
                                               256,
                                               1023,
                                               1024,
                                               4095,
                                               4096,
                                               32767,
                                               32768,
                                               65535,
                                               65536,
                                               1 << 20,
                                               8 << 20,
                                               (8 << 20) + 1,
                                               16 << 20,
                                               1 << 30,
                                               0x7fffffff,
                                               0x80000000,
                                               0xffffffff,
                                               std::uint64_t{1} << 32,
                                               std::uint64_t{1} << 40,
                                               std::uint64_t{1} << 60,
                                               std::uint64_t{1} << 62,
                                               0x7fffffffffffffff,
                                               0x8000000000000000,
                                               ~std::uint64_t{0}};
  const std::uint64_t number = kNumbers[random.below(std::size(kNumbers))];
  switch (random.below(4)) {
    case 0: return input_bytes + random.below(9) - 4;
    case 1: return ~number;  // small negative ones
    default: return number;
  }
}

// A number of `width` bytes within the input; little-endian three times of four.
void put_number(Bytes& input, std::size_t at, std::size_t width, std::uint64_t number, bool is_big) {
  for (std::size_t i = 0; i < width; ++i) {
    const std::size_t place = is_big ? width - 1 - i : i;
    input[at + place] = static_cast<char>(number >> (8 * i) & 0xff);
  }
}

std::uint64_t number_at(const Bytes& input, std::size_t at, std::size_t width, bool is_big) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < width; ++i) {
    const std::size_t place = is_big ? width - 1 - i : i;
    number |= std::uint64_t{static_cast<unsigned char>(input[at + place])} << (8 * i);
  }
  return number;
}

void change_number(Bytes& input, Random& random) {
  const std::size_t width = std::size_t{1} << random.below(4);
  if (input.size() < width) return;
  std::size_t at = random.below(input.size() - width + 1);
  if (random.one_in(2)) at = at / width * width;
  const bool is_big = random.one_in(4);
  const std::uint64_t number = random.one_in(2) ? interesting_number(random, input.size())
                                                : number_at(input, at, width, is_big) + random.below(17) - 8;
  put_number(input, at, width, number, is_big);
}

// Some bytes of the input, from anywhere.
Bytes piece_of(const Bytes& input, Random& random) {
  const std::size_t begin = random.below(input.size() + 1);
  return input.substr(begin, random.one_in(8) ? random.below(input.size() + 1) : 1 + random.below(16));
}

void mutate_once(const Subject& subject, Bytes& input, Random& random) {
  const std::size_t at = random.below(input.size());
  const std::size_t gap = random.below(input.size() + 1);
  switch (random.below(12)) {
    case 0:
    case 1:
      if (!input.empty()) input[at] = static_cast<char>(input[at] ^ (1 << random.below(8)));
      return;
    case 2:
      if (!input.empty()) input[at] = static_cast<char>(random.next());
      return;
    case 3:
    case 4:
    case 5: return change_number(input, random);
    case 6: return input.resize(gap);
    case 7: input.erase(gap, random.one_in(4) ? random.below(input.size() + 1) : 1 + random.below(8)); return;
    case 8: input.insert(gap, piece_of(input, random)); return;
    case 9: {
      const Bytes piece = piece_of(input, random);
      input.replace(gap, piece.size(), piece);
      return;
    }
    case 10: {
      const Bytes& other = subject.seeds[random.below(subject.seeds.size())];
      input.resize(gap);
      input += other.substr(random.below(other.size() + 1));
      return;
    }
    default: {
      if (subject.words.empty()) return change_number(input, random);
      const Bytes& word = subject.words[random.below(subject.words.size())];
      input.replace(gap, random.one_in(2) ? word.size() : 0, word);
      return;
    }
  }
}

std::string hex(ByteView bytes) {
  std::string text;
  for (const unsigned char byte : bytes.substr(0, 512)) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%02x ", byte);
    text += digits;
  }
  return text + (bytes.size() > 512 ? "..." : "");
}

// What is wrong with how the parser took the input; empty if nothing is. `accepted` counts.
std::string verdict(const Subject& subject, const Bytes& input, std::uint64_t& accepted) {
  // In memory of its own, so that the sanitizer sees a byte that is read behind its end.
  const auto bytes = std::make_unique_for_overwrite<char[]>(input.size());
  input.copy(bytes.get(), input.size());
  g_live = 0;
  g_peak = 0;
  g_measures = true;
  std::string problem;
  try {
    subject.parse({bytes.get(), input.size()});
    ++accepted;
  } catch (const Error& error) {
    g_measures = false;
    if (std::ranges::find(subject.kinds, error.kind()) == subject.kinds.end()) {
      problem = "an Error of kind " + std::string(to_string(error.kind())) + ": " + error.what();
    }
  } catch (const std::exception& error) {
    g_measures = false;
    problem = std::string("an exception that is no Error: ") + error.what();
  }
  g_measures = false;
  const std::size_t limit = subject.memory_limit + 8 * input.size();
  if (problem.empty() && g_peak > limit) {
    problem = "it took " + std::to_string(g_peak) + " bytes of memory, the limit is " + std::to_string(limit);
  }
  return problem;
}

}  // namespace

Bytes mutated(const Subject& subject, Random& random) {
  Bytes input = subject.seeds[random.below(subject.seeds.size())];
  const std::size_t times = random.one_in(16) ? 1 + random.below(32) : 1 + random.below(4);
  for (std::size_t i = 0; i < times; ++i) mutate_once(subject, input, random);
  if (input.size() > subject.most_bytes) input.resize(subject.most_bytes);
  if (subject.repair && random.one_in(2)) subject.repair(input, random);
  return input;
}

void run(const Subject& subject) {
  prepare();
  g_name = subject.name.c_str();
  g_seed = number_from("LOCKSTEP_FUZZ_SEED", 1);
  const bool is_one = std::getenv("LOCKSTEP_FUZZ_CASE") != nullptr;
  const std::uint64_t first = number_from("LOCKSTEP_FUZZ_CASE", 0);
  const std::uint64_t end = is_one ? first + 1 : number_from("LOCKSTEP_TEST_CASES", default_cases());
  const double limit_seconds = static_cast<double>(number_from("LOCKSTEP_FUZZ_SECONDS", 1'000'000));
  const TimePoint start = steady_clock().now();
  std::uint64_t accepted = 0;
  for (const Bytes& seed : subject.seeds) {
    CHECK(verdict(subject, seed, accepted) == "");
  }
  if (subject.seeds_are_right) CHECK(accepted == subject.seeds.size());
  accepted = 0;
  std::uint64_t done = 0;
  for (g_case = first; g_case < end; g_case = g_case + 1, ++done) {
    if (done % kBlock == 0) {
      watch(kPatienceSeconds);
      if (seconds(steady_clock().now() - start) > limit_seconds) break;
    }
    Random random(g_seed * 0x9e3779b97f4a7c15ULL + g_case * 0xd1342543de82ef95ULL);
    const Bytes input = mutated(subject, random);
    if (is_one) std::fprintf(stderr, "fuzz: %zu bytes: %s\n", input.size(), hex(input).c_str());
    const std::string problem = verdict(subject, input, accepted);
    if (problem.empty()) continue;
    const std::string failure = how_to_repeat() + problem + "\n" + hex(input);
    FAIL(failure);
  }
  watch(0);
  std::printf("fuzz: %s: %llu inputs, %llu of them accepted, %.1f s\n", subject.name.c_str(),
              static_cast<unsigned long long>(done), static_cast<unsigned long long>(accepted),
              seconds(steady_clock().now() - start));
  std::fflush(stdout);
}

}  // namespace lockstep::fuzz
