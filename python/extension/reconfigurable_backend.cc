#include "python/extension/reconfigurable_backend.h"

#include <algorithm>
#include <utility>

#include "ATen/core/ivalue.h"
#include "fmt/format.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/errors.h"
#include "python/extension/operators.h"

namespace meshrun::python {
namespace {

c10::intrusive_ptr<c10d::Work> completed() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), std::vector<at::Device>{});
  future->markCompleted(c10::IValue(std::vector<at::Tensor>()));
  return c10d::Work::create_from_future(future);
}

// All operations of `world` fail, and its engine ends with the last of its groups.
void end(const c10::intrusive_ptr<UcxBackend>& world, int64_t uuid) {
  world->group()->abort(
      fmt::format("Reconfiguration {} has ended the world that group \"{}\" had: its rank {} of {} "
                  "has gone on",
                  uuid, world->group()->config().name, world->getRank(), world->getSize()));
  world->abort();  // its monitored barrier, too
}

c10::intrusive_ptr<UcxBackend> world_of(const GroupCall& call, int64_t uuid) {
  try {
    return c10::dynamic_intrusive_pointer_cast<UcxBackend>(create_backend(call));
  } catch (const c10::DistError& error) {
    throw RendezvousError(fmt::format(
        "reconfiguration {} has no world: its {} members have met, but could not connect: {}", uuid,
        call.size, error.what_without_backtrace()));
  }
}

}  // namespace

ReconfigurableBackend::ReconfigurableBackend(GroupCall call)
    : BackendOfManyWorlds(call.rank, call.size), call_(std::move(call)), timeout_(call_.timeout) {}

c10::intrusive_ptr<UcxBackend> ReconfigurableBackend::world_or_null() const {
  const MutexLock lock(mu_);
  return world_;
}

c10::intrusive_ptr<UcxBackend> ReconfigurableBackend::world() const {
  auto world = world_or_null();
  if (world != nullptr) return world;
  throw BackendError(
      fmt::format("the group \"{}\" has no members yet, or its last reconfiguration failed: call "
                  "reconfigure() on each member, with the handles of all",
                  call_.name));
}

const MeetingPlace& ReconfigurableBackend::place() const {
  const MutexLock lock(mu_);
  if (place_ == nullptr) place_ = std::make_unique<MeetingPlace>();
  return *place_;
}

std::chrono::milliseconds ReconfigurableBackend::timeout() const {
  const MutexLock lock(mu_);
  return timeout_;
}

