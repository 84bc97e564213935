#include "parallel/checkpoint/piece_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "parallel/checkpoint/tensor_stream.h"
#include "parallel/collectives/all_to_all_v.h"

namespace meshrun::detail {
namespace {

// A tensor in the stream of all that travel.
struct Streamed {
  const TravellingTensor* travelling = nullptr;
  StreamPlace place;
  // By rank; empty where a lower rank has the same elements.
  std::vector<Region> regions;
};

std::vector<Streamed> stream_of(const std::vector<TravellingTensor>& tensors) {
  std::vector<Streamed> stream;
  uint64_t end = 0;
  for (const TravellingTensor& travelling : tensors) {
    const FileTensor& tensor = *travelling.tensor;
    Streamed& next = stream.emplace_back();
    next.travelling = &travelling;
    next.place = StreamPlace::after(end, tensor.info);
    end = next.place.end;
    for (const Region& region : tensor.cut->by_rank) {
      Region stored = stored_region(region, tensor.info);
      const bool is_first = std::ranges::find(next.regions, stored) == next.regions.end();
      if (!is_first) stored.size.assign(stored.size.size(), 0);
      next.regions.push_back(std::move(stored));
    }
  }
  return stream;
}

// Bytes that `rank` has of the interval.
int64_t bytes_of(const std::vector<Streamed>& stream, const StreamInterval& interval, size_t rank) {
  int64_t bytes = 0;
  visit_stream(stream, interval, [&](const Streamed& tensor, int64_t first, int64_t last) {
    bytes += count_within(tensor.regions[rank], first, last) *
             static_cast<int64_t>(tensor.place.element);
  });
  return bytes;
}

// Memory of a rank's elements that is the CPU's; made at the first use of each tensor.
class OwnMemory {
 public:
  const char* of(const Streamed& tensor) {
    const StoredValues& bytes = tensor.travelling->tensor->bytes;
    if (const char* memory = bytes.memory()) return memory;
    if (tensor.travelling != copied_) {
      copy_ = bytes.values().contiguous().cpu();
      copied_ = tensor.travelling;
    }
    return static_cast<const char*>(copy_.const_data_ptr());
  }

 private:
  const TravellingTensor* copied_ = nullptr;
  at::Tensor copy_;
};

}  // namespace

void exchange_pieces(const std::vector<TravellingTensor>& tensors, c10::Device device,
                     uint64_t round_bytes,
                     const std::function<void(std::vector<ArrivedBytes>)>& take) {
  if (tensors.empty()) return;
  const GroupArgument::Handle& group = tensors.front().tensor->cut->group;
  const auto ranks = static_cast<size_t>(group->getSize());
  const auto own = static_cast<size_t>(group->getRank());
  const std::vector<Streamed> stream = stream_of(tensors);
  const uint64_t total = stream.back().place.end;
  // A multiple of every element.
  const uint64_t most =
      std::max(kStreamAlignment, round_bytes / ranks / kStreamAlignment * kStreamAlignment);
  const uint64_t share =
      std::min(most, (total / ranks + kStreamAlignment) / kStreamAlignment * kStreamAlignment);
  OwnMemory memory;
  for (uint64_t begin = 0; begin < total;) {
    std::vector<StreamInterval> intervals(ranks, {begin, begin});
    for (size_t rank = 0; rank < ranks; ++rank) {
      intervals[rank] = {begin, std::min(total, begin + share)};
      begin = intervals[rank].end;
    }
    std::vector<int64_t> sent(ranks), got(ranks);
    for (size_t rank = 0; rank < ranks; ++rank) {
      sent[rank] = bytes_of(stream, intervals[rank], own);
      got[rank] = bytes_of(stream, intervals[own], rank);
    }
    const at::Tensor packed =
        at::empty({std::accumulate(sent.begin(), sent.end(), int64_t{0})}, at::kByte);
    auto* to = static_cast<char*>(packed.data_ptr());
    for (const StreamInterval& interval : intervals) {
      visit_stream(stream, interval, [&](const Streamed& tensor, int64_t first, int64_t last) {
        if (count_within(tensor.regions[own], first, last) == 0) return;
        const char* const from = memory.of(tensor);
        const auto element = static_cast<int64_t>(tensor.place.element);
        visit_runs(tensor.regions[own], first, last, [&](const RegionRun& run) {
          const auto size = static_cast<size_t>(run.count * element);
          std::memcpy(to, from + run.in_region * element, size);
          to += size;
        });
      });
    }
    const at::Tensor arrived =
        all_to_all_v(packed.to(device), sent, got, 0, 0, GroupArgument(group)).cpu();
    const StreamInterval& mine = intervals[own];
    // In the order of the file.
    auto assembled = std::make_shared<std::vector<char>>(mine.size());
    const auto* from = static_cast<const char*>(arrived.const_data_ptr());
    for (size_t rank = 0; rank < ranks; ++rank) {
      visit_stream(stream, mine, [&](const Streamed& tensor, int64_t first, int64_t last) {
        const auto element = static_cast<int64_t>(tensor.place.element);
        visit_runs(tensor.regions[rank], first, last, [&](const RegionRun& run) {
          const auto size = static_cast<size_t>(run.count * element);
          const uint64_t place =
              tensor.place.begin + static_cast<uint64_t>(run.in_tensor * element);
          std::memcpy(assembled->data() + (place - mine.begin), from, size);
          from += size;
        });
      });
    }
    std::vector<ArrivedBytes> parts;
    visit_stream(stream, mine, [&](const Streamed& tensor, int64_t first, int64_t last) {
      const uint64_t offset = static_cast<uint64_t>(first) * tensor.place.element;
      parts.push_back({tensor.travelling->file, tensor.travelling->begin + offset,
                       assembled->data() + (tensor.place.begin + offset - mine.begin),
                       static_cast<uint64_t>(last - first) * tensor.place.element, assembled});
    });
    take(std::move(parts));
  }
}

}  // namespace meshrun::detail
