#include "jobs/verify/comparison.h"

#include <sstream>

#include "ATen/Functions.h"

namespace meshrun::verify {
namespace {

std::string shape_problem(const at::Tensor& found, const at::Tensor& expected) {
  if (found.sizes() == expected.sizes() && found.scalar_type() == expected.scalar_type()) return "";
  std::ostringstream text;
  text << "the result is " << found.scalar_type() << " " << found.sizes() << ", and it should be "
       << expected.scalar_type() << " " << expected.sizes();
  return text.str();
}

}  // namespace

std::string unequal(const at::Tensor& found, const at::Tensor& expected) {
  if (std::string problem = shape_problem(found, expected); !problem.empty()) return problem;
  const at::Tensor f = found.detach().cpu().flatten();
  const at::Tensor e = expected.detach().cpu().flatten();
  const at::Tensor places = at::nonzero(f.ne(e)).flatten();
  if (places.numel() == 0) return "";
  const int64_t at = places[0].item<int64_t>();
  std::ostringstream text;
  text.precision(12);
  text << "element " << at << " of " << f.numel() << " is " << f[at].item<double>()
       << ", and it should be " << e[at].item<double>();
  if (places.numel() > 1) text << " (" << places.numel() << " elements are wrong)";
  return text.str();
}

std::string unlike(const at::Tensor& found, const at::Tensor& expected, double limit) {
  if (std::string problem = shape_problem(found, expected); !problem.empty()) return problem;
  if (found.numel() == 0) return "";
  const at::Tensor e = expected.detach().cpu();
  const double size = e.norm().item().toDouble();
  const double error = (found.detach().cpu() - e).norm().item().toDouble();
  // Also where it is not a number.
  if (error <= limit * size) return "";
  std::ostringstream text;
  text << "the relative error is " << error / size << ", and it should be at most " << limit;
  return text.str();
}

}  // namespace meshrun::verify
