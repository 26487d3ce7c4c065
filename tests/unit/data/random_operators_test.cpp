// Every random operator of torch, within a batch's numbers and without.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <doctest/doctest.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "lockstep/train/data/batch_numbers.h"
#include "tests/support/expect_error.h"

namespace random_operators_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

using torch::jit::Stack;

at::Generator own_generator() { return at::make_generator<at::CPUGeneratorImpl>(1); }

at::Tensor state_of(const at::Generator& generator) { return generator.get_state(); }
at::Tensor default_state() { return state_of(at::detail::getDefaultCPUGenerator()); }

struct Operator {
  c10::OperatorHandle handle;
  std::string name;  // with the overload's
};

// Those that say that they draw, and those that take a generator.
std::vector<Operator> random_operators() {
  std::vector<Operator> all;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || op->schema().getNamespace() != "aten") continue;
    bool draws = op->hasTag(at::Tag::nondeterministic_seeded);
    for (const auto& argument : op->schema().arguments()) {
      draws = draws || argument.type()->str().find("Generator") != std::string::npos;
    }
    if (draws) all.push_back({*op, c10::toString(name).substr(6)});
  }
  return all;
}

// A value that suits what an operator calls its argument: probabilities, and shapes of 4 x 4.
c10::IValue value_for(const std::string& op, const c10::Argument& argument) {
  static const std::map<std::string, c10::IValue> by_name{
      {"p", 0.5},     {"dropout_p", 0.5}, {"high", 1000}, {"to", 1000},   {"low", 1},      {"from", 1},
      {"n", 64},      {"num_samples", 2}, {"lower", 0.1}, {"upper", 0.3}, {"train", true}, {"training", true},
      {"lambd", 1.5}, {"sigma", 1.5},     {"median", 0.}, {"mean", 0.5},  {"std", 1.5},    {"dropout", 0.5}};
  const std::string type = argument.type()->str();
  if (type == "Tensor") {
    if (op.starts_with("randint_like.Tensor") && argument.name() == "high") return at::full({}, 1000);
    if (op.starts_with("randperm")) return at::empty({0}, at::kLong);
    if (op.starts_with("multinomial") && argument.name() == "out") return at::empty({0}, at::kLong);
    if (op.starts_with("native_dropout") && argument.name() == "out1") return at::empty({4, 4}, at::kBool);
    if (op.starts_with("binomial") && argument.name() == "count") return at::full({4, 4}, 100.0);
    if (op == "scaled_dot_product_attention" || op.starts_with("_scaled_dot_product_attention")) {
      return at::full({1, 1, 4, 4}, 0.5);
    }
    if (op.find("feature_") != std::string::npos) return at::full({2, 32, 4}, 0.5);
    if (op.starts_with("_fused_dropout") && argument.name() == "out1") return at::empty({4, 4}, at::kByte);
    if (op.starts_with("rrelu")) return at::full({4, 4}, -0.5);
    return at::full({4, 4}, 0.5);
  }
  if (type.starts_with("Generator")) return {};
  if (const auto found = by_name.find(argument.name()); found != by_name.end()) {
    const c10::IValue& value = found->second;
    const bool is_whole = type.find("int") != std::string::npos || type.find("Int") != std::string::npos;
    if (is_whole && value.isDouble()) return 1;
    if (type == "float" && value.isInt()) return static_cast<double>(value.toInt());
    return value;
  }
  if (argument.default_value()) return *argument.default_value();
  if (type.find("List[int]") != std::string::npos || type.find("int[]") != std::string::npos ||
      type.find("SymInt[]") != std::string::npos) {
    return std::vector<std::int64_t>{4, 4};
  }
  return {};
}

Stack arguments_for(const Operator& op) {
  Stack stack;
  for (const auto& argument : op.handle.schema().arguments()) stack.push_back(value_for(op.name, argument));
  return stack;
}

