#include "parallel/checkpoint/save_ranges.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/piece_exchange.h"

namespace meshrun::detail {
namespace {

// Shares end at multiples of it, so that a small checkpoint is one rank's.
constexpr uint64_t kShareStep = uint64_t{1} << 20;
// One rank may send or get all of a round, and has it three times.
constexpr uint64_t kRoundBytes = uint64_t{64} << 20;

// Tensors of a file in the order of their places.
std::vector<std::pair<uint64_t, const FileTensor*>> in_order(
    const std::map<std::string, FileTensor>& tensors, const SafetensorsHeader& header) {
  std::vector<std::pair<uint64_t, const FileTensor*>> ordered;
  for (const auto& [name, tensor] : tensors) {
    ordered.emplace_back(header.tensors.at(name).begin, &tensor);
  }
  std::ranges::sort(ordered, {}, [](const auto& each) { return each.first; });
  return ordered;
}

// All ranks of the group can write their pieces as they are.
bool lies_in_runs(const FileTensor& tensor) {
  return std::ranges::all_of(tensor.cut->by_rank, [&](const Region& region) {
    return run_count(stored_region(region, tensor.info)) <= 1;
  });
}

// This rank's piece, unless a lower rank of the group writes the same.
std::optional<FileRange> own_run(const FileTensor& tensor, uint64_t begin) {
  const Region& own = tensor.cut->own();
  const auto& all = tensor.cut->by_rank;
  const auto first = std::ranges::find(all, own);
  if (first - all.begin() != tensor.cut->group->getRank()) return std::nullopt;
  std::optional<FileRange> found;
  const Region stored = stored_region(own, tensor.info);
  const uint64_t element = ElementBytes(tensor.info.dtype).value();
  visit_runs(stored, 0, std::numeric_limits<int64_t>::max(), [&](const RegionRun& run) {
    found = range_of(tensor.bytes, begin + static_cast<uint64_t>(run.in_tensor) * element, 0,
                     static_cast<uint64_t>(run.count) * element);
  });
  return found;
}

}  // namespace

bool has_rank_0(c10d::ProcessGroup& group, c10::Device device, int rank) {
  return std::ranges::count(number_by_rank(group, device, rank), 0) > 0;
}

FileRange range_of(const StoredValues& bytes, uint64_t begin, uint64_t from, uint64_t count) {
  FileRange range{.begin = begin, .bytes = count};
  if (const char* const memory = bytes.memory()) {
    range.memory = memory + from;
  } else {
    range.fill = [bytes, from](uint64_t at, std::span<char> to) { bytes.read(from + at, to); };
  }
  return range;
}

void list_ranges(const FileTensors& tensors, const ByFile<SafetensorsHeader>& headers,
                 const SavePlace& place, const TakeRanges& take,
                 const std::function<void(c10d::ProcessGroup& group)>& wait) {
  ByFile<std::vector<std::pair<uint64_t, const FileTensor*>>> ordered;
  uint64_t shared_bytes = 0;
  for (size_t file = 0; file < ordered.size(); ++file) {
    ordered[file] = in_order(tensors[file], headers[file]);
    for (const auto& [begin, tensor] : ordered[file]) {
      if (tensor->cut == nullptr && !tensor->is_of_rank_0)
        shared_bytes += stored_bytes(tensor->info);
    }
  }
  // This rank's share of the shared bytes, as of one stream.
  const auto writers = static_cast<uint64_t>(std::ranges::count(place.writers, true));
  const auto own = place.writers.begin() + place.rank;
  const auto index = static_cast<uint64_t>(std::count(place.writers.begin(), own, true));
  const auto border = [&](uint64_t writer) {
    if (writer == writers) return shared_bytes;
    return shared_bytes / writers * writer / kShareStep * kShareStep;
  };
  const uint64_t low = border(index);
  const uint64_t high = border(index + 1);
  std::map<const c10d::ProcessGroup*, bool> with_rank_0;
  std::vector<std::pair<const c10d::ProcessGroup*, std::vector<TravellingTensor>>> travelling;
  uint64_t at = 0;
  for (size_t file = 0; file < ordered.size(); ++file) {
    std::vector<FileRange> ranges;
    for (const auto& [begin, tensor] : ordered[file]) {
      const uint64_t bytes = stored_bytes(tensor->info);
      if (tensor->cut != nullptr) {
        const c10d::ProcessGroup* const group = tensor->cut->group.get();
        if (!with_rank_0.contains(group)) {
          with_rank_0[group] = has_rank_0(*tensor->cut->group, place.device, place.rank);
        }
        if (!with_rank_0[group]) continue;
        if (lies_in_runs(*tensor)) {
          if (auto run = own_run(*tensor, begin)) ranges.push_back(std::move(*run));
          continue;
        }
        auto known =
            std::ranges::find(travelling, group, [](const auto& each) { return each.first; });
        if (known == travelling.end()) known = travelling.insert(known, {group, {}});
        known->second.push_back({file, begin, tensor});
      } else if (tensor->is_of_rank_0) {
        if (place.rank == 0) ranges.push_back(range_of(tensor->bytes, begin, 0, bytes));
      } else {
        const uint64_t first = std::clamp(low, at, at + bytes);
        const uint64_t last = std::clamp(high, at, at + bytes);
        if (first < last) {
          ranges.push_back(range_of(tensor->bytes, begin + (first - at), first - at, last - first));
        }
        at += bytes;
      }
    }
    take(file, std::move(ranges), nullptr);
  }
  for (const auto& [group, those] : travelling) {
    exchange_pieces(
        those, place.device, kRoundBytes, [&](const std::vector<ArrivedBytes>& arrived) {
          for (const ArrivedBytes& part : arrived) {
            take(part.file, {{.begin = part.begin, .bytes = part.bytes, .memory = part.memory}},
                 part.keep);
          }
          wait(*those.front().tensor->cut->group);
        });
  }
}

void Snapshot::copy(std::vector<std::pair<size_t, std::vector<FileRange>>>& ranges,
                    bool is_pinned) {
  uint64_t bytes = 0;
  for (const auto& [file, of_file] : ranges) {
    for (const FileRange& range : of_file) bytes += range.bytes;
  }
  // A save that was given up may still hold it.
  if (memory_ == nullptr || memory_->nbytes() < bytes || memory_.use_count() > 1) {
    memory_.reset();
    memory_ = std::make_shared<at::Tensor>(at::empty(
        {static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte).pinned_memory(is_pinned)));
  }
  auto* to = static_cast<char*>(memory_->data_ptr());
  for (auto& [file, of_file] : ranges) {
    for (FileRange& range : of_file) {
      if (range.memory != nullptr) {
        std::memcpy(to, range.memory, range.bytes);
      } else {
        range.fill(0, {to, range.bytes});
      }
      range.memory = to;
      range.fill = nullptr;
      to += range.bytes;
    }
  }
}

}  // namespace meshrun::detail
