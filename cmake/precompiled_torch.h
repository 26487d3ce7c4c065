// The headers of libtorch that most sources need, parsed once for a tree. What few sources need would cost all others.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
