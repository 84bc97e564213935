// Makes "nccl" known to process_group_factory.h in programs that link this file. Needs
// --config=cuda.
//
// Its store prefix ends in kNcclPrefix, by which AgentStore knows the keys of unique ids.
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "ATen/record_function.h"
#include "c10/cuda/CUDAGraphsC10Utils.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#include "nccl.h"
#include "parallel/comm/interface/stream_calls.h"
#include "parallel/comm/process_group_factory.h"
#include "parallel/comm/store/agent_store.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"

namespace meshrun {
namespace {

void check(ncclResult_t result, const char* call) {
  TORCH_CHECK_WITH(DistBackendError, result == ncclSuccess, call, ": ", ncclGetErrorString(result),
                   ": ", ncclGetLastError(nullptr));
}

// Those that reduce_scatter() is given.
ncclDataType_t nccl_type(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Byte:
      return ncclUint8;
    case c10::ScalarType::Char:
      return ncclInt8;
    case c10::ScalarType::Int:
      return ncclInt32;
    case c10::ScalarType::Long:
      return ncclInt64;
    case c10::ScalarType::Half:
      return ncclFloat16;
    case c10::ScalarType::BFloat16:
      return ncclBfloat16;
    case c10::ScalarType::Float:
      return ncclFloat32;
    case c10::ScalarType::Double:
      return ncclFloat64;
    default:
      TORCH_CHECK_TYPE(false, "NCCL cannot add ", type);
  }
}

// Whether somebody reads c10d's record of the last calls, where calls of StreamCalls are missing.
bool wants_records() {
  for (const char* const variable : {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}) {
    const char* const size = std::getenv(variable);
    if (size != nullptr && std::atoll(size) > 0) return true;
  }
  return false;
}

// ProcessGroupNCCL, with calls that its watchdog knows as it does its own.
class Nccl final : public c10d::ProcessGroupNCCL, public StreamCalls {
 public:
  using ProcessGroupNCCL::ProcessGroupNCCL;

  bool takes_next(c10::Device device) override {
    if (wants_records_ || blockingWait_ || enableNanCheck_ || enableTiming_.load() ||
        coalescing_state_ != 0 || dist_debug_level_ != c10d::DebugLevel::Off ||
        at::hasCallbacks()) {  // a profiler
      return false;
    }
    if (communicator_ == nullptr || device != communicators_device_) {
      communicator_ = getNCCLComm(std::to_string(device.index()));
      communicators_device_ = device;
    }
    return communicator_ != nullptr && !useNonblocking();
  }

  void all_gather(const Where& where, void* all, Piece own) override {
    call(where, c10d::OpType::_ALLGATHER_BASE, [&](ncclComm_t communicator, cudaStream_t stream) {
      check(ncclAllGather(own.data, all, own.bytes, ncclUint8, communicator, stream),
            "ncclAllGather");
    });
  }

  void reduce_scatter(const Where& where, void* sum, const void* all, size_t count,
                      c10::ScalarType type) override {
    call(where, c10d::OpType::_REDUCE_SCATTER_BASE,
         [&](ncclComm_t communicator, cudaStream_t stream) {
           check(ncclReduceScatter(all, sum, count, nccl_type(type), ncclSum, communicator, stream),
                 "ncclReduceScatter");
         });
  }

  void send_and_receive(const Where& where, std::span<const Piece> sends,
                        std::span<const Piece> receives) override {
    grouped(where, c10d::OpType::ALLTOALL, [&](ncclComm_t communicator, cudaStream_t stream) {
      for (int step = 0; step < size_; ++step) {
        const int to = (rank_ + step) % size_;
        const int from = (rank_ + size_ - step) % size_;
        const Piece& sent = sends[static_cast<size_t>(to)];
        const Piece& received = receives[static_cast<size_t>(from)];
        if (received.bytes > 0) {
          check(ncclRecv(received.data, received.bytes, ncclUint8, from, communicator, stream),
                "ncclRecv");
        }
        if (sent.bytes > 0) {
          check(ncclSend(sent.data, sent.bytes, ncclUint8, to, communicator, stream), "ncclSend");
        }
      }
    });
  }

  void broadcast_each(const Where& where, std::span<const Piece> pieces) override {
    grouped(where, c10d::OpType::BROADCAST, [&](ncclComm_t communicator, cudaStream_t stream) {
      for (size_t root = 0; root < pieces.size(); ++root) {
        const Piece& piece = pieces[root];
        if (piece.bytes == 0) continue;
        check(ncclBroadcast(piece.data, piece.data, piece.bytes, ncclUint8, static_cast<int>(root),
                            communicator, stream),
              "ncclBroadcast");
      }
    });
  }

