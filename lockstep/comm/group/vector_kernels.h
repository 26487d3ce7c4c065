// MKL chooses the kernel of each of its vector functions (tanh, exp, ...) when that is first called. In MKL 2024.2,
// which torch 2.13 has, a first call beside another thread's may take the least accurate kernel, once: numbers differ
// from the fifth digit on (https://github.com/pytorch/pytorch/issues/188792), and so do runs that should be the same.
#pragma once

namespace lockstep::internal {

// Makes the first call of each function that torch takes from MKL, so that later ones compute alike on any thread. Once
// in a process, in one or two milliseconds; without effect where torch has no MKL. Any thread.
void choose_vector_kernels();

}  // namespace lockstep::internal
