// What is compared: ways to transform [planes, height, columns of this rank] fields. Each leaves
// its own layout; `paired` says which of ours computes the same.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "tests/bench/collectives/world.h"

namespace meshrun::bench {

struct FftProblem {
  int64_t planes = 0;
  int64_t height = 0;
  int64_t width = 0;
  int rank = 0;
  int size = 1;
  std::vector<int64_t> columns;  // by rank

  // This rank's columns of a field that all know.
  at::Tensor field() const;
  at::Tensor whole() const;
};

struct FftContender {
  std::string name;
  std::string note;
  std::function<at::Tensor()> call;
  // How far the result is from the unsharded transform, in relative L2.
  std::function<double(const at::Tensor&)> error;
};

FftContender our_forward(const FftProblem& problem, const Group& ucx, bool paired);
FftContender our_inverse(const FftProblem& problem, const Group& ucx, bool paired);
// With the lowest modes alone, as a neural operator keeps them.
FftContender our_modes(const FftProblem& problem, const Group& ucx, int64_t modes);
// The steps of PhysicsNeMo's DistributedRFFT2: complex transforms of the real field, all columns
// sent; undefined call where its sizes do not divide.
FftContender physicsnemo_forward(const FftProblem& problem, const Group& group, const char* name);
// FFTW's own, MPI_COMM_WORLD, FFTW_MEASURE, transposed out: computes what paired does.
FftContender fftw_forward(const FftProblem& problem);

}  // namespace meshrun::bench
