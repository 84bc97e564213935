#include "parallel/checkpoint/region_exchange.h"

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "parallel/checkpoint/region_plan.h"
#include "parallel/checkpoint/together.h"
#include "parallel/collectives/all_to_all_v.h"

namespace meshrun::detail {
namespace {

uint64_t bytes_of(const FilledTensor& tensor, const CommonRun& run) {
  return static_cast<uint64_t>(run.count) * tensor.place.element;
}

// The bytes of this rank's regions that a round needs: those that are read, and those in memory.
class Staged {
 public:
  void read(const std::vector<FilledTensor>& stream, const StreamInterval& round, size_t ranks,
            size_t own, const ReadRegion& read_region) {
    parts_.clear();
    visit_stream(stream, round, [&](const FilledTensor& tensor, int64_t first, int64_t last) {
      for (const RegionSource& source : tensor.sources) {
        if (source.bytes.defined() || !is_given(source, tensor, ranks, own)) continue;
        const int64_t begin = count_before(source.region, first);
        const int64_t size = count_before(source.region, last) - begin;
        if (size == 0) continue;
        Part& part = parts_[&source];
        part.begin = static_cast<uint64_t>(begin) * tensor.place.element;
        part.bytes = at::empty({size * static_cast<int64_t>(tensor.place.element)}, at::kByte);
        read_region(*source.held, part.begin,
                    {static_cast<char*>(part.bytes.mutable_data_ptr()), part.bytes.nbytes()});
      }
    });
  }
  std::string_view of(const FilledTensor& tensor, const RegionSource& source,
                      const CommonRun& run) const {
    const Place place = place_of(tensor, source, run);
    return {static_cast<const char*>(place.bytes.const_data_ptr()) + place.from, place.size};
  }
  // The same as a tensor, which holds the memory.
  at::Tensor tensor_of(const FilledTensor& tensor, const RegionSource& source,
                       const CommonRun& run) const {
    const Place place = place_of(tensor, source, run);
    return place.bytes.narrow(0, static_cast<int64_t>(place.from),
                              static_cast<int64_t>(place.size));
  }

 private:
  struct Part {
    uint64_t begin = 0;  // in the region
    at::Tensor bytes;
  };
  struct Place {
    const at::Tensor& bytes;
    uint64_t from = 0;
    uint64_t size = 0;
  };

  Place place_of(const FilledTensor& tensor, const RegionSource& source,
                 const CommonRun& run) const {
    const uint64_t from = static_cast<uint64_t>(run.in_first) * tensor.place.element;
    const uint64_t size = bytes_of(tensor, run);
    if (source.bytes.defined()) return {source.bytes, from, size};
    const Part& part = parts_.at(&source);
    return {part.bytes, from - part.begin, size};
  }

  // Some rank takes it from this one.
  static bool is_given(const RegionSource& source, const FilledTensor& tensor, size_t ranks,
                       size_t own) {
    if (!source.held) return false;
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (source.provider(rank) == own && tensor.needed_by(rank).elements() > 0) return true;
    }
    return false;
  }

  std::map<const RegionSource*, Part> parts_;
};

void take(const FilledTensor& tensor, const CommonRun& run, std::string_view bytes) {
  tensor.target->take_own(static_cast<uint64_t>(run.in_second) * tensor.place.element, bytes);
}

// What travels between ranks in a round: long runs from memory to memory, and all others packed.
class Exchange {
 public:
  Exchange(GroupArgument::Handle group, c10::Device device)
      : group_(std::move(group)),
        device_(device),
        ranks_(static_cast<size_t>(group_->getSize())),
        own_(static_cast<size_t>(group_->getRank())) {}

  // Collective: sends what other ranks get of the round, and takes what this one gets.
  void run(const std::vector<FilledTensor>& stream, const StreamInterval& round,
           const Staged& staged) {
    receive_long(stream, round);
    send_long(stream, round, staged);
    exchange_short(stream, round, staged);
    for (const auto& work : works_) work->wait();
    works_.clear();
    for (const Arriving& each : arriving_) {
      take(*each.tensor, each.run,
           {static_cast<const char*>(each.bytes.const_data_ptr()), each.bytes.nbytes()});
    }
    arriving_.clear();
  }

 private:
  // A long run that cannot arrive where it belongs.
  struct Arriving {
    const FilledTensor* tensor = nullptr;
    CommonRun run;
    at::Tensor bytes;
  };

  static constexpr uint64_t kLong = uint64_t{1} << 20;
  static constexpr int kLongRunTag = 0x5aa;

  // The same on both sides.
  bool is_long(const FilledTensor& tensor, const CommonRun& run) const {
    return device_.is_cpu() && bytes_of(tensor, run) >= kLong;
  }

  template <typename Visit>
  void visit_others(const Visit& visit) const {
    for (size_t rank = 0; rank < ranks_; ++rank) {
      if (rank != own_) visit(rank);
    }
  }

