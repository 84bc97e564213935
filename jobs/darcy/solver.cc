#include "jobs/darcy/solver.h"

#include <ATen/ATen.h>

#include <string>

namespace meshrun::darcy {
namespace {

using at::Tensor;

constexpr int64_t kRows = 1;
constexpr int64_t kColumns = 2;
// Rounding may keep the true residual above that of the recursion; then the iteration starts anew.
constexpr int kMaxRestarts = 3;

Tensor harmonic_mean(const Tensor& a, const Tensor& b) { return 2 * a * b / (a + b); }

// Inner product of each sample.
Tensor inner_products(const Tensor& a, const Tensor& b) { return (a * b).sum({kRows, kColumns}); }

Tensor per_cell(const Tensor& per_sample) { return per_sample.view({-1, 1, 1}); }

}  // namespace

DarcyOperator::DarcyOperator(const Tensor& k) {
  TORCH_CHECK_VALUE(k.dim() == 3 && k.scalar_type() == at::kDouble && k.numel() > 0,
                    "A permeability is [batch, H, W] float64, not ", k.sizes(), " ",
                    k.scalar_type());
  TORCH_CHECK_VALUE(k.gt(0).all().item<bool>() && at::isfinite(k).all().item<bool>(),
                    "A permeability is positive and finite");
  const int64_t rows = k.size(kRows);
  const int64_t columns = k.size(kColumns);
  const auto by_row = static_cast<double>(rows * rows);
  const auto by_column = static_cast<double>(columns * columns);
  const auto first = [](const Tensor& t, int64_t dim, int64_t length) {
    return t.narrow(dim, 0, length);
  };
  const auto last = [](const Tensor& t, int64_t dim, int64_t length) {
    return t.narrow(dim, t.size(dim) - length, length);
  };
  across_rows_ = by_row * harmonic_mean(first(k, kRows, rows - 1), last(k, kRows, rows - 1));
  across_columns_ =
      by_column * harmonic_mean(first(k, kColumns, columns - 1), last(k, kColumns, columns - 1));
  diagonal_ = at::zeros_like(k);
  first(diagonal_, kRows, rows - 1) += across_rows_;
  last(diagonal_, kRows, rows - 1) += across_rows_;
  first(diagonal_, kColumns, columns - 1) += across_columns_;
  last(diagonal_, kColumns, columns - 1) += across_columns_;
  // Faces of the boundary.
  for (const int64_t dim : {kRows, kColumns}) {
    const double scale = 2 * (dim == kRows ? by_row : by_column);
    first(diagonal_, dim, 1) += scale * first(k, dim, 1);
    last(diagonal_, dim, 1) += scale * last(k, dim, 1);
  }
}

Tensor DarcyOperator::apply(const Tensor& p) const {
  Tensor result = diagonal_ * p;
  const int64_t rows = p.size(kRows) - 1;
  const int64_t columns = p.size(kColumns) - 1;
  result.narrow(kRows, 0, rows).addcmul_(across_rows_, p.narrow(kRows, 1, rows), -1);
  result.narrow(kRows, 1, rows).addcmul_(across_rows_, p.narrow(kRows, 0, rows), -1);
  result.narrow(kColumns, 0, columns).addcmul_(across_columns_, p.narrow(kColumns, 1, columns), -1);
  result.narrow(kColumns, 1, columns).addcmul_(across_columns_, p.narrow(kColumns, 0, columns), -1);
  return result;
}

Solution solve_darcy(const Tensor& permeability, const Tensor& source, double tolerance,
                     int64_t max_iterations) {
  const DarcyOperator a(permeability);
  TORCH_CHECK_VALUE(source.scalar_type() == at::kDouble && source.dim() >= 2 && source.dim() <= 3,
                    "A source is [H, W] or [batch, H, W] float64, not ", source.sizes(), " ",
                    source.scalar_type());
  const Tensor f = source.expand_as(permeability);
  const Tensor norm = inner_products(f, f).sqrt();
  // Without a source the pressure is zero.
  const Tensor scale = at::where(norm > 0, norm, at::ones_like(norm));
  const Tensor inverse_diagonal = a.diagonal().reciprocal();
  const Tensor zero = at::zeros_like(norm);

  Solution solution;
  solution.pressure = at::zeros_like(permeability);
  for (int restart = 0; restart <= kMaxRestarts; ++restart) {
    Tensor residual = f - a.apply(solution.pressure);
    solution.relative_residual = inner_products(residual, residual).sqrt() / scale;
    if (solution.relative_residual.le(tolerance).all().item<bool>()) return solution;
    Tensor preconditioned = inverse_diagonal * residual;
    Tensor direction = preconditioned.clone();
    Tensor energy = inner_products(residual, preconditioned);
    Tensor active = solution.relative_residual > tolerance;
    while (active.any().item<bool>() && solution.iterations < max_iterations) {
      ++solution.iterations;
      const Tensor image = a.apply(direction);
      const Tensor length =
          per_cell(at::where(active, energy / inner_products(direction, image), zero));
      solution.pressure.addcmul_(length, direction);
      residual.addcmul_(length, image, -1);
      at::mul_out(preconditioned, inverse_diagonal, residual);
      const Tensor next = inner_products(residual, preconditioned);
      active =
          at::logical_and(active, inner_products(residual, residual).sqrt() > tolerance * scale);
      const Tensor ratio = at::where(active, next / energy, zero);
      direction.mul_(per_cell(ratio)).add_(preconditioned);
      energy = next;
    }
  }
  const auto worst = solution.relative_residual.argmax().item<int64_t>();
  throw SolverError("conjugate gradients have left a relative residual of " +
                    std::to_string(solution.relative_residual[worst].item<double>()) +
                    " in sample " + std::to_string(worst) + " of the batch after " +
                    std::to_string(solution.iterations) + " iterations");
}

}  // namespace meshrun::darcy
