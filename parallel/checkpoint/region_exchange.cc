#include "parallel/checkpoint/region_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/coded_regions.h"
#include "parallel/checkpoint/together.h"
#include "parallel/collectives/all_to_all_v.h"

namespace meshrun::detail {
namespace {

using nlohmann::json;

// Tensors begin at multiples of it in the stream, which are multiples of every element.
constexpr uint64_t kFilledAlignment = 64;
// A rank may have to send all of a round to every other one.
constexpr uint64_t kMostSent = uint64_t{64} << 20;
constexpr uint64_t kLeastRound = uint64_t{1} << 20;

// Elements of a tensor, and the ranks that hold them.
struct Source {
  Region region;
  std::vector<size_t> ranks;
  // Among those of this rank, if it holds them, and their bytes, if they lie in memory.
  std::optional<size_t> held;
  const char* memory = nullptr;

  // The one that gives it to `receiver`.
  size_t provider(size_t receiver) const {
    if (std::ranges::find(ranks, receiver) != ranks.end()) return receiver;
    return ranks[receiver % ranks.size()];
  }
};

// A tensor in the stream of all that are filled.
struct Filled {
  Target* target = nullptr;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t element = 1;
  std::vector<Source> sources;
  std::vector<Region> needed;  // by rank
  // Some rank gets a part of it from another one.
  bool travels = false;
};

struct Round {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// The source for these elements, which `rank` holds; null if there are none.
Source* add_source(Filled& tensor, Region region, size_t rank) {
  if (region.elements() == 0) return nullptr;
  auto known = std::ranges::find(tensor.sources, region, &Source::region);
  if (known == tensor.sources.end()) {
    known = tensor.sources.insert(known, {std::move(region), {}, {}});
  }
  if (known->ranks.empty() || known->ranks.back() != rank) known->ranks.push_back(rank);
  return &*known;
}

// One that is whole is enough.
void keep_what_is_needed(Filled& tensor) {
  const auto whole = std::ranges::find_if(tensor.sources, [](const Source& source) {
    return source.region.elements() == Region::whole(source.region.shape).elements();
  });
  if (whole == tensor.sources.end()) return;
  Source only = std::move(*whole);
  tensor.sources.clear();
  tensor.sources.push_back(std::move(only));
}

bool is_covered(const Filled& tensor) {
  if (tensor.begin == tensor.end) return true;
  std::vector<Region> regions;
  for (const Source& source : tensor.sources) regions.push_back(source.region);
  return cover_tensor(std::move(regions));
}

bool travels(const Filled& tensor) {
  for (size_t rank = 0; rank < tensor.needed.size(); ++rank) {
    if (tensor.needed[rank].elements() == 0) continue;
    for (const Source& source : tensor.sources) {
      if (source.provider(rank) != rank) return true;
    }
  }
  return false;
}

// Collective: what all ranks hold and need. The plan of each rank follows from it alone.
std::vector<Filled> plan(c10d::ProcessGroup& group, c10::Device device,
                         const std::vector<HeldRegion>& held, std::vector<Target>& targets) {
  std::map<std::pair<FileKind, std::string>, size_t> places;
  std::vector<Filled> stream;
  json own = {{"held", json::array()}, {"needed", json::array()}};
  uint64_t end = 0;
  for (Target& target : targets) {
    places[{target.kind(), target.name()}] = stream.size();
    const auto element = ElementBytes(target.info().dtype).value();
    stream.push_back({&target, end, end + target.size(), element, {}, {}, false});
    end = (stream.back().end + kFilledAlignment - 1) / kFilledAlignment * kFilledAlignment;
    own["needed"].push_back(json(target.region()));
  }
  for (size_t i = 0; i < held.size(); ++i) {
    const auto place = places.find({held[i].kind, held[i].name});
    if (place == places.end()) continue;
    own["held"].push_back({place->second, json(held[i].region), i});
  }
  const std::vector<std::string> all = gather_texts(group, device, own.dump());
  const auto rank_here = static_cast<size_t>(group.getRank());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const json told = json::parse(all[rank]);
    for (const json& one : told.at("held")) {
      Filled& tensor = stream.at(one.at(0).get<size_t>());
      Source* const source = add_source(tensor, one.at(1).get<Region>(), rank);
      if (source == nullptr || rank != rank_here) continue;
      source->held = one.at(2).get<size_t>();
      source->memory = held[*source->held].memory;
    }
    for (size_t i = 0; i < stream.size(); ++i) {
      stream[i].needed.push_back(told.at("needed").at(i).get<Region>());
    }
  }
  for (Filled& tensor : stream) {
    keep_what_is_needed(tensor);
    if (!is_covered(tensor)) {
      throw std::runtime_error("no rank has all of " + tensor.target->name());
    }
    tensor.travels = travels(tensor);
  }
  return stream;
}

// Calls visit(tensor, first, last) with the elements of each tensor that lie in the interval.
template <typename Visit>
void visit_filled(const std::vector<Filled>& stream, const Round& interval, const Visit& visit) {
  auto tensor = std::ranges::lower_bound(stream, interval.begin + 1, {},
                                         [](const Filled& each) { return each.end; });
  for (; tensor != stream.end() && tensor->begin < interval.end; ++tensor) {
    const uint64_t begin = std::max(interval.begin, tensor->begin);
    const uint64_t end = std::min(interval.end, tensor->end);
    if (begin >= end) continue;
    visit(*tensor, static_cast<int64_t>((begin - tensor->begin) / tensor->element),
          static_cast<int64_t>((end - tensor->begin) / tensor->element));
  }
}

// What `provider` gives `receiver` of a round: visit(tensor, source, run), in an order that both
// know.
template <typename Visit>
void visit_given(const std::vector<Filled>& stream, const Round& round, size_t provider,
                 size_t receiver, const Visit& visit) {
  visit_filled(stream, round, [&](const Filled& tensor, int64_t first, int64_t last) {
    for (const Source& source : tensor.sources) {
      if (source.provider(receiver) != provider) continue;
      visit_common_runs(source.region, tensor.needed[receiver], first, last,
                        [&](const CommonRun& run) { visit(tensor, source, run); });
    }
  });
}

// The bytes of this rank's regions that a round needs and that are read.
class Staged {
 public:
  void read(const std::vector<Filled>& stream, const Round& round, size_t ranks, size_t own,
            const ReadRegion& read_region) {
    parts_.clear();
    visit_filled(stream, round, [&](const Filled& tensor, int64_t first, int64_t last) {
      for (const Source& source : tensor.sources) {
        if (source.memory != nullptr || !is_given(source, tensor, ranks, own)) continue;
        const int64_t begin = count_before(source.region, first);
        const int64_t end = count_before(source.region, last);
        if (begin == end) continue;
        Part& part = parts_[&source];
        part.begin = static_cast<uint64_t>(begin) * tensor.element;
        part.bytes.resize(static_cast<uint64_t>(end - begin) * tensor.element);
        read_region(*source.held, part.begin, part.bytes);
      }
    });
  }
  std::string_view of(const Filled& tensor, const Source& source, const CommonRun& run) const {
    const uint64_t from = static_cast<uint64_t>(run.in_first) * tensor.element;
    const uint64_t size = static_cast<uint64_t>(run.count) * tensor.element;
    if (source.memory != nullptr) return {source.memory + from, size};
    const Part& part = parts_.at(&source);
    return {part.bytes.data() + (from - part.begin), size};
  }

