// Factorizations and solutions of each matrix of a batch.
#include <vector>

#include "parallel/shard/dispatch/fallback.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/operators/batchwise.h"

namespace meshrun {
namespace {

constexpr const char* kFamily = "linear algebra";

std::vector<BatchwiseRule> linear_algebra_rules() {
  return {
      {"aten::_linalg_det", {2}, {{0}, {2}, {1}}, false, true},
      {"aten::_linalg_eigh", {2}, {{1}, {2}}},
      {"aten::_linalg_eigvals", {2}, {{1}}},
      {"aten::_linalg_slogdet", {2}, {{0}, {0}, {2}, {1}}, false, true},
      {"aten::_linalg_solve_ex", {2, 2}, {{1}, {2, 0}, {1, 0}, {0, 0}}, true, true},
      {"aten::_linalg_svd", {2}, {{2}, {1}, {2}}},
      {"aten::cholesky", {2}, {{2}}},
      {"aten::cholesky_inverse", {2}, {{2}}},
      {"aten::cholesky_solve", {2, 2}, {{2}}},
      {"aten::geqrf", {2}, {{2}, {1}}},
      {"aten::linalg_cholesky_ex", {2}, {{2}, {0}}},
      {"aten::linalg_eig", {2}, {{1}, {2}}},
      {"aten::linalg_householder_product", {2, 1}, {{2}}},
      {"aten::linalg_inv_ex", {2}, {{2}, {0}}},
      {"aten::linalg_ldl_factor_ex", {2}, {{2}, {1}, {0}}},
      {"aten::linalg_ldl_solve", {2, 1, 2}, {{2}}},
      {"aten::linalg_lu", {2}, {{2}, {2}, {2}}},
      {"aten::linalg_lu_factor_ex", {2}, {{2}, {1}, {0}}},
      {"aten::linalg_lu_solve", {2, 1, 2}, {{2}}},
      {"aten::linalg_matrix_exp", {2}, {{2}}},
      {"aten::linalg_qr", {2}, {{2}, {2}}},
      {"aten::linalg_solve_triangular", {2, 2}, {{2}}},
      {"aten::lu_unpack", {2, 1}, {{2}, {2}, {2}}},
      {"aten::triangular_solve", {2, 2}, {{2}, {2}}},
  };
}

// Errors are those of all matrices, on every rank.
void check_errors(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run_replicated(op, stack, Announce::kQuietly);
}

bool register_linear_algebra() {
  register_batchwise(kFamily, linear_algebra_rules());
  register_operator({kFamily,
                     "aten::_linalg_check_errors",
                     HandlerLevel::kBelowAutograd,
                     {"Replicate", "one number a matrix is gathered, so that all ranks raise", ""}},
                    torch::CppFunction::makeFromBoxedFunction<&check_errors>());
  return true;
}

const bool kRegistered = register_linear_algebra();

}  // namespace
}  // namespace meshrun
