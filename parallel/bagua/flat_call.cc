#include "parallel/bagua/flat_call.h"

#include <algorithm>
#include <memory>

#include "ATen/ops/empty.h"
#include "c10/core/Event.h"
#include "c10/core/GradMode.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "core/fingerprint.h"
#include "fmt/format.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/no_collectives.h"
#include "parallel/comm/interface/call_scope.h"
#include "parallel/comm/interface/carried.h"
#include "parallel/comm/point_to_point/gathered_comparison.h"
#include "parallel/comm/v_collectives_of.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun::bagua::detail {
namespace {

// Puts a stream before the current one of its device, behind the work queued there.
class StreamScope {
 public:
  StreamScope(const std::optional<c10::Stream>& stream, const std::optional<c10::Device>& device) {
    if (!device || device->is_cpu()) return;
    guard_ = std::make_unique<c10::impl::VirtualGuardImpl>(device->type());
    const c10::Stream current = guard_->getStream(*device);
    stream_ = stream && stream->device() == *device ? *stream : current;
    if (*stream_ == current) return;
    c10::Event queued(device->type());
    queued.record(current);
    queued.block(*stream_);
    before_ = guard_->exchangeStream(*stream_);
  }
  ~StreamScope() {
    if (before_) guard_->exchangeStream(*before_);
  }
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

  void synchronize() const {
    if (stream_) guard_->synchronizeStream(*stream_);
  }

 private:
  std::unique_ptr<c10::impl::VirtualGuardImpl> guard_;
  std::optional<c10::Stream> stream_;
  std::optional<c10::Stream> before_;
};

}  // namespace

FlatCall::FlatCall(const Communicator& comm, const char* name, OperationKind kind)
    : comm_(comm.resolved()), name_(name), rank_(comm_.rank()), size_(comm_.nranks()) {
  spec_.kind = kind;
  static_cast<void>(comm_.group());  // raises NotAMemberError
  check_collectives_allowed([&] { return name_; });
  if (comm_.is_aborted()) {
    throw GroupAbortedError(
        fmt::format("{}: abort() was called on the communicator \"{}\" on this rank, {}", name_,
                    comm_.name(), rank_));
  }
}

FlatCall& FlatCall::with_root(int64_t root, const char* name) {
  is_rank(root, size_, name);
  spec_.root = root;
  return *this;
}

FlatCall& FlatCall::with_op(ReduceOp op) {
  const std::optional<c10d::ReduceOp> its = to_c10d(op);
  require(its.has_value(), [&] { return to_string(op) + " is not a reduction"; });
  if (its) spec_.op = *its;
  op_ = op;
  return *this;
}

void FlatCall::note_device(const at::Tensor& tensor) {
  if (!device_ && tensor.defined() && backend_for(tensor.device().type())) {
    device_ = tensor.device();
  }
}

bool FlatCall::takes(const at::Tensor& tensor, std::string_view name) {
  note_device(tensor);
  if (!is_dense(tensor, name)) return false;
  const c10::Device device = tensor.device();
  return require(static_cast<bool>(backend_for(device.type())),
                 [&] {
                   return fmt::format(
                       "{} is on {}, which the communicator \"{}\" has no backend for", name,
                       device.str(), comm_.name());
                 }) &&
         require(*device_ == device, [&] {
           return fmt::format("{} is on {}, the other tensor on {}", name, device.str(),
                              device_->str());
         });
}

bool FlatCall::takes_output(const at::Tensor& tensor, std::string_view name) {
  return takes(tensor, name) && has_own_elements(tensor, name);
}

bool FlatCall::has_elements(const at::Tensor& tensor, std::string_view name, int64_t count) {
  return !is_wrong() && require(tensor.numel() == count, [&] {
    return fmt::format("{} has {} elements and must have {} in a communicator of {} ranks", name,
                       tensor.numel(), count, size_);
  });
}

