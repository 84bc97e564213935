// The rotating shallow-water equations on a doubly periodic square of side 2 pi:
//
//   u_t = (f + zeta) v - d/dx B      zeta = v_x - u_y
//   v_t = -(f + zeta) u - d/dy B     B = g h + (u^2 + v^2) / 2
//   h_t = -d/dx (h u) - d/dy (h v)
//
// Pseudo-spectral: derivatives in Fourier space, products on the grid, wave numbers of a third of
// the grid and above removed (the 2/3 rule, exact for these products). The classical Runge-Kutta
// method of fourth order in time. A damping grows with the fourth power of the wave number.
//
// The ranks of a group hold pieces of the columns. The transforms are those of
// parallel/fft/distributed_fft.h, in its paired layout: a rank's spectrum has a piece of the wave
// numbers 0 .. H / 2 along y (rows) and all along x.
//
// Shapes: a state is a field [batch, 3, H, own columns] float64 of u, v, h, or its spectrum [batch,
// 3, own rows, W] complex128. x runs along columns, y along rows. Columns lie on the ranks as
// split_range() says (collectives/split.h).
//
// Threads: one at a time; all ranks of the group make the same calls. Errors: c10::ValueError for
// parameters and for tensors of another shape or dtype; those of the transforms.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "parallel/fft/distributed_fft.h"
#include "parallel/manager/group_argument.h"

namespace meshrun::swe {

struct ShallowWaterParameters {
  int64_t rows = 48;
  int64_t columns = 48;
  double coriolis = 1;  // f
  double gravity = 1;   // g
  // The rate at which the largest wave number kept along x is damped.
  double damping = 0;
};

class ShallowWater {
 public:
  // Not collective. `group`: the ranks that share a field.
  ShallowWater(const ShallowWaterParameters& parameters, const GroupArgument& group,
               c10::Device device = c10::kCPU);

  // Removes the wave numbers that are not kept. Both are collective.
  at::Tensor to_spectrum(const at::Tensor& field);
  at::Tensor to_field(const at::Tensor& spectrum);

  // The spectrum's derivative in time. Collective.
  at::Tensor tendency(const at::Tensor& spectrum);
  // The spectrum after `steps` steps of length `dt`. Collective.
  at::Tensor advance(at::Tensor spectrum, double dt, int64_t steps);

 private:
  at::Tensor check(const at::Tensor& state, at::ScalarType dtype, int64_t rows,
                   int64_t columns) const;

  const ShallowWaterParameters parameters_;
  int64_t own_columns_ = 0;
  int64_t own_rows_ = 0;
  DistributedRFFT2 forward_;
  DistributedIRFFT2 inverse_;
  // Over the spectrum, [own rows, W]: i k_x and i k_y, 1 for what is kept and 0 elsewhere, the rate
  // of damping.
  at::Tensor d_dx_;
  at::Tensor d_dy_;
  at::Tensor kept_;
  at::Tensor damping_;
};

}  // namespace meshrun::swe
