// How well the network knows the pressure of samples that it was not trained on.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "jobs/darcy/data.h"
#include "jobs/runtime/rank_mesh.h"

namespace meshrun::darcy {

// This rank's columns of the permeability, [batch, rows, own columns], to those of the pressure.
using Predict = std::function<at::Tensor(const at::Tensor& permeability)>;

// The error of each sample, |p - t| / |t| over the whole field: [batch]. Collective over the
// spatial group; its gradient is that of the whole field's error.
at::Tensor relative_errors(const at::Tensor& predicted, const at::Tensor& truth,
                           const at::Tensor& norms, const jobs::RankMesh& mesh);

// Both are collective over the world and return the same on every rank.

struct TestErrors {
  double relative_l2 = 0;  // the mean over samples
  double worst = 0;
};
// Errors on samples [first, first + count).
TestErrors evaluate(const Predict& predict, const Samples& samples, int64_t first, int64_t count,
                    const jobs::RankMesh& mesh, c10::Device device);

// Whole fields of some samples, row-major.
struct Shown {
  int64_t rows = 0;
  int64_t columns = 0;
  struct Sample {
    std::vector<float> permeability;
    std::vector<float> truth;
    std::vector<float> predicted;
  };
  std::vector<Sample> samples;
};
Shown show(const Predict& predict, const Samples& samples, int64_t first, int64_t count,
           const jobs::RankMesh& mesh, c10::Device device);

}  // namespace meshrun::darcy