 private:
  struct Part {
    uint64_t begin = 0;  // in the region
    std::vector<char> bytes;
  };

  // Some rank takes it from this one.
  static bool is_given(const Source& source, const Filled& tensor, size_t ranks, size_t own) {
    if (!source.held) return false;
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (source.provider(rank) == own && tensor.needed[rank].elements() > 0) return true;
    }
    return false;
  }

  std::map<const Source*, Part> parts_;
};

uint64_t bytes_of(const Filled& tensor, const CommonRun& run) {
  return static_cast<uint64_t>(run.count) * tensor.element;
}

void take(const Filled& tensor, const CommonRun& run, std::string_view bytes) {
  tensor.target->take_own(static_cast<uint64_t>(run.in_second) * tensor.element, bytes);
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
  void run(const std::vector<Filled>& stream, const Round& round, const Staged& staged) {
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
    const Filled* tensor = nullptr;
    CommonRun run;
    at::Tensor bytes;
  };

  static constexpr uint64_t kLong = uint64_t{1} << 20;
  static constexpr int kLongRunTag = 0x5aa;

  // The same on both sides.
  bool is_long(const Filled& tensor, const CommonRun& run) const {
    return device_.is_cpu() && bytes_of(tensor, run) >= kLong;
  }

  template <typename Visit>
  void visit_others(const Visit& visit) const {
    for (size_t rank = 0; rank < ranks_; ++rank) {
      if (rank != own_) visit(rank);
    }
  }

  void receive_long(const std::vector<Filled>& stream, const Round& round) {
    visit_others([&](size_t rank) {
      visit_given(stream, round, rank, own_,
                  [&](const Filled& tensor, const Source&, const CommonRun& run) {
                    if (!is_long(tensor, run)) return;
                    const auto size = static_cast<int64_t>(bytes_of(tensor, run));
                    char* const memory = tensor.target->own_memory(
                        static_cast<uint64_t>(run.in_second) * tensor.element);
                    std::vector<at::Tensor> to = {memory == nullptr
                                                      ? at::empty({size}, at::kByte)
                                                      : at::from_blob(memory, {size}, at::kByte)};
                    works_.push_back(group_->recv(to, static_cast<int>(rank), kLongRunTag));
                    if (memory == nullptr) arriving_.push_back({&tensor, run, to[0]});
                  });
    });
  }

  void send_long(const std::vector<Filled>& stream, const Round& round, const Staged& staged) {
    visit_others([&](size_t rank) {
      visit_given(
          stream, round, own_, rank,
          [&](const Filled& tensor, const Source& source, const CommonRun& run) {
            if (!is_long(tensor, run)) return;
            const std::string_view bytes = staged.of(tensor, source, run);
            std::vector<at::Tensor> sent = {at::from_blob(
                const_cast<char*>(bytes.data()), {static_cast<int64_t>(bytes.size())}, at::kByte)};
            works_.push_back(group_->send(sent, static_cast<int>(rank), kLongRunTag));
          });
    });
  }

  void exchange_short(const std::vector<Filled>& stream, const Round& round, const Staged& staged) {
    std::vector<int64_t> sent(ranks_), got(ranks_);
    packed_.clear();
    visit_others([&](size_t rank) {
      const size_t before = packed_.size();
      visit_given(stream, round, own_, rank,
                  [&](const Filled& tensor, const Source& source, const CommonRun& run) {
                    if (is_long(tensor, run)) return;
                    const std::string_view bytes = staged.of(tensor, source, run);
                    packed_.insert(packed_.end(), bytes.begin(), bytes.end());
                  });
      sent[rank] = static_cast<int64_t>(packed_.size() - before);
      visit_given(stream, round, rank, own_,
                  [&](const Filled& tensor, const Source&, const CommonRun& run) {
                    if (!is_long(tensor, run)) {
                      got[rank] += static_cast<int64_t>(bytes_of(tensor, run));
                    }
                  });
    });
    const at::Tensor message =
        at::from_blob(packed_.data(), {static_cast<int64_t>(packed_.size())}, at::kByte);
    const at::Tensor arrived =
        all_to_all_v(message.to(device_), sent, got, 0, 0, GroupArgument(group_)).cpu();
    const auto* from = static_cast<const char*>(arrived.const_data_ptr());
    visit_others([&](size_t rank) {
      visit_given(stream, round, rank, own_,
                  [&](const Filled& tensor, const Source&, const CommonRun& run) {
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
  std::vector<char> packed_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
  std::vector<Arriving> arriving_;
};

}  // namespace

void fill_from_regions(const GroupArgument::Handle& group, c10::Device device,
                       const std::vector<HeldRegion>& held, std::vector<Target>& targets,
                       const ReadRegion& read) {
  const std::vector<Filled> stream = plan(*group, device, held, targets);
  if (stream.empty()) return;
  const auto ranks = static_cast<size_t>(group->getSize());
  const auto own = static_cast<size_t>(group->getRank());
  const uint64_t share = kMostSent / ranks / kFilledAlignment * kFilledAlignment;
  const uint64_t most = std::max(kLeastRound, share);
  Staged staged;
  Exchange exchange(group, device);
  for (Round round{0, most}; round.begin < stream.back().end;
       round = {round.end, round.end + most}) {
    read_together(*group, device, [&] { staged.read(stream, round, ranks, own, read); });
    visit_given(stream, round, own, own,
                [&](const Filled& tensor, const Source& source, const CommonRun& run) {
                  take(tensor, run, staged.of(tensor, source, run));
                });
    bool is_any_sent = false;
    visit_filled(stream, round, [&](const Filled& tensor, int64_t, int64_t) {
      is_any_sent = is_any_sent || tensor.travels;
    });
    if (is_any_sent) exchange.run(stream, round, staged);
  }
}

}  // namespace meshrun::detail
