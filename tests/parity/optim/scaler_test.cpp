// GradScaler against PyTorch's, event by event, in the random sequences of scaler_reference.py.
#include <ATen/Parallel.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/train/checkpoint/checkpoint.h"
#include "lockstep/train/optim/clip_gradients.h"
#include "lockstep/train/optim/grad_scaler.h"
#include "tests/parity/support.h"

// Behind torch's headers, whose own CHECK would replace doctest's.
#include <doctest/doctest.h>

namespace scaler_test {

namespace {

using namespace lockstep;
using torch::optim::SGD;
using torch::optim::SGDOptions;

enum class What { backward, unscale, clip, step, update, new_scale, continue_anew, load };

struct Event {
  What what;
  int argument;
  double number;
  bool raises;
};

at::Tensor parameter(at::IntArrayRef sizes) {
  std::int64_t elements = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  return at::linspace(-0.5, 0.7, elements).reshape(sizes).clone().set_requires_grad(true);
}

class Training {
 public:
  explicit Training(const GradScalerOptions& options) : scaler_(std::make_unique<GradScaler>(options)) {
    saved_ = scaler_->state();
  }

  void play(const Event& event, const at::Tensor& x) {
    const auto which = static_cast<std::size_t>(event.argument);
    switch (event.what) {
      case What::backward: return backward(event.argument, x);
      case What::unscale: return scaler_->unscale_(*optimizers_[which]);
      case What::clip: return static_cast<void>(clip_grad_norm(sets_[which], 1.0));
      case What::step: return step(*optimizers_[which], which);
      case What::update: return scaler_->update();
      case What::new_scale: return scaler_->update(event.number);
      case What::continue_anew: return continue_anew();
      case What::load: return scaler_->load_state(saved_);
    }
  }

  at::Tensor parameters() const {
    return flat([](const at::Tensor& each) { return each.detach(); });
  }
  at::Tensor gradients() const {
    return flat([](const at::Tensor& each) { return each.grad().defined() ? each.grad() : at::zeros_like(each); });
  }
  std::array<bool, 2> defined() const { return {sets_[0][0].grad().defined(), sets_[1][0].grad().defined()}; }
  std::pair<double, double> scale() const {
    return {scaler_->get_scale(), scaler_->is_enabled() ? static_cast<double>(scaler_->state().growth_tracker) : 0};
  }

 private:
  void backward(int argument, const at::Tensor& x) {
    if ((argument & 4) != 0) {
      for (const auto& optimizer : optimizers_) optimizer->zero_grad();
    }
    const auto values = x.split_with_sizes({6, 2, 4});
    const auto product = [&](const at::Tensor& each, std::size_t i) {
      return (each.reshape(-1) * values[i]).square().sum();
    };
    const std::array losses{product(sets_[0][0], 0) + product(sets_[0][1], 1), product(sets_[1][0], 2)};
    const int sets = argument & 3;
    scaler_->scale(sets == 3 ? losses[0] + losses[1] : losses[static_cast<std::size_t>(sets - 1)]).backward();
  }

  // It says whether it has made the step.
  void step(SGD& optimizer, std::size_t which) {
    std::vector<at::Tensor> before;
    for (const at::Tensor& each : sets_[which]) before.push_back(each.detach().clone());
    const bool has_stepped = scaler_->step(optimizer);
    if (has_stepped) return;
    for (std::size_t i = 0; i < before.size(); ++i) {
      CHECK(at::allclose(sets_[which][i].detach(), before[i], 0, 0, /*equal_nan=*/true));
    }
  }

  // By an archive, as a checkpoint does it.
  void continue_anew() {
    saved_ = scaler_->state();
    std::stringstream stream;
    torch::serialize::OutputArchive written;
    scaler_->save(written);
    written.save_to(stream);
    torch::serialize::InputArchive read;
    read.load_from(stream);
    scaler_ = std::make_unique<GradScaler>();
    scaler_->load(read);
  }

  template <class Value>
  at::Tensor flat(const Value& value_of) const {
    std::vector<at::Tensor> values;
    for (const auto& parameters : sets_) {
      for (const at::Tensor& each : parameters) values.push_back(value_of(each).reshape(-1));
    }
    return at::cat(values);
  }

  std::array<std::vector<at::Tensor>, 2> sets_{std::vector{parameter({3, 2}), parameter({2})},
                                               std::vector{parameter({4})}};
  std::array<std::unique_ptr<SGD>, 2> optimizers_{std::make_unique<SGD>(sets_[0], SGDOptions(0.1).momentum(0.9)),
                                                  std::make_unique<SGD>(sets_[1], SGDOptions(0.05))};
  std::unique_ptr<GradScaler> scaler_;
  GradScalerState saved_;
};

bool is_refused(Training& training, const Event& event, const at::Tensor& x) {
  try {
    training.play(event, x);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::invalid_argument);
    return true;
  }
  return false;
}

bool same(const at::Tensor& one, const at::Tensor& other) { return at::allclose(one, other, 0, 0, /*equal_nan=*/true); }

}  // namespace

TEST_CASE("scale, growth, parameters, gradients and errors are PyTorch's after every event of random sequences") {
  at::set_num_threads(1);
  const Checkpoint file = load_checkpoint(std::string(PARITY_REFERENCE) + "/scaler.safetensors", Integrity::if_present);
  std::map<What, int> played;
  int skipped_events = 0;
  for (int seed = 0; seed < std::stoi(file.metadata.at("sequences")); ++seed) {
    const auto of = [&](const char* name) { return parity::tensor_of(file, std::to_string(seed) + "/" + name); };
    const at::Tensor options = of("options"), events = of("events"), x = of("x"), scales = of("scale");
    const at::Tensor parameters = of("parameters"), gradients = of("gradients"), defined = of("defined");
    const auto* const option = options.const_data_ptr<double>();
    Training training({.init_scale = option[0],
                       .growth_factor = option[1],
                       .backoff_factor = option[2],
                       .growth_interval = static_cast<std::int64_t>(option[3]),
                       .enabled = option[4] != 0});
    for (std::int64_t i = 0; i < events.size(0); ++i) {
      const auto* const row = events.const_data_ptr<double>() + 4 * i;
      const Event event{static_cast<What>(static_cast<int>(row[0])), static_cast<int>(row[1]), row[2], row[3] != 0};
      CAPTURE(seed);
      CAPTURE(i);
      CAPTURE(static_cast<int>(event.what));
      REQUIRE(is_refused(training, event, x[i]) == event.raises);
      ++(event.raises ? skipped_events : played[event.what]);
      const auto [scale, tracker] = training.scale();
      const auto* const expected = scales.const_data_ptr<double>() + 2 * i;
      REQUIRE(scale == expected[0]);
      REQUIRE(tracker == expected[1]);
      REQUIRE(same(training.parameters(), parameters[i]));
      REQUIRE(same(training.gradients(), gradients[i]));
      for (int set = 0; set < 2; ++set) {
        REQUIRE(training.defined()[static_cast<std::size_t>(set)] == defined[i][set].item<bool>());
      }
    }
  }
  CHECK(played.size() == 8);
  for (const auto& [what, times] : played) CHECK(times > 20);
  CHECK(skipped_events > 50);
}

}  // namespace scaler_test
