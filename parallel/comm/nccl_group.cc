#include "parallel/comm/nccl_group.h"

#include <cstdlib>
#include <utility>

#include "ATen/record_function.h"
#include "c10/cuda/CUDAGraphsC10Utils.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#include "parallel/base/periodic_calls.h"

namespace meshrun {
namespace {

void check(ncclResult_t result, const char* call) {
  TORCH_CHECK_WITH(DistBackendError, result == ncclSuccess, call, ": ", ncclGetErrorString(result),
                   ": ", ncclGetLastError(nullptr));
}

ncclDataType_t nccl_type(c10::ScalarType type) {
  const auto found = c10d::ncclDataType.find(type);
  TORCH_CHECK_TYPE(found != c10d::ncclDataType.end(), "NCCL cannot add ", type);
  return found->second;
}

// Whether somebody reads c10d's record of the last calls, where these are missing. It exists by
// default; so only a variable that is set counts.
bool records_are_asked_for() {
  for (const char* const variable : {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}) {
    const char* const size = std::getenv(variable);
    if (size != nullptr) return std::atoll(size) > 0;
  }
  return std::getenv("TORCH_NCCL_DEBUG_INFO_PIPE_FILE") != nullptr;
}

PeriodicCalls& every_100_ms() {
  static auto* const calls = new PeriodicCalls(std::chrono::milliseconds(100));
  return *calls;
}

}  // namespace

// A Work that only the watchdog sees.
class NcclGroup::Watched final : public WorkNCCL {
 public:
  Watched(NcclGroup& group, Tail tail)
      : WorkNCCL(group.getGroupUid(), group.getGroupDesc(), tail.device, group.rank_, tail.type,
                 tail.sequence_number, tail.type == c10d::OpType::COALESCED) {
    ncclComm_ = std::move(tail.communicator);
    ncclEndEvent_ = std::move(tail.end);
    store_ = group.store_;
    opTimeout_ = group.options_->timeout;
  }
};

NcclGroup::NcclGroup(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                     c10::intrusive_ptr<Options> options)
    : ProcessGroupNCCL(std::move(store), rank, size, std::move(options)),
      records_are_asked_for_(records_are_asked_for()) {
  every_100_ms().add(this, [this] { watch_tail(); });
}

NcclGroup::~NcclGroup() { every_100_ms().remove(this); }

template <typename Calls>
void NcclGroup::call(c10::Device device, c10d::OpType type, const Calls& calls) {
  const c10::cuda::CUDAGuard guard(device);
  const auto stream = c10::cuda::getCurrentCUDAStream(device.index());
  const bool is_captured =
      c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  ++(type == c10d::OpType::COALESCED ? seqP2P_ : seqCollective_);
  ++op_id_;
  // Raises where the watchdog has aborted it.
  calls(reinterpret_cast<ncclComm_t>(getCommPtr()), stream.stream());
  // The watchdog does not see replays.
  if (!is_captured) note(device, type, stream);
}

template <typename Calls>
void NcclGroup::grouped(c10::Device device, c10d::OpType type, const Calls& calls) {
  call(device, type, [&](ncclComm_t communicator, cudaStream_t stream) {
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

std::shared_ptr<c10d::NCCLComm> NcclGroup::communicator_of(c10::Device device) {
  return getNCCLComm(std::to_string(device.index()));
}

bool NcclGroup::takes_calls(c10::Device device) {
  const bool has_debug_switch = records_are_asked_for_ || blockingWait_ || enableNanCheck_ ||
                                enableTiming_.load() || dist_debug_level_ != c10d::DebugLevel::Off;
  const bool has_profiler = at::hasCallbacks();
  return !has_debug_switch && !has_profiler && coalescing_state_ == 0 && !useNonblocking() &&
         communicator_of(device) != nullptr;
}

void NcclGroup::all_gather(c10::Device device, void* all, Piece own) {
  call(device, c10d::OpType::_ALLGATHER_BASE, [&](ncclComm_t communicator, cudaStream_t stream) {
    check(ncclAllGather(own.data, all, own.bytes, ncclUint8, communicator, stream),
          "ncclAllGather");
  });
}

void NcclGroup::reduce_scatter(c10::Device device, void* sum, const void* all, size_t count,
                               c10::ScalarType type) {
  call(device, c10d::OpType::_REDUCE_SCATTER_BASE,
       [&](ncclComm_t communicator, cudaStream_t stream) {
         check(ncclReduceScatter(all, sum, count, nccl_type(type), ncclSum, communicator, stream),
               "ncclReduceScatter");
       });
}

void NcclGroup::send_and_receive(c10::Device device, std::span<const Piece> sends,
                                 std::span<const Piece> receives) {
  grouped(device, c10d::OpType::COALESCED, [&](ncclComm_t communicator, cudaStream_t stream) {
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

void NcclGroup::broadcast_each(c10::Device device, std::span<const Piece> pieces, const void* own) {
  grouped(device, c10d::OpType::BROADCAST, [&](ncclComm_t communicator, cudaStream_t stream) {
    for (int root = 0; root < size_; ++root) {
      const Piece& piece = pieces[static_cast<size_t>(root)];
      if (piece.bytes == 0) continue;
      check(ncclBroadcast(root == rank_ ? own : piece.data, piece.data, piece.bytes, ncclUint8,
                          root, communicator, stream),
            "ncclBroadcast");
    }
  });
}

void NcclGroup::note(c10::Device device, c10d::OpType type, const c10::Stream& stream) {
  std::optional<Tail> on_another_stream;
  {
    const MutexLock lock(tail_mu_);
    if (tail_ && tail_->stream != stream) on_another_stream = std::exchange(tail_, std::nullopt);
    if (!tail_) {
      tail_.emplace(Tail{communicator_of(device), device,
                         std::make_shared<at::cuda::CUDAEvent>(cudaEventDisableTiming), stream,
                         type, 0});
    }
    tail_->type = type;
    tail_->sequence_number = type == c10d::OpType::COALESCED ? seqP2P_ : seqCollective_;
    tail_->end->record(c10::cuda::CUDAStream(stream));
  }
  if (on_another_stream) watch(std::move(*on_another_stream));
}

void NcclGroup::watch_tail() {
  std::optional<Tail> tail;
  {
    const MutexLock lock(tail_mu_);
    tail = std::exchange(tail_, std::nullopt);
  }
  if (tail) watch(std::move(*tail));
}

void NcclGroup::watch(Tail tail) {
  workEnqueue(c10::make_intrusive<Watched>(*this, std::move(tail)));
}

}  // namespace meshrun