bool FlatCall::can_be_shared_out(const at::Tensor& tensor, std::string_view name) {
  return !is_wrong() && require(tensor.numel() % size_ == 0, [&] {
    return fmt::format("{} has {} elements, which {} ranks cannot share equally", name,
                       tensor.numel(), size_);
  });
}

bool FlatCall::takes_pair(const at::Tensor& send, const at::Tensor& recv) {
  note_device(send);
  note_device(recv);
  return takes(send, "send_tensor") && takes_output(recv, "recv_tensor") &&
         require(send.scalar_type() == recv.scalar_type(), [&] {
           return fmt::format("send_tensor is {} and recv_tensor {}",
                              c10::toString(send.scalar_type()), c10::toString(recv.scalar_type()));
         });
}

bool FlatCall::takes_both(const at::Tensor& send, int64_t sent, const at::Tensor& recv,
                          int64_t received) {
  if (!takes_pair(send, recv)) return false;
  return sent > received ? has_elements(send, "send_tensor", recv.numel() * sent)
                         : has_elements(recv, "recv_tensor", send.numel() * received);
}

bool FlatCall::can_be_reduced(const at::Tensor& tensor) {
  const ReduceOp op = *op_;
  return !is_wrong() &&
         require(
             !tensor.is_complex() || op == ReduceOp::SUM || op == ReduceOp::AVG || keeps_inputs(),
             [&] {
               return fmt::format(
                   "{} of {}: this communicator's backend has pairs of real numbers in place "
                   "of complex ones, which SUM and AVG alone take",
                   to_string(op), c10::toString(tensor.scalar_type()));
             });
}

c10::intrusive_ptr<c10d::Backend> FlatCall::backend_for(c10::DeviceType type) const {
  for (const c10::Device& device : comm_.group()->getDeviceTypes()) {
    if (device.type() == type) return comm_.group()->getBackend(type);
  }
  return {};
}

void FlatCall::agree(const at::Tensor& tensor, int64_t count) {
  if (tensor.defined()) {
    spec_.say([this, type = tensor.scalar_type(), count] {
      std::string text = c10::toString(type);
      if (count >= 0) text += fmt::format(" [{}]", count);
      if (op_) text += ", " + to_string(*op_);
      if (spec_.root >= 0) text += fmt::format(", root {}", spec_.root);
      return text;
    });
  }
}

void FlatCall::agree(const Tensors& tensors) {
  spec_.say([&tensors] {
    std::string text;
    for (const at::Tensor& tensor : tensors) {
      text += fmt::format("{} [{}]; ", c10::toString(tensor.scalar_type()), tensor.numel());
    }
    return text;
  });
}

void FlatCall::exchanges(std::vector<int64_t> sent, std::vector<int64_t> expected) {
  row_ = {name_, std::move(sent), std::move(expected)};
}

void FlatCall::compare(const ComparingBackend& comparer) const {
  Comparison comparison;
  comparison.what = spec_.words ? fmt::format("{} of {}", name_, (*spec_.words)()) : name_;
  comparison.digest = Fingerprint(comparison.what);
  if (is_wrong()) {
    comparison.problem = fmt::format("{}: {}", name_, problem());
  } else {
    comparison.row = row_;
  }
  if (comparer) {
    comparer->compare(std::move(comparison))->wait();
  } else {
    comparison.row.call = name_;
    compare_by_gathering(*backend_for(c10::DeviceType::CPU), comparison);
  }
}

