// Random media: a Gaussian random field, and what is made of it.
//
// The field has mean zero and the covariance tau^2 (-Laplacian + tau^2)^-2 with Neumann's
// conditions on the unit square, tau = 3: cosines with independent normal coefficients, as in Li et
// al., "Fourier Neural Operator for Parametric Partial Differential Equations" (2021). From it:
//   "threshold"   k = 12 where the field is positive, 3 elsewhere (the paper's)
//   "lognormal"   k = exp(field / its standard deviation)
//
// A sample is a function of (seed, number) and the grid alone. Threads: any.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace meshrun::darcy {

// Samples [first, first + count) at the centres of rows x columns cells: [count, rows, columns]
// float64.
at::Tensor gaussian_fields(uint64_t seed, int64_t first, int64_t count, int64_t rows,
                           int64_t columns);

// Raises c10::ValueError for an unknown medium.
at::Tensor permeability_of(const at::Tensor& fields, const std::string& medium);

}  // namespace meshrun::darcy
