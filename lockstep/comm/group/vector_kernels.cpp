#include "lockstep/comm/group/vector_kernels.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/acos.h>
#include <ATen/ops/asin.h>
#include <ATen/ops/atan.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/erfc.h>
#include <ATen/ops/erfinv.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log10.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tan.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/trunc.h>

#include <exception>
#include <mutex>
#include <thread>

#include "lockstep/base/signal_block.h"

namespace lockstep::internal {

namespace {

// Those of ATen/cpu/vml.h that have an MKL function. All are defined for 0.5.
void call_each() {
  const at::NoGradGuard no_grad;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor x = at::full({16}, 0.5, type);
    for (const auto function :
         {&at::acos, &at::asin, &at::atan, &at::cos, &at::erf, &at::erfc, &at::erfinv, &at::exp, &at::log, &at::log10,
          &at::log2, &at::sin, &at::sqrt, &at::tan, &at::tanh, &at::trunc}) {
      function(x);
    }
  }
}

// On a thread of its own, which has none of the caller's modes: those would see the calls, or forestall them.
void call_on_new_thread() {
  try {
    const SignalBlock block = SignalBlock::of_new_thread();
    std::thread([] {
      try {
        call_each();
      } catch (const std::exception&) {  // what a function cannot do, the program's call will say
      }
    }).join();
  } catch (const std::exception&) {  // no thread can be had: the functions work all the same
  }
}

}  // namespace

void choose_vector_kernels() {
  static std::once_flag once;
  std::call_once(once, call_on_new_thread);
}

}  // namespace lockstep::internal
