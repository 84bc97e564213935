#include "parallel/shard/ring/parcel_exchange.h"

#include <utility>

#include "ATen/ops/empty.h"
#include "parallel/base/extents.h"
#include "parallel/comm/v_collectives_of.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using at::Tensor;
using Lengths = std::vector<int64_t>;

Tensor bytes_of(const Tensor& tensor) { return tensor.reshape({-1}).view(at::kByte); }

// Where each parcel begins in a message that is ordered by rank; parcels of one rank keep their
// order. `sizes`: bytes per rank.
Lengths place(const std::vector<std::pair<int, int64_t>>& parcels, Lengths& sizes) {
  for (const auto& [rank, bytes] : parcels) sizes[static_cast<size_t>(rank)] += bytes;
  Lengths next = extent_offsets(sizes);
  Lengths begins;
  for (const auto& [rank, bytes] : parcels) {
    begins.push_back(next[static_cast<size_t>(rank)]);
    next[static_cast<size_t>(rank)] += bytes;
  }
  return begins;
}

}  // namespace

ParcelExchange::ParcelExchange(const GroupArgument::Handle& group, c10::Device device,
                               const std::vector<Parcel>& sent,
                               const std::vector<ExpectedParcel>& expected, CollectiveSpec spec) {
  const auto world = static_cast<size_t>(group->getSize());
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kByte);
  Lengths input_sizes(world, 0);
  Lengths output_sizes(world, 0);
  if (spec.problem.empty()) {
    std::vector<std::pair<int, int64_t>> outgoing;
    for (const Parcel& parcel : sent) {
      outgoing.emplace_back(parcel.rank, static_cast<int64_t>(parcel.tensor.nbytes()));
    }
    const Lengths begins = place(outgoing, input_sizes);
    if (sent.size() == 1) {
      input_ = bytes_of(sent[0].tensor);
    } else {
      input_ = at::empty({total_extent(input_sizes)}, options);
      for (size_t i = 0; i < sent.size(); ++i) {
        input_.narrow(0, begins[i], outgoing[i].second).copy_(bytes_of(sent[i].tensor));
      }
    }
    std::vector<std::pair<int, int64_t>> incoming;
    for (const ExpectedParcel& parcel : expected) {
      incoming.emplace_back(parcel.rank, parcel.num_bytes);
      bytes_.push_back(parcel.num_bytes);
    }
    begins_ = place(incoming, output_sizes);
    output_ = at::empty({total_extent(output_sizes)}, options);
  }
  spec.kind = CollectiveSpec::Kind::kAllToAllV;
  spec.cut.sizes.assign(input_sizes.begin(), input_sizes.end());
  spec.received.sizes.assign(output_sizes.begin(), output_sizes.end());
  spec.async = true;
  work_ = run_v_collective(group, device.type(), output_, input_, std::move(spec));
}

void ParcelExchange::wait() {
  if (work_) work_->wait();
  work_.reset();
  input_.reset();
}

Tensor ParcelExchange::received(size_t index, at::ScalarType dtype, at::IntArrayRef shape) const {
  Tensor bytes = output_.narrow(0, begins_[index], bytes_[index]);
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  if (bytes.storage_offset() % element != 0) bytes = bytes.clone();
  return bytes.view(dtype).view(shape);
}

}  // namespace meshrun