  void receive_long(const std::vector<FilledTensor>& stream, const StreamInterval& round) {
    visit_others([&](size_t rank) {
      visit_given(stream, round, rank, own_,
                  [&](const FilledTensor& tensor, const RegionSource&, const CommonRun& run) {
                    if (!is_long(tensor, run)) return;
                    const auto size = static_cast<int64_t>(bytes_of(tensor, run));
                    const at::Tensor own = tensor.target->own_bytes();
                    const auto begin = run.in_second * static_cast<int64_t>(tensor.place.element);
                    std::vector<at::Tensor> to = {own.defined() ? own.narrow(0, begin, size)
                                                                : at::empty({size}, at::kByte)};
                    works_.push_back(group_->recv(to, static_cast<int>(rank), kLongRunTag));
                    if (!own.defined()) arriving_.push_back({&tensor, run, to[0]});
                  });
    });
  }

  void send_long(const std::vector<FilledTensor>& stream, const StreamInterval& round,
                 const Staged& staged) {
    visit_others([&](size_t rank) {
      visit_given(
          stream, round, own_, rank,
          [&](const FilledTensor& tensor, const RegionSource& source, const CommonRun& run) {
            if (!is_long(tensor, run)) return;
            std::vector<at::Tensor> sent = {staged.tensor_of(tensor, source, run)};
            works_.push_back(group_->send(sent, static_cast<int>(rank), kLongRunTag));
          });
    });
  }

  void exchange_short(const std::vector<FilledTensor>& stream, const StreamInterval& round,
                      const Staged& staged) {
    std::vector<int64_t> sent(ranks_), got(ranks_);
    // Shared with the message, which may outlive this call where a rank is lost.
    const auto packed = std::make_shared<std::vector<char>>();
    visit_others([&](size_t rank) {
      const size_t before = packed->size();
      visit_given(
          stream, round, own_, rank,
          [&](const FilledTensor& tensor, const RegionSource& source, const CommonRun& run) {
            if (is_long(tensor, run)) return;
            const std::string_view bytes = staged.of(tensor, source, run);
            packed->insert(packed->end(), bytes.begin(), bytes.end());
          });
      sent[rank] = static_cast<int64_t>(packed->size() - before);
      visit_given(stream, round, rank, own_,
                  [&](const FilledTensor& tensor, const RegionSource&, const CommonRun& run) {
                    if (!is_long(tensor, run)) {
                      got[rank] += static_cast<int64_t>(bytes_of(tensor, run));
                    }
                  });
    });
    const at::Tensor message = at::from_blob(
        packed->data(), {static_cast<int64_t>(packed->size())}, [packed](void*) {}, at::kByte);
    const at::Tensor arrived =
        all_to_all_v(message.to(device_), sent, got, 0, 0, GroupArgument(group_)).cpu();
    const auto* from = static_cast<const char*>(arrived.const_data_ptr());
    visit_others([&](size_t rank) {
      visit_given(stream, round, rank, own_,
                  [&](const FilledTensor& tensor, const RegionSource&, const CommonRun& run) {
                    if (is_long(tensor, run)) return;
                    const uint64_t size = bytes_of(tensor, run);
                    take(tensor, run, {from, size});
                    from += size;
                  });
    });
  }

  const GroupArgument::Handle group_;
  const c10::Device device_;
  const size_t ranks_;
  const size_t own_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
  std::vector<Arriving> arriving_;
};

}  // namespace

void fill_from_regions(const GroupArgument::Handle& group, c10::Device device,
                       const std::vector<HeldRegion>& held, std::vector<Target>& targets,
                       const ReadRegion& read) {
  const FillPlan plan = make_plan(*group, device, held, targets);
  const std::vector<FilledTensor>& stream = plan.stream;
  if (stream.empty()) return;
  const auto ranks = static_cast<size_t>(group->getSize());
  const auto own = static_cast<size_t>(group->getRank());
  Staged staged;
  Exchange exchange(group, device);
  for (StreamInterval round{0, plan.round_bytes}; round.begin < stream.back().place.end;
       round = {round.end, round.end + plan.round_bytes}) {
    if (plan.is_any_read) {
      read_together(*group, device, [&] { staged.read(stream, round, ranks, own, read); });
    }
    visit_given(stream, round, own, own,
                [&](const FilledTensor& tensor, const RegionSource& source, const CommonRun& run) {
                  take(tensor, run, staged.of(tensor, source, run));
                });
    bool is_any_sent = false;
    visit_stream(stream, round, [&](const FilledTensor& tensor, int64_t, int64_t) {
      is_any_sent = is_any_sent || tensor.travels;
    });
    if (is_any_sent) exchange.run(stream, round, staged);
  }
}

}  // namespace meshrun::detail