 private:
  // What the watchdog looks at.
  class Watched final : public WorkNCCL {
   public:
    Watched(Nccl& group, const Where& where, c10d::OpType type)
        : WorkNCCL(group.getGroupUid(), group.getGroupDesc(), group.communicators_device_,
                   group.rank_, type, group.seqCollective_, /*isP2P=*/false,
                   /*profilingTitle=*/nullptr, /*inputs=*/std::nullopt, /*enableTiming=*/false,
                   group.cudaEventCacheEnabled_.load()) {
      ncclComm_ = group.communicator_;
      store_ = group.store_;
      opTimeout_ = where.timeout.count() > 0 ? where.timeout : group.options_->timeout;
    }
    void ends_on(const c10::cuda::CUDAStream& stream) { ncclEndEvent_->record(stream); }
  };

  template <typename Calls>
  void call(const Where& where, c10d::OpType type, const Calls& calls) {
    const c10::cuda::CUDAGuard guard(where.device);
    const auto stream = c10::cuda::getCurrentCUDAStream(where.device.index());
    const bool is_captured = c10::cuda::currentStreamCaptureStatusMayInitCtx() !=
                             c10::cuda::CaptureStatus::None;
    ++seqCollective_;
    ++op_id_;
    // Raises where the watchdog has aborted it.
    calls(reinterpret_cast<ncclComm_t>(getCommPtr()), stream.stream());
    if (is_captured) return;  // it has not run, and runs without a watch
    auto watched = c10::make_intrusive<Watched>(*this, where, type);
    watched->ends_on(stream);
    workEnqueue(watched);
  }

  template <typename Calls>
  void grouped(const Where& where, c10d::OpType type, const Calls& calls) {
    call(where, type, [&](ncclComm_t communicator, cudaStream_t stream) {
      check(ncclGroupStart(), "ncclGroupStart");
      try {
        calls(communicator, stream);
      } catch (...) {
        ncclGroupEnd();
        throw;
      }
      check(ncclGroupEnd(), "ncclGroupEnd");
    });
  }

  const bool wants_records_ = wants_records();
  std::shared_ptr<c10d::NCCLComm> communicator_;  // of this device
  c10::Device communicators_device_ = c10::Device(c10::DeviceType::CUDA);
};

// The group whose communicator to split; null: none.
c10::intrusive_ptr<c10d::ProcessGroupNCCL> parent_of(const ProcessGroupOptions& options) {
  const char* split = std::getenv("MESHRUN_NCCL_SPLIT");
  const bool is_refused = split != nullptr && std::string_view(split) == "0";
  if (options.split_from == nullptr || !options.device || is_refused) return nullptr;
  const auto backend = options.split_from->getBackend(c10::DeviceType::CUDA);
  auto* const nccl = dynamic_cast<c10d::ProcessGroupNCCL*>(backend.get());
  return nccl == nullptr ? nullptr : c10::intrusive_ptr<c10d::ProcessGroupNCCL>::reclaim_copy(nccl);
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, const ProcessGroupOptions& options) {
  // The watchdog stays on (TORCH_NCCL_ASYNC_ERROR_HANDLING is left as it is): without it a lost
  // rank hangs the rest.
  auto nccl = c10d::ProcessGroupNCCL::Options::create();
  if (options.timeout) nccl->timeout = *options.timeout;
  nccl->group_name = nccl->group_desc = options.name;
  // Without them c10d's records and reports name the ranks of a group as those of the world.
  for (int member = 0; member < size; ++member) {
    const auto index = static_cast<size_t>(member);
    nccl->global_ranks_in_group.push_back(
        static_cast<uint64_t>(options.world_ranks.empty() ? member : options.world_ranks[index]));
  }
  if (auto parent = parent_of(options)) {
    nccl->split_from = std::move(parent);
    nccl->split_color = options.split_color;
  }
  auto backend = c10::make_intrusive<Nccl>(
      c10::make_intrusive<c10d::PrefixStore>(kNcclPrefix, store), rank, size, std::move(nccl));
  // In a group of sends and receives a rank may have none, and would be missing from a communicator
  // that is made by the first call. A split needs all ranks at the same time anyway.
  if (options.device) backend->eagerConnectSingleDevice(*options.device);
  return backend;
}

[[maybe_unused]] const bool kRegistered = register_cuda_backend("nccl", make_nccl);

}  // namespace
}  // namespace meshrun
