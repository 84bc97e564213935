// What most sources that include LibTorch reach, compiled once: see precompiled.bzl. g++ takes it by -include, so it
// needs no guard. Sources include what they use all the same, and build without this file, too.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
