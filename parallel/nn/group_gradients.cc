#include "parallel/nn/group_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <unordered_map>
#include <utility>

#include "parallel/base/digest.h"
#include "parallel/base/no_collectives.h"
#include "parallel/base/tensor_hooks.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/comm/interface/call_scope.h"
#include "parallel/comm/v_collectives_of.h"
#include "parallel/nn/shared_module_error.h"

namespace meshrun::detail {

using at::Tensor;

namespace {

// The ranks may reach different modules of equal shapes, whose gradients must not be added.
CollectiveSpec spec_of(const GroupGradients::Options& options, uint64_t number) {
  CollectiveSpec spec;
  spec.use_fp32 = options.use_fp32;
  spec.async = true;
  spec.agreed = number;
  spec.say([number, names = options.names] {
    std::string first;
    for (size_t i = 0; i < std::min<size_t>(names.size(), 2); ++i) {
      first += (i == 0 ? ": " : ", ") + names[i];
    }
    return c10::str(" (gradients of this group's shared module number ", number, first,
                    names.size() > 2 ? ", ...)" : ")");
  });
  return spec;
}

}  // namespace

// What a pass has added to one parameter.
struct GroupGradients::Contribution {
  Tensor parameter;  // undefined: gone
  Tensor added;      // undefined: nothing
  std::vector<int64_t> shape;
  at::ScalarType type = at::ScalarType::Undefined;
  int64_t numel = 1;
};

// The contributions one after another, then a number for each: 1 where the pass reached it. The
// reduced numbers say which parameters any rank's pass reached; they are read where this rank did
// not reach one and cannot just add zeros. So on a GPU the host waits for none of this in the usual
// case that every rank reaches every parameter.
struct GroupGradients::Bucket {
  std::vector<Contribution> contributions;
  int64_t numel = 0;
  PendingAllReduce pending;

  void start(const ProcessGroupPtr& group, c10::Device device, const Options& options,
             uint64_t number);
  void wait() { pending.wait(); }
  void add();
  bool must_be_told() const;
};

void GroupGradients::Bucket::start(const ProcessGroupPtr& group, c10::Device device,
                                   const Options& options, uint64_t number) {
  const auto count = static_cast<int64_t>(contributions.size());
  const Tensor buffer = at::empty({numel + count}, at::device(device).dtype(contributions[0].type));
  const Tensor reached = buffer.narrow(0, numel, count).fill_(1);
  int64_t begin = 0;
  for (size_t i = 0; i < contributions.size(); ++i) {
    const Contribution& contribution = contributions[i];
    const Tensor piece = buffer.narrow(0, begin, contribution.numel).view(contribution.shape);
    begin += contribution.numel;
    if (!contribution.added.defined()) {
      piece.zero_();
      reached.narrow(0, static_cast<int64_t>(i), 1).zero_();
    } else if (contribution.added.layout() == at::kStrided) {
      piece.copy_(contribution.added);
    } else {
      piece.copy_(contribution.added.to_dense());
    }
  }
  pending = all_reduce(group, buffer, options.mean ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM,
                       spec_of(options, number));
}

bool GroupGradients::Bucket::must_be_told() const {
  return std::any_of(contributions.begin(), contributions.end(), [](const Contribution& each) {
    if (each.added.defined() || !each.parameter.defined()) return false;
    const Tensor& gradient = each.parameter.grad();
    return !gradient.defined() || gradient.requires_grad() || gradient.layout() != at::kStrided;
  });
}

void GroupGradients::Bucket::add() {
  const Tensor reduced = pending.wait();
  const auto count = static_cast<int64_t>(contributions.size());
  Tensor reached;  // undefined: every one, or zeros are added to
  if (must_be_told()) reached = reduced.narrow(0, numel, count).ne(0).cpu();
  int64_t begin = 0;
  for (size_t i = 0; i < contributions.size(); ++i) {
    Contribution& contribution = contributions[i];
    const Tensor piece = reduced.narrow(0, begin, contribution.numel).view(contribution.shape);
    begin += contribution.numel;
    if (!contribution.parameter.defined()) continue;
    if (reached.defined() && !reached.const_data_ptr<bool>()[i]) continue;
    Tensor& gradient = contribution.parameter.mutable_grad();
    const Tensor& added = contribution.added;
    if (!gradient.defined()) {
      // This rank's own contribution has served, and nobody else has it.
      const bool reuse =
          added.defined() && added.layout() == at::kStrided && !added.requires_grad();
      gradient = reuse ? added : at::empty_like(contribution.parameter);
      gradient.copy_(piece);
    } else if (gradient.requires_grad() || gradient.layout() != at::kStrided) {
      gradient = piece + gradient;
    } else {
      gradient.add_(piece);
    }
  }
}

namespace {

// The shared modules that one backward pass has to do with.
class Pass {
 public:
  explicit Pass(int id) : id_(id) {}
  // Puts back what was set aside, where the pass did not come to its end.
  ~Pass();
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  // The one that this thread works for.
  static std::shared_ptr<Pass> current();

