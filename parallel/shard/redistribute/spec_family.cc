#include <utility>

#include "parallel/shard/redistribute/redistribution_plans.h"

namespace meshrun {

SpecPtr SpecFamily::relative(const SpecPtr& member, const ShardMesh::Ptr& mesh, ShardLayout layout,
                             By by) {
  const auto is_wanted = [&](const SpecPtr& spec) {
    return spec->mesh() == mesh && spec->layout() == layout;
  };
  SpecPtr root = member;
  {
    SpecFamily& own = of(*member);
    const std::lock_guard lock(own.mutex_);
    if (own.root_) {
      if (SpecPtr known = own.root_->lock()) root = std::move(known);
    }
  }
  if (is_wanted(root)) return root;
  SpecFamily& family = of(*root);
  SpecPtr made;
  const std::lock_guard lock(family.mutex_);
  for (const auto* kept : {&family.redistributed_, &family.operated_}) {
    for (const SpecPtr& spec : *kept) {
      if (is_wanted(spec)) return spec;
    }
  }
  made = make_spec(mesh, std::move(layout));
  of(*made).root_ = WeakSpec(root);
  (by == By::kRedistribution ? family.redistributed_ : family.operated_).add(made);
  return made;
}

bool SpecFamily::Derivation::is_of(c10::ArrayRef<int64_t> wanted,
                                   c10::ArrayRef<const SpecPtr*> others) const {
  if (c10::ArrayRef<int64_t>(key) != wanted || operands.size() != others.size()) return false;
  for (size_t i = 0; i < others.size(); ++i) {
    const ShardTensorSpec* spec = others[i]->get();
    // The pointer of one that is alive is nobody else's.
    if (operands[i].spec._unsafe_get_target() != spec && !(operands[i].layout == spec->layout())) {
      return false;
    }
  }
  return true;
}

DerivedSpecs SpecFamily::derived(c10::ArrayRef<int64_t> key,
                                 c10::ArrayRef<const SpecPtr*> operands) {
  DerivedSpecs specs;
  const std::lock_guard lock(mutex_);
  for (const Derivation& derivation : derivations_) {
    if (!derivation.is_of(key, operands.slice(1))) continue;
    specs.clear();
    specs.reserve(derivation.results.size());
    for (const Result& result : derivation.results) {
      SpecPtr spec =
          result.operand < 0 ? result.spec.lock() : *operands[static_cast<size_t>(result.operand)];
      if (spec) specs.push_back(std::move(spec));
    }
    if (specs.size() == derivation.results.size()) return specs;
  }
  return {};
}

void SpecFamily::keep(c10::ArrayRef<int64_t> key, c10::ArrayRef<const SpecPtr*> operands,
                      const DerivedSpecs& specs) {
  Derivation derivation;
  derivation.key.assign(key.begin(), key.end());
  for (const SpecPtr* operand : operands.slice(1)) {
    derivation.operands.push_back({WeakSpec(*operand), (*operand)->layout()});
  }
  for (const SpecPtr& spec : specs) {
    int own = -1;
    for (size_t i = 0; i < operands.size() && own < 0; ++i) {
      if (*operands[i] == spec) own = static_cast<int>(i);
    }
    derivation.results.push_back({own, WeakSpec(spec)});
  }
  const std::lock_guard lock(mutex_);
  derivations_.add(std::move(derivation));
}

std::shared_ptr<const void> SpecFamily::plan(c10::ArrayRef<int64_t> key) {
  const std::lock_guard lock(mutex_);
  for (const OperatorPlan& kept : operator_plans_) {
    if (c10::ArrayRef<int64_t>(kept.key) == key) return kept.plan;
  }
  return nullptr;
}

void SpecFamily::keep_plan(c10::ArrayRef<int64_t> key, std::shared_ptr<const void> plan) {
  OperatorPlan kept;
  kept.key.assign(key.begin(), key.end());
  kept.plan = std::move(plan);
  const std::lock_guard lock(mutex_);
  operator_plans_.add(std::move(kept));
}

DerivedSpecs derived_specs(c10::ArrayRef<int64_t> key, c10::ArrayRef<const SpecPtr*> operands,
                           c10::function_ref<std::vector<ShardLayout>()> make) {
  const SpecPtr& first = *operands.front();
  SpecFamily& family = SpecFamily::of(*first);
  DerivedSpecs specs = family.derived(key, operands);
  if (!specs.empty()) return specs;
  for (ShardLayout& layout : with_shard_errors(make)) {
    const SpecPtr* same = nullptr;
    for (const SpecPtr* operand : operands) {
      if (same == nullptr && (*operand)->layout() == layout) same = operand;
    }
    specs.push_back(same != nullptr ? *same
                                    : SpecFamily::relative(first, first->mesh(), std::move(layout),
                                                           SpecFamily::By::kOperator));
  }
  family.keep(key, operands, specs);
  return specs;
}

}  // namespace meshrun