// LSTMs and the like, two layers with dropout between them.
Stack recurrent_arguments(const std::string& name) {
  const bool is_lstm = name.starts_with("lstm");
  const int gates = is_lstm ? 4 : name.starts_with("gru") ? 3 : 1;
  const at::Tensor state = at::full({2, 2, 4}, 0.1);
  std::vector<at::Tensor> weights;
  for (int layer = 0; layer < 2; ++layer) {
    for (int part = 0; part < 2; ++part) weights.push_back(at::full({gates * 4, 4}, 0.3));
  }
  const c10::IValue start = is_lstm ? c10::IValue(std::vector<at::Tensor>{state, state}) : c10::IValue(state);
  if (name.ends_with("data")) {
    return {at::full({6, 4}, 0.5), at::full({3}, 2, at::kLong), start, weights, false, 2, 0.5, true, false};
  }
  return {at::full({3, 2, 4}, 0.5), start, weights, false, 2, 0.5, true, false, false};
}

Stack called(const Operator& op) {
  const bool is_recurrent = op.name.ends_with(".data") || op.name.ends_with(".input");
  Stack stack = is_recurrent ? recurrent_arguments(op.name) : arguments_for(op);
  op.handle.callBoxed(stack);
  return stack;
}

bool equal(const Stack& left, const Stack& right) {
  if (left.size() != right.size()) return false;
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (left[i].isTensor() && !at::equal(left[i].toTensor(), right[i].toTensor())) return false;
  }
  return true;
}

// For GPUs alone, without a kernel for the CPU.
bool is_of_devices(const std::string& name) {
  for (const char* part :
       {"cudnn", "miopen", "_mps", "efficient_attention", "mem_eff", "triton", "_flash_attention_forward",
        "overrideable", "dot_product_flash_attention", "cudnn_attention", "_fused_dropout"}) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

// Tagged, yet they draw nothing for the CPU.
bool draws_nothing(const std::string& name) {
  return name == "_fused_sdp_choice" || name == "_nested_tensor_softmax_with_shape";
}

}  // namespace

TEST_CASE("each random operator of torch draws a batch's own numbers within it, and torch's default outside") {
  std::set<std::string> drew;
  for (const Operator& op : random_operators()) {
    if (is_of_devices(op.name) || draws_nothing(op.name)) continue;
    CAPTURE(op.name);
    const at::Tensor before = default_state();
    REQUIRE_NOTHROW(called(op));
    const at::Tensor after = default_state();
    const bool draws_outside = !at::equal(before, after);
    CHECK(draws_outside);
    const auto within = [&](std::uint64_t seed) {
      const BatchNumbers numbers(seed);
      return called(op);
    };
    const Stack first = within(7), same = within(7);
    CHECK(at::equal(default_state(), after));
    CHECK(equal(first, same));
    bool differs = false;
    for (std::uint64_t seed = 8; seed < 40 && !differs; ++seed) differs = !equal(first, within(seed));
    CHECK(differs);
    CHECK(at::equal(default_state(), after));
    drew.insert(op.name.substr(0, op.name.find('.')));
  }
  for (const char* name : {"rand", "randn", "randint", "randperm", "dropout", "native_dropout", "bernoulli_", "lstm",
                           "multinomial", "normal", "poisson", "scaled_dot_product_attention", "rrelu", "uniform_"}) {
    CHECK_MESSAGE(drew.contains(name), name);
  }
}

TEST_CASE("a generator that is given is used, unless it is torch's default") {
  const at::Tensor before = default_state();
  const BatchNumbers numbers(3);
  const at::Tensor expected = at::rand({4}, own_generator());
  CHECK(at::equal(at::rand({4}, own_generator()), expected));
  const at::Tensor mine = at::rand({4});
  CHECK_FALSE(at::equal(at::rand({4}, at::detail::getDefaultCPUGenerator()), mine));  // goes on in the batch's own
  CHECK(at::equal(default_state(), before));
}

TEST_CASE("batches within a batch have their own, and leave the outer one where it was") {
  const at::Tensor expected = [] {
    const BatchNumbers numbers(3);
    at::rand({2});
    return at::rand({2});
  }();
  const BatchNumbers outer(3);
  at::rand({2});
  {
    const BatchNumbers inner(4);
    CHECK(batch_seed() == 4);
    at::rand({5});
  }
  CHECK(batch_seed() == 3);
  CHECK(at::equal(at::rand({2}), expected));
}

TEST_CASE("no batch, no seed") {
  CHECK_ERROR(error_of([] { batch_seed(); }), ErrorKind::invalid_argument, "does not assemble a batch", "get_batch()");
}

}  // namespace random_operators_test
