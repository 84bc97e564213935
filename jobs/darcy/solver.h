// Steady flow through a porous medium, Darcy's law with conservation of mass:
//
//   -div(k grad p) = f  in the unit square,   p = 0 on its boundary
//
// Finite volumes on H x W cells: unknowns at cell centres, fluxes over faces by the five-point
// stencil with the harmonic mean of both cells' permeabilities, which is exact where k jumps at a
// face. A boundary face is half a cell from the centre. Second order for smooth k.
//
// The system is symmetric and positive definite; it is solved by conjugate gradients with Jacobi's
// preconditioner, for a batch at once: each sample has its own step lengths and stops on its own,
// so its solution does not depend on the others of the batch.
//
// Threads: any. Errors: c10::ValueError for shapes, dtypes or a permeability that is not positive;
// SolverError if a sample does not converge.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <stdexcept>

namespace meshrun::darcy {

class SolverError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The stencil of a batch.
class DarcyOperator {
 public:
  // [batch, H, W] float64, positive.
  explicit DarcyOperator(const at::Tensor& permeability);

  // -div(k grad p) of cell averages: [batch, H, W].
  at::Tensor apply(const at::Tensor& pressure) const;
  const at::Tensor& diagonal() const { return diagonal_; }

 private:
  // Coefficients of the faces between neighbours: [batch, H - 1, W] and [batch, H, W - 1].
  at::Tensor across_rows_;
  at::Tensor across_columns_;
  at::Tensor diagonal_;
};

struct Solution {
  at::Tensor pressure;           // [batch, H, W] float64
  at::Tensor relative_residual;  // [batch], |f - A p| / |f| in the Euclidean norm, computed anew
  int64_t iterations = 0;
};

// `source` is [H, W] or [batch, H, W], float64. Every sample's relative residual is at most
// `tolerance`.
Solution solve_darcy(const at::Tensor& permeability, const at::Tensor& source,
                     double tolerance = 1e-8, int64_t max_iterations = 20'000);

}  // namespace meshrun::darcy