  void touch(std::shared_ptr<GroupGradients> gradients) { insert(touched_, std::move(gradients)); }
  void reach(std::shared_ptr<GroupGradients> gradients) { insert(reached_, std::move(gradients)); }
  void finish();

 private:
  using List = std::vector<std::shared_ptr<GroupGradients>>;

  void insert(List& list, std::shared_ptr<GroupGradients> gradients) {
    MutexLock lock(mu_);
    if (std::find(list.begin(), list.end(), gradients) == list.end()) {
      list.push_back(std::move(gradients));
    }
  }
  void put_back();

  const int id_;
  Mutex mu_;
  List touched_;  // some parameter's gradient is set aside
  List reached_;  // some parameter's gradient has come
};

// By the engine's number.
struct Passes {
  Mutex mu;
  std::unordered_map<int, std::weak_ptr<Pass>> by_id MESHRUN_GUARDED_BY(mu);
};

Passes& passes() {
  static auto* all = new Passes;
  return *all;
}

std::shared_ptr<Pass> Pass::current() {
  const int id = torch::autograd::get_current_graph_task_id();
  std::shared_ptr<Pass> pass;
  {
    Passes& all = passes();
    MutexLock lock(all.mu);
    std::weak_ptr<Pass>& known = all.by_id[id];
    pass = known.lock();
    if (pass) return pass;
    pass = std::make_shared<Pass>(id);
    known = pass;
  }
  // The engine's pass owns it from here on. Twice, so that it comes after the callback in which
  // c10d::Reducer writes its averages: of those the sum is taken.
  const auto queue = [](std::function<void()> callback) {
    torch::autograd::Engine::get_default_engine().queue_callback(std::move(callback));
  };
  queue([pass, queue] { queue([pass] { pass->finish(); }); });
  return pass;
}

Pass::~Pass() {
  put_back();
  Passes& all = passes();
  MutexLock lock(all.mu);
  all.by_id.erase(id_);
}

void Pass::put_back() {
  List touched;
  {
    MutexLock lock(mu_);
    touched.swap(touched_);
  }
  for (const auto& gradients : touched) gradients->put_back();
}

void Pass::finish() {
  const at::NoGradGuard no_grad;
  List reached;
  {
    MutexLock lock(mu_);
    reached.swap(reached_);
  }
  if (reached.empty()) return put_back();
  const char* const name = "backward() of a shared module";
  const CallScope scope(name);
  check_collectives_allowed([&] { return name; });
  std::sort(reached.begin(), reached.end(),
            [](const auto& a, const auto& b) { return a->order() < b->order(); });
  std::vector<GroupGradients::Bucket> buckets;
  for (const auto& gradients : reached) gradients->compare_values();
  for (const auto& gradients : reached) gradients->start(buckets);
  // What was not reached: torch::autograd::grad() of a parameter sets aside as well.
  put_back();
  for (GroupGradients::Bucket& bucket : buckets) bucket.wait();
  for (GroupGradients::Bucket& bucket : buckets) bucket.add();
}

// In words of eight bytes, since a model has many.
int64_t digest_of_bits(const Tensor& tensor) {
  const Tensor bits = tensor.detach().cpu().contiguous();
  const auto* next = static_cast<const char*>(bits.const_data_ptr());
  Digest digest;
  for (size_t left = bits.nbytes(); left > 0;) {
    int64_t word = 0;
    const size_t taken = std::min(left, sizeof(word));
    std::memcpy(&word, next, taken);
    digest.add(word);
    next += taken;
    left -= taken;
  }
  return static_cast<int64_t>(digest.value());
}

uint64_t next_order() {
  static std::atomic<uint64_t> next{0};
  return next++;
}

// From 1. A group's ranks mark in one order, while processes may have been in other groups before.
uint64_t next_number(const ProcessGroupPtr& group) {
  using WeakGroup = c10::weak_intrusive_ptr<c10d::ProcessGroup>;
  static Mutex mu;
  static std::vector<std::pair<WeakGroup, uint64_t>> counts;
  const MutexLock lock(mu);
  std::erase_if(counts, [](const auto& entry) { return entry.first.expired(); });
  const WeakGroup its(group);
  for (auto& [known, count] : counts) {
    if (known == its) return ++count;
  }
  counts.emplace_back(its, 1);
  return 1;
}

}  // namespace

GroupGradients::Slot::Slot(const Tensor& of)
    : parameter(of.getIntrusivePtr()), shape(of.sizes().vec()), type(of.scalar_type()) {}

GroupGradients::GroupGradients(c10::intrusive_ptr<c10d::ProcessGroup> group,
                               const std::vector<Tensor>& parameters, const Options& options)
    : group_(std::move(group)),
      options_(options),
      order_(next_order()),
      number_(next_number(group_)) {
  for (const Tensor& parameter : parameters) slots_.emplace_back(parameter);
}

void GroupGradients::before_accumulation(size_t index) {
  Pass::current()->touch(shared_from_this());
  MutexLock guard(mu_);
  Slot& slot = slots_[index];
  // Within a nested pass: what the outer one has added is reduced with it.
  if (slot.has_left || slot.is_set_aside) return;
  const Tensor parameter = slot.lock();
  slot.before = std::exchange(parameter.mutable_grad(), Tensor());
  slot.is_set_aside = true;
}

void GroupGradients::after_accumulation(size_t index) {
  Pass::current()->reach(shared_from_this());
  MutexLock guard(mu_);
  Slot& slot = slots_[index];
  if (!slot.has_left && !slot.is_set_aside) {
    throw SharedModuleError(
        "a parameter that is marked as shared has lost the mark's hook, so its gradients would not "
        "be summed: something has replaced all hooks of the parameter (its _backward_hooks in "
        "Python); unmark and mark the module again");
  }
  slot.is_reached = true;
}

void GroupGradients::leave(size_t index) {
  put_back();
  MutexLock guard(mu_);
  slots_[index].has_left = true;
}

std::vector<GroupGradients::Contribution> GroupGradients::take() {
  MutexLock guard(mu_);
  std::vector<Contribution> contributions;
  for (Slot& slot : slots_) {
    if (slot.has_left) continue;
    Contribution contribution{.parameter = slot.lock(), .shape = slot.shape};
    if (contribution.parameter.defined()) slot.type = contribution.parameter.scalar_type();
    contribution.type = slot.type;
    for (const int64_t extent : slot.shape) contribution.numel *= extent;
    if (slot.is_set_aside && contribution.parameter.defined()) {
      Tensor& gradient = contribution.parameter.mutable_grad();
      if (slot.is_reached) contribution.added = gradient;
      gradient = slot.before;
    }
    slot.before = Tensor();
    slot.is_set_aside = slot.is_reached = false;
    contributions.push_back(std::move(contribution));
  }
  return contributions;
}

void GroupGradients::put_back() { take(); }

void GroupGradients::compare_values() {
  std::vector<Tensor> parameters;
  {
    MutexLock guard(mu_);
    if (are_compared_ || options_.names.empty() || group_->getSize() == 1) return;
    for (const Slot& slot : slots_) parameters.push_back(slot.has_left ? Tensor() : slot.lock());
  }
  // By parameter the least and, inverted, the greatest digest; of one that is gone nothing.
  const auto count = static_cast<int64_t>(parameters.size());
  const Tensor own = at::empty({2 * count}, at::kLong);
  auto* const numbers = own.mutable_data_ptr<int64_t>();
  std::fill_n(numbers, 2 * count, std::numeric_limits<int64_t>::max());
  c10::Device device(device_of(Tensor(), *group_));
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].defined()) continue;
    device = parameters[i].device();
    numbers[2 * i] = digest_of_bits(parameters[i]);
    numbers[2 * i + 1] = ~numbers[2 * i];
  }
  CollectiveSpec spec;
  spec.say([] { return std::string(" (values of a shared module)"); });
  const Tensor message = own.to(device);
  const Tensor all = all_reduce(group_, message, c10d::ReduceOp::MIN, std::move(spec)).wait().cpu();
  const auto* const ends = all.const_data_ptr<int64_t>();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const bool is_gone_everywhere = ends[2 * i] == ends[2 * i + 1];
    if (is_gone_everywhere || ends[2 * i] == ~ends[2 * i + 1]) continue;
    throw SharedModuleError(
        c10::str("mark_module_as_shared: the ", group_->getSize(),
                 " ranks of the group have different values of parameter \"", options_.names[i],
                 "\" at the first backward pass, so each trains a model of its own: seed them "
                 "alike before the module is made, or load the same values on all of them"));
  }
  MutexLock guard(mu_);
  are_compared_ = true;
}

