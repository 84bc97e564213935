#include "parallel/nn/total_norm.h"

#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "parallel/base/no_collectives.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/comm/interface/call_scope.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun::detail {
namespace {

using at::Tensor;
using Groups = std::vector<ProcessGroupPtr>;

// How norms become one norm: powers are added, or extremes taken.
class Combination {
 public:
  explicit Combination(double norm_type) : norm_type_(norm_type) {}

  c10d::ReduceOp::RedOpType op() const {
    if (!std::isinf(norm_type_)) return c10d::ReduceOp::SUM;
    return norm_type_ > 0 ? c10d::ReduceOp::MAX : c10d::ReduceOp::MIN;
  }
  double neutral() const {
    if (!std::isinf(norm_type_)) return 0;
    return norm_type_ > 0 ? 0 : std::numeric_limits<double>::infinity();
  }
  double of_norm(double norm) const {
    if (std::isinf(norm_type_)) return norm;
    return norm_type_ == 2 ? norm * norm : std::pow(norm, norm_type_);
  }
  double to_norm(double combined) const {
    if (std::isinf(norm_type_)) return combined;
    return norm_type_ == 2 ? std::sqrt(combined) : std::pow(combined, 1 / norm_type_);
  }
  // Not a number, where one of them is not.
  double operator()(double a, double b) const {
    if (!std::isinf(norm_type_)) return a + b;
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
    return norm_type_ > 0 ? std::max(a, b) : std::min(a, b);
  }

 private:
  const double norm_type_;
};

// Dense, without history; undefined where there is no number.
Tensor dense_values(const Tensor& values) {
  if (!values.defined()) return {};
  const Tensor plain = values.detach();
  const Tensor dense = plain.layout() == at::kSparse ? plain.coalesce().values() : plain;
  return dense.numel() == 0 ? Tensor() : dense;
}

Tensor norm_of(const Tensor& values, double norm_type) {
  std::optional<at::ScalarType> type;
  if (at::isReducedFloatingType(values.scalar_type())) type = at::kFloat;
  return at::linalg_vector_norm(values, norm_type, std::nullopt, false, type).to(at::kDouble);
}

// By part; read from a device once.
std::vector<std::optional<double>> local_norms(const std::vector<NormPart>& parts,
                                               double norm_type) {
  std::vector<Tensor> norms;
  std::vector<std::optional<double>> values(parts.size());
  std::vector<size_t> owners;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Tensor dense = dense_values(parts[i].values);
    if (!dense.defined()) continue;
    const Tensor norm = norm_of(dense, norm_type);
    norms.push_back(norms.empty() ? norm : norm.to(norms.front().device()));
    owners.push_back(i);
  }
  if (norms.empty()) return values;
  const Tensor all = at::stack(norms).cpu();
  for (size_t i = 0; i < owners.size(); ++i) {
    values[owners[i]] = all.const_data_ptr<double>()[i];
  }
  return values;
}

// The CPU where the group has a backend for it: the numbers are there.
c10::Device device_of_numbers(const c10d::ProcessGroup& group) {
  const std::vector<c10::Device> devices = group.getDeviceTypes();
  const auto is_cpu = [](const c10::Device& device) { return device.is_cpu(); };
  if (devices.empty() || std::any_of(devices.begin(), devices.end(), is_cpu)) return c10::kCPU;
  return devices.front();
}

void reduce(const ProcessGroupPtr& group, const Combination& combine, std::vector<double>& own) {
  // NCCL's MIN and MAX may pass over what is not a number, so a count of those travels with it.
  const auto count = static_cast<int64_t>(own.size());
  Tensor message = at::full({2 * count}, 0, at::kDouble);
  auto* numbers = message.mutable_data_ptr<double>();
  const bool is_extreme = combine.op() != c10d::ReduceOp::SUM;
  const double sign = combine.op() == c10d::ReduceOp::MIN ? -1 : 1;
  for (size_t i = 0; i < own.size(); ++i) {
    const bool hide = is_extreme && std::isnan(own[i]);
    numbers[i] = hide ? combine.neutral() : own[i];
    numbers[own.size() + i] = hide ? sign : 0;
  }
  CollectiveSpec spec;
  spec.say([] { return std::string(" (norm of gradients)"); });
  message = message.to(device_of_numbers(*group));
  const Tensor reduced = all_reduce(group, message, combine.op(), std::move(spec)).wait().cpu();
  const auto* results = reduced.const_data_ptr<double>();
  for (size_t i = 0; i < own.size(); ++i) {
    own[i] = is_extreme && results[own.size() + i] != 0 ? std::numeric_limits<double>::quiet_NaN()
                                                        : results[i];
  }
}

}  // namespace

double total_norm(const std::vector<NormPart>& parts, double norm_type) {
  // One rank may clip by what another one only asks for.
  const CallScope scope("get_total_norm", CallScope::Comparison::kNone);
  if (std::any_of(parts.begin(), parts.end(),
                  [](const NormPart& part) { return !part.groups.empty(); })) {
    check_collectives_allowed([] { return CallScope::current(); });
  }
  const at::NoGradGuard no_grad;
  const Combination combine(norm_type);
  Groups groups;
  // By the groups, as places in `groups`, over which values are still to be combined.
  std::map<std::vector<size_t>, double> combined;
  double complete = combine.neutral();
  bool is_any = false;
  const std::vector<std::optional<double>> norms = local_norms(parts, norm_type);
  for (size_t i = 0; i < parts.size(); ++i) {
    std::vector<size_t> over;
    for (const ProcessGroupPtr& group : parts[i].groups) {
      if (group->getSize() == 1) continue;
      const auto known = std::find(groups.begin(), groups.end(), group);
      over.push_back(static_cast<size_t>(known - groups.begin()));
      if (known == groups.end()) groups.push_back(group);
    }
    std::sort(over.begin(), over.end());
    is_any = is_any || norms[i] || !over.empty();
    const double own = norms[i] ? combine.of_norm(*norms[i]) : combine.neutral();
    double& sum =
        over.empty() ? complete : combined.try_emplace(over, combine.neutral()).first->second;
    sum = combine(sum, own);
  }
  for (size_t place = 0; place < groups.size(); ++place) {
    // Other ranks' number is that of rank 0.
    std::vector<double> message = {groups[place]->getRank() == 0 ? complete : combine.neutral()};
    std::vector<double*> sums = {&complete};
    for (auto& [over, sum] : combined) {
      if (std::find(over.begin(), over.end(), place) == over.end()) continue;
      message.push_back(sum);
      sums.push_back(&sum);
    }
    reduce(groups[place], combine, message);
    for (size_t i = 0; i < sums.size(); ++i) *sums[i] = message[i];
    for (const auto& [over, sum] : combined) {
      if (over.back() == place) complete = combine(complete, sum);
    }
  }
  if (!is_any) return 0;
  return combine.to_norm(complete);
}

}  // namespace meshrun::detail
