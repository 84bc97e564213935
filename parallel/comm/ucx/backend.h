// c10d's backend over UCX: the default for CPU tensors.
//
// A thin shell: checks arguments, turns tensors into pieces of memory (base/tensor_layout.h), asks
// engine/planning/algorithms.h for a schedule, submits it, and wraps the operation in a Work. Takes
// dense CPU tensors of any dtype. Contiguous tensors, and slices of them along one dimension, are
// used where they are; others are copied once, in or out, and counted.
//
// Every collective compares its header first, unless MESHRUN_CHECK_COLLECTIVES=0: a wrong call on
// one rank is an error on all. Sums are taken in a fixed order, that of the ranks, on several hosts
// within each host and then by hosts (engine/planning/two_levels.h): the same bits on every rank,
// in every run, and as a one-process oracle that adds in that order.
//
// Not offered, with an error that says so: tensors that are not on the CPU, PREMUL_SUM.
//
// Threads: any; calls of one group are ordered by the caller, equally on all ranks, as c10d asks.
// Constructing publishes an address and waits for nobody.
// Errors: RendezvousError from the constructor; CollectiveForbiddenError from the call
// (no_collectives.h); all else from the Work (collective_errors.h).
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/mutex.h"
#include "parallel/base/callback_threads.h"
#include "parallel/base/reduce.h"
#include "parallel/comm/interface/call_comparer.h"
#include "parallel/comm/interface/rounded_sum.h"
#include "parallel/comm/interface/v_collectives.h"
#include "parallel/comm/ucx/engine/execution/engine.h"
#include "parallel/comm/ucx/engine/planning/schedule_cache.h"
#include "parallel/comm/ucx/monitored_barrier.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace meshrun {

class UcxWork;

class UcxBackend : public c10d::Backend,
                   public VCollectives,
                   public CallComparer,
                   public RoundedSum {
 public:
  struct Options : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
        : c10d::Backend::Options("ucx", timeout) {}
    // Shared by all groups of a process; absent: one of its own, without a watch.
    std::shared_ptr<ucx::Engine> engine;
    // The host of each member, by any number, as the launcher told every rank alike; empty: one.
    std::vector<int> hosts;
    // Sums on several hosts are taken in rank order, and not in two levels (algorithms.h). Equal on
    // all ranks.
    bool sums_in_rank_order = false;
    bool check_collectives = true;
    // To find the peers' addresses.
    std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  };

  // Keys of `store` are the group's own, and used by one group only.
  UcxBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
             c10::intrusive_ptr<Options> options);
  ~UcxBackend() override;

  const std::string getBackendName() const override { return "ucx"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }

  using VCollectives::WorkPtr;
  using Tensors = std::vector<at::Tensor>;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  // Sums of COO tensors; allreduce() comes here, too. Waits for the ranks' numbers of elements.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& output_lists, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int dst, int tag) override;
  WorkPtr recv(Tensors& tensors, int src, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  // monitored_barrier.h: by the store alone, with CollectiveTimeoutError.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // v_collectives.h. Along dim 0 a rank copies its own piece alone. Along other dims pieces of
  // short rows, or of few bytes, are packed at the end where they are strided.
  WorkPtr run(const at::Tensor& output, const at::Tensor& input, CollectiveSpec spec) override;
  // For ranks on other hosts slices are better gathered before, by all of this rank's threads.
  bool takes_fill() const override { return group_->config().hosts.is_one(); }
  // Nothing but the header check, for a collective that another backend is about to run. A barrier
  // where headers are not compared.
  WorkPtr compare(Comparison comparison) override;
  NodeNumber next_node_number() override;

  // rounded_sum.h.
  WorkPtr all_reduce_rounded(const at::Tensor& tensor) override;

  // Calls between the two are put off and start together; the Work is of all of them. Per thread.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  // c10d's reducer takes its buckets from here. Memory of the process's shared heap, into which
  // ranks of the host write, while at most half of the heap is in use: results and scratch memory
  // need the rest. Else LibTorch's. A child of fork() shares such a bucket with its parent.
  bool supportsTensorAlloc(c10::DeviceIndex index) override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  // A group of some of this one's ranks, over the same engine; null on a rank that is not among
  // them. All of `ranks` call it.
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;
  // Reads what messages have come, so that a rank which calls nothing else learns of a failure of
  // another one. Does not wait.
  c10d::ErrorType getError() override;
  // Ends all operations, here and on the other ranks, with GroupAbortedError; so do later ones.
  void abort() override;
  // Waits for the operations of this group that are under way, at most their timeouts. Later ones
  // raise GroupAbortedError here, and PeerLeftError on ranks that need this one.
  void shutdown() override;

  const std::shared_ptr<ucx::Engine>& engine() const { return group_->engine(); }
  const std::shared_ptr<ucx::Group>& group() const { return group_; }
  std::string flight_record() const { return group_->flight_record(); }

  // One call on its way to the engine, and where its memory must lie (backend_plan.h).
  struct Plan;

 private:
  struct Coalescing;
  struct Plans;

  // In one operation, for a Work of this type, or for `work`, which has collected them. `finish`
  // runs before it counts as complete, of plans that copy nothing.
  WorkPtr submit(std::shared_ptr<Plans> plans, c10d::OpType type,
                 c10::intrusive_ptr<UcxWork> work = {}, std::function<void()>* finish = nullptr);
  // The Work of all, where this thread collects calls; null: it does not, and `plans` are here.
  c10::intrusive_ptr<UcxWork> put_off(Plans& plans);
  static std::vector<Plan> take_messages(Plans& plans);
  ucx::OperationSpec operation_of(const std::shared_ptr<Plans>& plans);
  ucx::PointToPointSpec message_of(Plan&& plan) const;
  void fill_in(ucx::OperationSpec& spec, const Plans& plans) const;
  std::shared_ptr<const ucx::Schedule> schedule_of(const Plans& plans);
  // What was called, or the first problem of it.
  static std::string words_of(const Plans& plans);
  // The rows of its all-to-alls, which headers compare; empty where it has none.
  static ucx::PieceSizes sizes_of(const Plans& plans);
  std::chrono::nanoseconds timeout_of(std::chrono::milliseconds asked) const;
  std::shared_ptr<Plans> message(bool is_send, const Tensors& tensors, int peer, int tag) const;

  const c10::intrusive_ptr<Options> options_;
  // Stands for what algorithms depend on beside a call; compared with each.
  const int64_t algorithms_digest_;
  std::atomic<int64_t> timeout_ms_;
  std::shared_ptr<ucx::Group> group_;
  ucx::ScheduleCache schedules_;

  MonitoredBarrier monitored_barrier_;
  Mutex mu_;
  std::map<std::thread::id, std::unique_ptr<Coalescing>> coalescing_ MESHRUN_GUARDED_BY(mu_);
  const uint64_t serial_ = NodeNumber::new_serial();
  CallOrder call_order_;  // of collectives
  // Autograd nodes made since the group's last operation, and its number.
  uint64_t nodes_ MESHRUN_GUARDED_BY(mu_) = 0;
  uint64_t nodes_after_ MESHRUN_GUARDED_BY(mu_) = 0;
  std::atomic<int> coalescing_threads_{0};
};

}  // namespace meshrun
