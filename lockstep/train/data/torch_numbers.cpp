// torch's random operators in a thread that assembles a batch. Every operator with an argument for a generator has a
// kernel under a dispatch key that only such threads include, which inserts the batch's generator and calls the
// operator's own. Operators without that argument (dropout, randn_like, ...) are composed of such. Other threads, and
// all other operators, pay nothing.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/train/data/batch_numbers.h"

namespace lockstep::internal {

struct BatchNumbers::Generators {
  std::vector<at::Generator> all;  // one a device
};

namespace {

// A mode of torch's own tests: above all others, included by nothing else.
constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
const c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kKey);

BatchNumbers& numbers_for(const c10::OperatorHandle& op) {
  auto* numbers = BatchNumbers::of_this_thread();
  if (numbers != nullptr) return *numbers;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("a dataset draws random numbers ({}) in a task that it started in get_batch(), where their "
                          "order is not deterministic: draw them in get_batch() itself, or pass the operator a "
                          "separate generator for the task, seeded from lockstep::batch_seed()",
                          op.schema().name()));
}

bool has_index(at::Device device) { return device.is_cpu() || device.has_index(); }

// The device of an operator: that of its first tensor, or else its `device` argument.
at::Device device_of(const c10::FunctionSchema& schema, std::span<const c10::IValue> values) {
  at::Device device = at::kCPU;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i].isTensor() && values[i].toTensor().defined()) return values[i].toTensor().device();
    if (values[i].isDevice() && schema.arguments()[i].name() == "device") device = values[i].toDevice();
  }
  if (has_index(device) || device.is_meta()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

at::Generator generator_for(BatchNumbers& numbers, at::Device device) {
  auto& all = numbers.generators().all;
  const auto found =
      std::ranges::find_if(all, [device](const at::Generator& generator) { return generator.device() == device; });
  if (found != all.end()) return *found;
  at::Generator generator =
      device.is_cpu() ? at::detail::createCPUGenerator(numbers.seed())
                      : at::globalContext().getAcceleratorHooksInterface(device.type()).getNewGenerator(device.index());
  if (!device.is_cpu()) generator.set_current_seed(numbers.seed());
  return all.emplace_back(std::move(generator));
}

bool is_default(const at::Generator& generator) {
  return generator == at::globalContext().defaultGenerator(generator.device());
}

std::span<c10::IValue> arguments_of(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  return std::span(stack).last(op.schema().arguments().size());
}

// Of an operator that takes a generator.
class DrawOwn : public c10::OperatorKernel {
 public:
  explicit DrawOwn(std::size_t argument) : argument_(argument) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const auto values = arguments_of(op, *stack);
    c10::IValue& generator = values[argument_];
    if (generator.isNone() || is_default(generator.toGenerator())) {
      const at::Device device = device_of(op.schema(), values);
      if (!device.is_meta()) generator = generator_for(numbers_for(op), device);
    }
    op.redispatchBoxed(keys & kBelow, stack);
  }

 private:
  const std::size_t argument_;
};

bool can_draw(const c10::FunctionSchema& schema, std::span<const c10::IValue> values) {
  constexpr std::array<std::string_view, 3> kShares{"p", "dropout", "dropout_p"};
  constexpr std::array<std::string_view, 3> kModes{"train", "training", "is_training"};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto& name = schema.arguments()[i].name();
    if (values[i].isDouble() && values[i].toDouble() == 0 && std::ranges::count(kShares, name) != 0) return false;
    if (values[i].isBool() && !values[i].toBool() && std::ranges::count(kModes, name) != 0) return false;
  }
  return true;
}

// Of an operator that has no argument for a generator, and a kernel for GPUs that draws from the default one.
void refuse_on_gpu(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto values = arguments_of(op, *stack);
  const at::Device device = device_of(op.schema(), values);
  if (!device.is_cpu() && !device.is_meta() && can_draw(op.schema(), values)) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("a dataset calls {} on {} in get_batch(), which uses the random generator of the training "
                            "loop: draw with bernoulli_() instead, on the CPU, or in the training loop",
                            op.schema().name(), device.str()));
  }
  op.redispatchBoxed(keys & kBelow, stack);
}

std::size_t generator_argument(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  const auto found = std::ranges::find_if(arguments, [](const c10::Argument& argument) {
    return argument.type()->isSubtypeOf(*c10::OptionalType::create(c10::GeneratorType::get()));
  });
  return static_cast<std::size_t>(found - arguments.begin());
}

void add_kernels(torch::Library& library, std::string_view ours) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || op->schema().getNamespace() != ours) continue;
    const std::size_t argument = generator_argument(op->schema());
    const std::string full = c10::toString(name);
    if (argument < op->schema().arguments().size()) {
      library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<DrawOwn>(argument)));
    } else if (op->hasTag(at::Tag::nondeterministic_seeded) && op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) {
      library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&refuse_on_gpu>());
    }
  }
}

// OpenMP's, of this thread: at::set_num_threads() would also set the initial number of other threads.
struct OpenMp {
  int (*get)() = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  void (*set)(int) = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
};

const OpenMp& open_mp() {
  static const OpenMp functions;
  return functions;
}

}  // namespace

BatchNumbers::BatchNumbers(std::uint64_t seed) : seed_(seed), outer_(of_this_thread()) {
  of_this_thread() = this;
  if (outer_ != nullptr) return;
  c10::impl::tls_set_dispatch_key_included(kKey, true);
  at::get_num_threads();  // a thread's first call sets how many it has
  if (open_mp().get == nullptr || open_mp().set == nullptr) return;
  threads_before_ = open_mp().get();
  open_mp().set(1);
}

BatchNumbers::~BatchNumbers() {
  of_this_thread() = outer_;
  if (outer_ != nullptr) return;
  c10::impl::tls_set_dispatch_key_included(kKey, false);
  if (threads_before_ > 0) open_mp().set(threads_before_);
}

BatchNumbers::Generators& BatchNumbers::generators() {
  if (!generators_) generators_ = std::make_unique<Generators>();
  return *generators_;
}

}  // namespace lockstep::internal

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(lockstep::internal::kKey)) return;
  library.fallback(torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, library) { lockstep::internal::add_kernels(library, "aten"); }