libtorch::ReconfigureHandle ReconfigurableBackend::get_reconfigure_handle() const {
  return place().handle();
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::reconfigure(
    const libtorch::ReconfigureOptions& options) {
  const Members members = place().members_of(options);
  GroupCall call = call_;
  call.rank = members.rank;
  call.size = static_cast<int>(members.handles.size());
  call.timeout = timeout();
  call.connect_timeout = std::min(options.timeout.value_or(call.timeout), kLongestRendezvous);
  call.host = members.host;
  {
    const MutexLock lock(mu_);
    if (!used_.insert(members.uuid).second) {
      throw CollectiveArgumentError(fmt::format(
          "reconfigure() got the uuid {} a second time: pass another one each time, the "
          "same on all members",
          members.uuid));
    }
  }
  call.store = place().meet(members, *call.connect_timeout);
  c10::intrusive_ptr<UcxBackend> world;
  {
    const MutexLock lock(mu_);
    world_.swap(world);
  }
  if (world != nullptr) end(world, members.uuid);
  world.reset();
  world = world_of(call, members.uuid);
  set_place(call.rank, call.size);
  forget_traced_programs();
  const MutexLock lock(mu_);
  world_ = std::move(world);
  return completed();
}

c10::intrusive_ptr<c10d::Backend::Options> ReconfigurableBackend::getBackendOptions() {
  if (const auto world = world_or_null()) return world->getBackendOptions();
  auto options = c10::make_intrusive<UcxBackend::Options>(timeout());
  options->group_name = options->group_desc = call_.name;
  return options;
}

void ReconfigurableBackend::setTimeout(std::chrono::milliseconds timeout) {
  if (const auto world = world_or_null()) world->setTimeout(timeout);
  const MutexLock lock(mu_);
  timeout_ = timeout;
}

bool ReconfigurableBackend::supportsTensorAlloc(c10::DeviceIndex index) {
  const auto world = world_or_null();
  return world != nullptr && world->supportsTensorAlloc(index);
}

bool ReconfigurableBackend::takes_fill() const {
  const auto world = world_or_null();
  return world != nullptr && world->takes_fill();
}

c10d::ErrorType ReconfigurableBackend::getError() {
  const auto world = world_or_null();
  return world == nullptr ? c10d::ErrorType::SUCCESS : world->getError();
}

void ReconfigurableBackend::abort() {
  if (const auto world = world_or_null()) world->abort();
}

void ReconfigurableBackend::shutdown() {
  if (const auto world = world_or_null()) world->shutdown();
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::broadcast(
    Tensors& tensors, const c10d::BroadcastOptions& options) {
  return world()->broadcast(tensors, options);
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::allreduce(
    Tensors& tensors, const c10d::AllreduceOptions& options) {
  return world()->allreduce(tensors, options);
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::allreduce_sparse(
    Tensors& tensors, const c10d::AllreduceOptions& options) {
  return world()->allreduce_sparse(tensors, options);
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return world()->allreduce_coalesced(tensors, options);
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::reduce(Tensors& tensors,
                                                             const c10d::ReduceOptions& options) {
  return world()->reduce(tensors, options);
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::allgather(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return world()->allgather(outputs, inputs, options);
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  return world()->_allgather_base(output, input, options);
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::allgather_coalesced(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return world()->allgather_coalesced(outputs, inputs, options);
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return world()->allgather_into_tensor_coalesced(outputs, inputs, options);
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::gather(std::vector<Tensors>& outputs,
                                                             Tensors& inputs,
                                                             const c10d::GatherOptions& options) {
  return world()->gather(outputs, inputs, options);
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::scatter(Tensors& outputs,
                                                              std::vector<Tensors>& inputs,
                                                              const c10d::ScatterOptions& options) {
  return world()->scatter(outputs, inputs, options);
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) {
  return world()->reduce_scatter(outputs, inputs, options);
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  return world()->_reduce_scatter_base(output, input, options);
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  return world()->reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::alltoall_base(
    at::Tensor& output, at::Tensor& input, Sizes& output_splits, Sizes& input_splits,
    const c10d::AllToAllOptions& options) {
  return world()->alltoall_base(output, input, output_splits, input_splits, options);
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::alltoall(
    Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  return world()->alltoall(outputs, inputs, options);
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::send(Tensors& tensors, int dst, int tag) {
  return world()->send(tensors, dst, tag);
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::recv(Tensors& tensors, int src, int tag) {
  return world()->recv(tensors, src, tag);
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::recvAnysource(Tensors& tensors, int tag) {
  return world()->recvAnysource(tensors, tag);
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::barrier(const c10d::BarrierOptions& options) {
  return world()->barrier(options);
}

void ReconfigurableBackend::monitoredBarrier(const c10d::BarrierOptions& options,
                                             bool wait_all_ranks) {
  world()->monitoredBarrier(options, wait_all_ranks);
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::run(const at::Tensor& output,
                                                          const at::Tensor& input,
                                                          CollectiveSpec spec) {
  return world()->run(output, input, std::move(spec));
}

ReconfigurableBackend::WorkPtr ReconfigurableBackend::compare(Comparison comparison) {
  return world()->compare(std::move(comparison));
}

NodeNumber ReconfigurableBackend::next_node_number() { return world()->next_node_number(); }

ReconfigurableBackend::WorkPtr ReconfigurableBackend::all_reduce_rounded(const at::Tensor& tensor) {
  return world()->all_reduce_rounded(tensor);
}

void ReconfigurableBackend::startCoalescing() { world()->startCoalescing(); }

ReconfigurableBackend::WorkPtr ReconfigurableBackend::endCoalescing() {
  return world()->endCoalescing();
}

at::Tensor ReconfigurableBackend::allocateTensor(long size, at::TensorOptions options) {
  return world()->allocateTensor(size, options);
}

ReconfigurableBackend::BackendPtr ReconfigurableBackend::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  return world()->split(store, ranks, options);
}

uint64_t ReconfigurableBackend::getSequenceNumberForGroup() {
  return world()->getSequenceNumberForGroup();
}

}  // namespace meshrun::python