void GroupGradients::start(std::vector<Bucket>& buckets) {
  const size_t first = buckets.size();
  c10::Device device(device_of(Tensor(), *group_));
  // Bucket that is being filled, for each dtype.
  std::unordered_map<at::ScalarType, size_t> open;
  for (Contribution& contribution : take()) {
    if (contribution.parameter.defined()) device = contribution.parameter.device();
    const auto bytes =
        contribution.numel * static_cast<int64_t>(c10::elementSize(contribution.type));
    auto known = open.find(contribution.type);
    if (known != open.end()) {
      const Bucket& bucket = buckets[known->second];
      const auto filled = bucket.numel * static_cast<int64_t>(c10::elementSize(contribution.type));
      if (filled + bytes > options_.bucket_bytes) known = open.end();
    }
    if (known == open.end()) {
      known = open.insert_or_assign(contribution.type, buckets.size()).first;
      buckets.emplace_back();
    }
    Bucket& bucket = buckets[known->second];
    bucket.numel += contribution.numel;
    bucket.contributions.push_back(std::move(contribution));
  }
  for (size_t i = first; i < buckets.size(); ++i)
    buckets[i].start(group_, device, options_, number_);
}

GroupGradientHook* mark_of(const Tensor& parameter) {
  if (torch::autograd::impl::get_autograd_meta(parameter) == nullptr) return nullptr;
  return dynamic_cast<GroupGradientHook*>(
      torch::autograd::impl::post_acc_grad_hooks(parameter).get());
}

bool has_other_hook(const Tensor& parameter) {
  return torch::autograd::impl::get_autograd_meta(parameter) != nullptr &&
         torch::autograd::impl::post_acc_grad_hooks(parameter) != nullptr &&
         mark_of(parameter) == nullptr;
}

void reduce_gradients_over(c10::intrusive_ptr<c10d::ProcessGroup> group,
                           const std::vector<Tensor>& parameters,
                           const GroupGradients::Options& options) {
  const auto gradients = std::make_shared<GroupGradients>(std::move(group), parameters, options);
  for (size_t i = 0; i < parameters.size(); ++i) {
    auto hook = std::make_unique<GroupGradientHook>(gradients, i);
    keep_hooks(parameters[i]);
    hook->before_hook = parameters[i].register_hook(
        [gradients, i](const at::TensorBase&) -> void { gradients->before_accumulation(i); });
    torch::autograd::impl::set_post_acc_grad_hooks(parameters[i], std::move(hook));
  }
}

}  // namespace meshrun::detail
