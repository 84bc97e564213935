#include "parallel/checkpoint/site_ranges.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace meshrun::detail {
namespace {

constexpr uint64_t kSentBytes = uint64_t{32} << 20;

// What every site stores whole.
FileTensors whole_tensors(const FileTensors& tensors) {
  FileTensors whole;
  for (size_t file = 0; file < tensors.size(); ++file) {
    for (const auto& [name, tensor] : tensors[file]) {
      if (is_in_pieces(tensor)) continue;
      FileTensor& added = whole[file][name] = tensor;
      added.cut = nullptr;
    }
  }
  return whole;
}

// A tensor of rank 0 among all that are sent, and its place in this rank's file.
struct SentTensor {
  size_t file = 0;
  uint64_t begin = 0;  // in the file
  uint64_t from = 0;   // in the stream of all
  uint64_t bytes = 0;
  const StoredValues* values = nullptr;
};

std::vector<SentTensor> sent_tensors(const FileTensors& whole,
                                     const ByFile<SafetensorsHeader>& headers) {
  std::vector<SentTensor> sent;
  uint64_t from = 0;
  for (size_t file = 0; file < whole.size(); ++file) {
    for (const auto& [name, tensor] : whole[file]) {
      if (!tensor.is_of_rank_0) continue;
      const SafetensorsHeader::Entry& entry = headers[file].tensors.at(name);
      const uint64_t bytes = entry.end - entry.begin;
      sent.push_back({file, entry.begin, from, bytes, &tensor.bytes});
      from += bytes;
    }
  }
  return sent;
}

// Calls use(tensor, its first byte, the message's first byte, count) for each part of a message.
template <typename Use>
void visit_message(const std::vector<SentTensor>& sent, uint64_t begin, uint64_t end,
                   const Use& use) {
  for (const SentTensor& tensor : sent) {
    const uint64_t low = std::max(begin, tensor.from);
    const uint64_t high = std::min(end, tensor.from + tensor.bytes);
    if (low < high) use(tensor, low - tensor.from, low - begin, high - low);
  }
}

// Rank 0 sends; ranks that `writes` names hand what comes to `take`.
void send_tensors_of_rank_0(const std::vector<SentTensor>& sent, c10d::ProcessGroup& group,
                            c10::Device device, bool writes, const TakeRanges& take,
                            const std::function<void(c10d::ProcessGroup& group)>& wait) {
  const uint64_t total = sent.empty() ? 0 : sent.back().from + sent.back().bytes;
  for (uint64_t begin = 0; begin < total; begin += kSentBytes) {
    const uint64_t end = std::min(total, begin + kSentBytes);
    const auto message =
        std::make_shared<at::Tensor>(at::empty({static_cast<int64_t>(end - begin)}, at::kByte));
    auto* const memory = static_cast<char*>(message->mutable_data_ptr());
    if (group.getRank() == 0) {
      visit_message(sent, begin, end,
                    [&](const SentTensor& tensor, uint64_t from, uint64_t at, uint64_t count) {
                      tensor.values->read(from, {memory + at, count});
                    });
    }
    std::vector<at::Tensor> carried = {message->to(device)};
    group.broadcast(carried)->wait();
    if (writes) {
      if (!carried[0].is_cpu()) message->copy_(carried[0]);
      visit_message(sent, begin, end,
                    [&](const SentTensor& tensor, uint64_t from, uint64_t at, uint64_t count) {
                      take(tensor.file,
                           {{.begin = tensor.begin + from, .bytes = count, .memory = memory + at}},
                           message);
                    });
    }
    wait(group);
  }
}

}  // namespace

void list_site_ranges(const FileTensors& tensors, const SitePlan& plan, const Sites& sites,
                      c10d::ProcessGroup& group, const SavePlace& place, const TakeRanges& take,
                      const std::function<void(c10d::ProcessGroup& group)>& wait) {
  const FileTensors whole = whole_tensors(tensors);
  list_ranges(whole, plan.headers, place, take, wait);
  for (size_t file = 0; file < plan.own.size(); ++file) {
    std::vector<FileRange> ranges;
    for (const OwnPiece& piece : plan.own[file]) {
      const uint64_t begin = plan.headers[file].tensors.at(piece.stored).begin;
      ranges.push_back(range_of(piece.tensor->bytes, begin, piece.from, piece.bytes));
    }
    std::ranges::sort(ranges, {}, &FileRange::begin);
    take(file, std::move(ranges), nullptr);
  }
  const bool leads_another = place.rank != 0 && sites.leads(place.rank);
  send_tensors_of_rank_0(sent_tensors(whole, plan.headers), group, place.device, leads_another,
                         take, wait);
}

}  // namespace meshrun::detail
