// What a spec keeps: plans of redistributions with the collectives of their steps made ready, the
// layouts and plans that follow from it by an operator's rule, and the specs that are reached from
// it.
// Internal to parallel/shard. Threads: any.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "c10/util/ArrayRef.h"
#include "c10/util/FunctionRef.h"
#include "c10/util/SmallVector.h"
#include "parallel/collectives/plans/planned_collective.h"
#include "parallel/shard/redistribute/redistribute.h"

namespace meshrun {

struct PreparedStep {
  RedistributionStep step;
  // Group of an all-reduce, and what its ranks compare, as a number and in words.
  ShardMesh::Group group;
  uint64_t agreed = 0;
  std::string words;
  // Collective of any other step on the wire.
  std::optional<PlannedCollective> collective;
};

using PreparedStepPtr = std::shared_ptr<const PreparedStep>;

struct RedistributionPlans::Prepared {
  std::vector<PreparedStepPtr> steps;
  // Index of the last step on the wire, if no later step reads what arrives; else the number of
  // steps.
  size_t may_go_on = 0;
};

// What an operator's rule says of layouts, a product's or a reduction's, is worked out once:
//
//   const char kRule = 0;  // at namespace scope
//   const DerivedSpecs specs = derived_specs({rule_number(&kRule), keepdim}, {&a, &b},
//                                            [&] { return layouts_of(...); });
using DerivedSpecs = c10::SmallVector<SpecPtr, 4>;

inline int64_t rule_number(const void* rule) {
  return static_cast<int64_t>(reinterpret_cast<intptr_t>(rule));
}

// The layouts that `make` returns, as specs; one that equals an operand's is that operand's spec.
// `key`: the rule, then all that the layouts depend on beside the operands, which are one or more
// on one mesh. The layout errors that `make` throws become ShardTensorErrors, and are not kept.
DerivedSpecs derived_specs(c10::ArrayRef<int64_t> key, c10::ArrayRef<const SpecPtr*> operands,
                           c10::function_ref<std::vector<ShardLayout>()> make);

// What an operator works out once for operands of a layout, beside the specs of its results:
//
//   const std::shared_ptr<const Plan> plan = kept_plan<Plan>(spec, key, [&] { return Plan(...); });
//
// `key`: as for derived_specs(). Its rule stands for the type Plan, which must not point to specs:
// they would keep each other alive. What `make` throws is not kept.
template <typename Plan, typename Make>
std::shared_ptr<const Plan> kept_plan(const SpecPtr& spec, c10::ArrayRef<int64_t> key,
                                      const Make& make);

// The specs that are reached from one spec, the root, step by step, by redistribution and by
// operators. The root keeps them alive; they point to the root and to each other weakly. So a
// tensor that goes back and forth between two layouts has two specs, and their number does not
// grow. Every spec has a family, which is empty if another spec is the root.
using WeakSpec = c10::weak_intrusive_ptr<ShardTensorSpec>;

// The last `most` entries.
template <typename Entry>
class LastEntries {
 public:
  explicit LastEntries(size_t most) : most_(most) {}

  void add(Entry entry) {
    if (entries_.size() < most_) {
      entries_.push_back(std::move(entry));
    } else {
      entries_[next_] = std::move(entry);
      next_ = (next_ + 1) % most_;
    }
  }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

 private:
  const size_t most_;
  size_t next_ = 0;
  std::vector<Entry> entries_;
};

class SpecFamily : public RedistributionPlans {
 public:
  // How `spec` was reached, which says what keeps it.
  enum class By : uint8_t { kRedistribution, kOperator };

  static SpecFamily& of(const ShardTensorSpec& spec) {
    return static_cast<SpecFamily&>(RedistributionPlans::of(spec));
  }

  // The one with that layout on that mesh in the family of `member`; made where there is none.
  static SpecPtr relative(const SpecPtr& member, const ShardMesh::Ptr& mesh, ShardLayout layout,
                          By by);

  // As derived_specs() found them; empty where it did not, or where one is gone.
  DerivedSpecs derived(c10::ArrayRef<int64_t> key, c10::ArrayRef<const SpecPtr*> operands);
  void keep(c10::ArrayRef<int64_t> key, c10::ArrayRef<const SpecPtr*> operands,
            const DerivedSpecs& specs);

  // As kept_plan() left it; null where it did not.
  std::shared_ptr<const void> plan(c10::ArrayRef<int64_t> key);
  void keep_plan(c10::ArrayRef<int64_t> key, std::shared_ptr<const void> plan);

 private:
  static constexpr size_t kRelatives = 256;
  static constexpr size_t kDerivations = 64;
  static constexpr size_t kOperatorPlans = 32;

  struct Operand {
    WeakSpec spec;
    ShardLayout layout;
  };
  struct Result {
    int operand;  // whose spec it is; -1: `spec`
    WeakSpec spec;
  };
  struct Derivation {
    c10::SmallVector<int64_t, 12> key;
    c10::SmallVector<Operand, 2> operands;  // after the first, which has this
    c10::SmallVector<Result, 4> results;

    bool is_of(c10::ArrayRef<int64_t> wanted, c10::ArrayRef<const SpecPtr*> others) const;
  };

  struct OperatorPlan {
    c10::SmallVector<int64_t, 24> key;
    std::shared_ptr<const void> plan;
  };

  std::mutex mutex_;
  std::optional<WeakSpec> root_;  // the spec that keeps this one
  LastEntries<SpecPtr> redistributed_{kKept};
  LastEntries<SpecPtr> operated_{kRelatives};
  LastEntries<Derivation> derivations_{kDerivations};
  LastEntries<OperatorPlan> operator_plans_{kOperatorPlans};
};

template <typename Plan, typename Make>
std::shared_ptr<const Plan> kept_plan(const SpecPtr& spec, c10::ArrayRef<int64_t> key,
                                      const Make& make) {
  SpecFamily& family = SpecFamily::of(*spec);
  if (auto kept = std::static_pointer_cast<const Plan>(family.plan(key))) return kept;
  std::shared_ptr<const Plan> made = std::make_shared<Plan>(make());
  family.keep_plan(key, made);
  return made;
}

}  // namespace meshrun