void FlatCall::report_or_check() {
  // Where this rank's tensors do not say what the others use, wrong as they are.
  const bool on_cpu =
      device_ ? device_->is_cpu()
              : !is_wrong() || device_of(at::Tensor(), *comm_.group()) == c10::DeviceType::CPU;
  const bool is_all_to_all = row_.call != nullptr;
  if (!is_message() && (is_all_to_all || !on_cpu || is_wrong())) {
    c10d::ProcessGroup& group = *comm_.group();
    const auto comparer = on_cpu ? cpu_comparer_of(group) : comparer_of(group);
    if (comparer) {
      // On the CPU the call has a header of its own, unless it cannot be made.
      if (!on_cpu || is_wrong()) compare(comparer);
    } else if (on_cpu && is_all_to_all && size_ > 1 && compares_by_gathering() &&
               backend_for(c10::DeviceType::CPU)) {
      compare(comparer);
    }
  }
  if (is_wrong()) {
    throw CollectiveArgumentError(fmt::format("{}: {} (rank {} of communicator \"{}\")", name_,
                                              problem(), rank_, comm_.name()));
  }
}

void FlatCall::run(const std::function<WorkPtr(c10d::Backend&)>& start) {
  report_or_check();
  const auto backend = backend_for(device_ ? device_->type() : c10::DeviceType::CPU);
  if (!backend) {
    throw CollectiveArgumentError(
        fmt::format("{}: the communicator \"{}\" has no backend for the CPU", name_, comm_.name()));
  }
  const c10::NoGradGuard no_grad;
  const StreamScope scope(comm_.stream(), device_);
  // Its name is told and not compared: one rank may call the form in place, another one not.
  const CallScope name(name_, CallScope::Comparison::kNone);
  if (const WorkPtr work = start(*backend)) work->wait();
  // The latest first: it may be a copy of a copy.
  for (auto it = to_copy_.rbegin(); it != to_copy_.rend(); ++it) {
    it->first.copy_(it->second.view(it->first.sizes()));
  }
  scope.synchronize();
}

at::Tensor FlatCall::flat_to_read(const at::Tensor& tensor) const {
  return tensor.contiguous().resolve_conj().resolve_neg().view(-1);
}

at::Tensor FlatCall::flat_to_write(const at::Tensor& tensor) {
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) return tensor.view(-1);
  at::Tensor flat = at::empty({tensor.numel()}, tensor.options().requires_grad(false));
  to_copy_.emplace_back(tensor, flat);
  return flat;
}

at::Tensor FlatCall::flat_to_update(const at::Tensor& tensor) {
  at::Tensor flat = flat_to_write(tensor);
  if (!flat.is_alias_of(tensor)) flat.copy_(tensor.contiguous().view(-1));
  return flat;
}

at::Tensor FlatCall::flat_to_update(const at::Tensor& recv, const at::Tensor& send) {
  if (send.is_same(recv)) return flat_to_update(recv);
  at::Tensor flat = flat_to_write(recv);
  return flat.copy_(flat_to_read(apart(send, recv)));
}

at::Tensor FlatCall::apart(const at::Tensor& input, const at::Tensor& output) {
  return input.is_alias_of(output) ? input.clone() : input;
}

at::Tensor FlatCall::moved(const at::Tensor& flat) const {
  return keeps_inputs() ? flat : flat.resolve_conj().view(at::kByte);
}

FlatCall::Tensors FlatCall::moved(Tensors parts) const {
  for (at::Tensor& part : parts) part = moved(part);
  return parts;
}

FlatCall::Tensors FlatCall::blocks(const at::Tensor& flat) const {
  const int64_t count = flat.numel() / size_;
  Tensors parts;
  for (int rank = 0; rank < size_; ++rank) parts.push_back(flat.narrow(0, rank * count, count));
  return parts;
}

at::Tensor FlatCall::to_reduce(const at::Tensor& flat) const {
  return keeps_inputs() ? flat : summable(flat).view(-1);
}

at::Tensor FlatCall::to_reduce_in(const at::Tensor& flat) {
  at::Tensor reduced = to_reduce(flat);
  if (!reduced.is_alias_of(flat)) to_copy_.emplace_back(flat, reduced);
  return reduced;
}

bool FlatCall::keeps_inputs() const {
  return static_cast<bool>(ComparingBackend(backend_for(device_->type())));
}

}  // namespace meshrun::bagua::detail
