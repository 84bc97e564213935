#include "tests/parallel/support/nccl_stand_in.h"

#include <cstring>
#include <set>
#include <utility>

namespace meshrun {
namespace {

class DoneWork : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
};

void check_dtype(const at::Tensor& tensor) {
  static const auto& known =
      *new std::set<at::ScalarType>{at::kChar, at::kByte,  at::kBool,   at::kInt,     at::kLong,
                                    at::kHalf, at::kFloat, at::kDouble, at::kBFloat16};
  TORCH_CHECK_TYPE(
      known.count(tensor.scalar_type()) > 0,
      "Input tensor data type is not supported for NCCL process group: ", tensor.scalar_type());
  TORCH_CHECK_VALUE(tensor.is_contiguous(), "Tensors must be contiguous");
}

// As the other ranks' contribution; without an operator of ATen's, which tests count.
void clear(const at::Tensor& tensor) {
  if (!tensor.is_meta()) std::memset(tensor.data_ptr(), 0, tensor.nbytes());
}

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> NcclStandIn::make_group(int rank, int size) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(rank, size);
  group->setDefaultBackend(c10d::ProcessGroup::CUSTOM);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::CUSTOM,
                    c10::make_intrusive<NcclStandIn>(rank, size));
  return group;
}

NcclStandIn& NcclStandIn::of(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  return dynamic_cast<NcclStandIn&>(*group->getBackend(c10::DeviceType::CPU));
}

std::vector<std::string> NcclStandIn::calls() { return std::exchange(calls_, {}); }

NcclStandIn::WorkPtr NcclStandIn::called(const std::string& what, const at::Tensor& tensor,
                                         bool async, const std::string& rest) {
  check_dtype(tensor);
  calls_.push_back(what + " " + c10::toString(tensor.scalar_type()) + " " +
                   std::to_string(tensor.numel()) + rest);
  group_is_async_ = async;
  if (is_grouping_ || !async) return {};
  return c10::make_intrusive<DoneWork>();
}

void NcclStandIn::startCoalescing() {
  TORCH_CHECK(!is_grouping_, "a group is open");
  is_grouping_ = true;
}

NcclStandIn::WorkPtr NcclStandIn::endCoalescing() {
  TORCH_CHECK(is_grouping_, "no group is open");
  is_grouping_ = false;
  if (!group_is_async_) return {};
  return c10::make_intrusive<DoneWork>();
}

NcclStandIn::WorkPtr NcclStandIn::broadcast(Tensors& tensors,
                                            const c10d::BroadcastOptions& options) {
  if (options.rootRank != rank_) clear(tensors[0]);
  return called("broadcast", tensors[0], options.asyncOp,
                " from " + std::to_string(options.rootRank));
}

NcclStandIn::WorkPtr NcclStandIn::allreduce(Tensors& tensors,
                                            const c10d::AllreduceOptions& options) {
  return called("all_reduce", tensors[0], options.asyncOp);
}

NcclStandIn::WorkPtr NcclStandIn::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(output.numel() == input.numel() * size_, "output of ", output.numel());
  check_dtype(output);
  const at::Tensor own = input.clone();
  clear(output);
  output.narrow(0, rank_ * own.numel(), own.numel()).copy_(own);
  return called("all_gather", input, options.asyncOp, " of " + std::to_string(output.numel()));
}

NcclStandIn::WorkPtr NcclStandIn::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(input.numel() == output.numel() * size_, "input of ", input.numel());
  check_dtype(input);
  output.copy_(input.narrow(0, rank_ * output.numel(), output.numel()));
  return called("reduce_scatter", output, options.asyncOp, " of " + std::to_string(input.numel()));
}

NcclStandIn::WorkPtr NcclStandIn::send(Tensors& tensors, int dst, int) {
  return called("send", tensors[0], /*async=*/true, " to " + std::to_string(dst));
}

NcclStandIn::WorkPtr NcclStandIn::recv(Tensors& tensors, int src, int) {
  clear(tensors[0]);
  return called("recv", tensors[0], /*async=*/true, " from " + std::to_string(src));
}

bool NcclStandIn::takes_calls(c10::Device) { return takes_stream_calls_; }

void NcclStandIn::all_gather(c10::Device, void* all, Piece own) {
  const size_t bytes = own.bytes * static_cast<size_t>(size_);
  const std::vector<char> kept(static_cast<char*>(own.data),
                               static_cast<char*>(own.data) + own.bytes);
  std::memset(all, 0, bytes);
  std::memcpy(static_cast<char*>(all) + own.bytes * static_cast<size_t>(rank_), kept.data(),
              own.bytes);
  calls_.push_back("queued all_gather " + std::to_string(own.bytes) + " of " +
                   std::to_string(bytes));
}

void NcclStandIn::reduce_scatter(c10::Device, void* sum, const void* all, size_t count,
                                 c10::ScalarType type) {
  const size_t bytes = count * c10::elementSize(type);
  std::memcpy(sum, static_cast<const char*>(all) + bytes * static_cast<size_t>(rank_), bytes);
  calls_.push_back("queued reduce_scatter " + std::string(c10::toString(type)) + " " +
                   std::to_string(count));
}

void NcclStandIn::send_and_receive(c10::Device, std::span<const Piece> sends,
                                   std::span<const Piece> receives) {
  std::string call = "queued";
  for (int rank = 0; rank < size_; ++rank) {
    const Piece& sent = sends[static_cast<size_t>(rank)];
    const Piece& received = receives[static_cast<size_t>(rank)];
    if (rank == rank_) {
      TORCH_CHECK(sent.bytes == received.bytes, "an own piece of two sizes");
      if (sent.bytes > 0) std::memmove(received.data, sent.data, sent.bytes);
    } else if (received.bytes > 0) {
      std::memset(received.data, 0, received.bytes);
    }
    if (sent.bytes > 0) call += " " + std::to_string(sent.bytes) + " to " + std::to_string(rank);
    if (received.bytes > 0) {
      call += " " + std::to_string(received.bytes) + " from " + std::to_string(rank);
    }
  }
  calls_.push_back(call);
}

void NcclStandIn::broadcast_each(c10::Device, std::span<const Piece> pieces, const void* own) {
  for (int root = 0; root < size_; ++root) {
    const Piece& piece = pieces[static_cast<size_t>(root)];
    if (piece.bytes == 0) continue;
    if (root == rank_) {
      std::memmove(piece.data, own, piece.bytes);
    } else {
      std::memset(piece.data, 0, piece.bytes);
    }
    calls_.push_back("queued broadcast " + std::to_string(piece.bytes) + " from " +
                     std::to_string(root));
  }
}

}  // namespace meshrun
