// What sources that include LibTorch reach, compiled once: see precompiled.bzl. g++ takes it by
// -include, so it needs no guard. Sources include what they use all the same, and build without
// this file, too.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adamw.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "third_party/precompiled/common.h"
