#include "parallel/checkpoint/region_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <memory>
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
// What a rank sends in a round.
constexpr uint64_t kMostSent = uint64_t{64} << 20;
constexpr uint64_t kLeastRound = uint64_t{1} << 20;

// Elements of a tensor, and the ranks that hold them.
struct Source {
  Region region;
  std::vector<size_t> ranks;
  // Among those of this rank, if it holds them, and their bytes, unless they are read.
  std::optional<size_t> held;
  at::Tensor bytes;

  bool is_of(size_t rank) const { return std::ranges::binary_search(ranks, rank); }
  // The one that gives it to `receiver`.
  size_t provider(size_t receiver) const {
    return is_of(receiver) ? receiver : ranks[receiver % ranks.size()];
  }
};

// A tensor in the stream of all that are filled.
struct Filled {
  Target* target = nullptr;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t element = 1;
  std::vector<Source> sources;
  // What ranks need, and which of it, by rank.
  std::vector<Region> regions;
  std::vector<size_t> needed;
  // Some rank gets a part of it from another one.
  bool travels = false;

  const Region& needed_by(size_t rank) const { return regions[needed[rank]]; }
};

struct Round {
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct Plan {
  std::vector<Filled> stream;
  // Some rank reads some region.
  bool is_any_read = false;
  uint64_t round_bytes = kMostSent;
};

bool is_whole(const Region& region) {
  return region.elements() == Region::whole(region.shape).elements();
}

// A region of a tensor of `shape` as ranks tell it: nothing says that it is all of it.
json told_region(const Region& region, const std::vector<int64_t>& shape) {
  return is_whole(region) && region.shape == shape ? json() : json(region);
}

Region heard_region(const json& told, const std::vector<int64_t>& shape) {
  return told.is_null() ? Region::whole(shape) : told.get<Region>();
}

// The source for these elements, which `rank` holds; null if there are none. Ranks come in order.
Source* add_source(Filled& tensor, Region region, size_t rank) {
  if (region.elements() == 0) return nullptr;
  auto known = std::ranges::find(tensor.sources, region, &Source::region);
  if (known == tensor.sources.end()) {
    known = tensor.sources.insert(known, {std::move(region), {}, {}, {}});
  }
  if (!known->is_of(rank)) known->ranks.push_back(rank);
  return &*known;
}

void add_needed(Filled& tensor, Region region) {
  const auto known = std::ranges::find(tensor.regions, region);
  tensor.needed.push_back(static_cast<size_t>(known - tensor.regions.begin()));
  if (known == tensor.regions.end()) tensor.regions.push_back(std::move(region));
}

// One that is whole is enough.
void keep_what_is_needed(Filled& tensor) {
  const auto whole = std::ranges::find_if(
      tensor.sources, [](const Source& source) { return is_whole(source.region); });
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

// How many ranks get a part of it from one that has it, at most. The parts of several sources are
// counted as one.
size_t receivers_of_one(const Filled& tensor) {
  size_t most = 0;
  for (const Source& source : tensor.sources) {
    std::map<size_t, size_t> receivers;
    for (size_t rank = 0; rank < tensor.needed.size(); ++rank) {
      const size_t provider = source.provider(rank);
      if (provider == rank || tensor.needed_by(rank).elements() == 0) continue;
      most = std::max(most, ++receivers[provider]);
    }
  }
  return tensor.sources.size() > 1 ? std::min<size_t>(most, 2) : most;
}

// What this rank tells the others: by place of the tensor, what it holds and needs.
json told(const std::vector<HeldRegion>& held, std::vector<Target>& targets) {
  std::map<std::pair<FileKind, std::string>, size_t> places;
  json needed = json::array();
  for (Target& target : targets) {
    const json region = told_region(target.region(), target.info().shape);
    if (!region.is_null()) needed.push_back({places.size(), region});
    places.emplace(std::pair(target.kind(), target.name()), places.size());
  }
  json holds = json::array();
  bool reads = false;
  for (size_t i = 0; i < held.size(); ++i) {
    const auto place = places.find({held[i].kind, held[i].name});
    if (place == places.end()) continue;
    reads = reads || !held[i].bytes.defined();
    const auto& shape = targets[place->second].info().shape;
    holds.push_back({place->second, told_region(held[i].region, shape), i});
  }
  return {{"held", holds}, {"needed", needed}, {"reads", reads}};
}

// Takes what a rank has told. `held`: this rank's own; null for another one.
void hear(Plan& plan, const json& told, size_t rank, const std::vector<HeldRegion>* held) {
  std::vector<Filled>& stream = plan.stream;
  plan.is_any_read = plan.is_any_read || told.at("reads").get<bool>();
  for (const json& one : told.at("held")) {
    Filled& tensor = stream.at(one.at(0).get<size_t>());
    const auto& shape = tensor.target->info().shape;
    Region region = heard_region(one.at(1), shape);
    if (Region::whole(region.shape).elements() != Region::whole(shape).elements()) {
      throw std::runtime_error("rank " + std::to_string(rank) + " holds a piece of another " +
                               tensor.target->name());
    }
    Source* const source = add_source(tensor, std::move(region), rank);
    if (source == nullptr || held == nullptr || source->held) continue;
    source->held = one.at(2).get<size_t>();
    source->bytes = (*held)[*source->held].bytes;
  }
  auto next = told.at("needed").begin();
  for (size_t i = 0; i < stream.size(); ++i) {
    const bool is_part = next != told.at("needed").end() && next->at(0).get<size_t>() == i;
    const auto& shape = stream[i].target->info().shape;
    add_needed(stream[i], is_part ? next->at(1).get<Region>() : Region::whole(shape));
    if (is_part) ++next;
  }
}

// Collective: what all ranks hold and need. The plan of each rank follows from it alone.
Plan make_plan(c10d::ProcessGroup& group, c10::Device device, const std::vector<HeldRegion>& held,
               std::vector<Target>& targets) {
  Plan plan;
  uint64_t end = 0;
  for (Target& target : targets) {
    Filled& tensor = plan.stream.emplace_back();
    tensor.target = &target;
    tensor.begin = end;
    tensor.end = end + target.size();
    tensor.element = ElementBytes(target.info().dtype).value();
    end = (tensor.end + kFilledAlignment - 1) / kFilledAlignment * kFilledAlignment;
  }
  const std::vector<std::string> all = gather_texts(group, device, told(held, targets).dump());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const bool is_own = rank == static_cast<size_t>(group.getRank());
    hear(plan, json::parse(all[rank]), rank, is_own ? &held : nullptr);
  }
  size_t most = 1;
  for (Filled& tensor : plan.stream) {
    keep_what_is_needed(tensor);
    if (!is_covered(tensor)) {
      throw std::runtime_error("no rank has all of " + tensor.target->name());
    }
    const size_t receivers = receivers_of_one(tensor);
    tensor.travels = receivers > 0;
    most = std::max(most, receivers);
  }
  plan.round_bytes = std::max(kLeastRound, kMostSent / most / kFilledAlignment * kFilledAlignment);
  return plan;
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
      visit_common_runs(source.region, tensor.needed_by(receiver), first, last,
                        [&](const CommonRun& run) { visit(tensor, source, run); });
    }
  });
}

// The bytes of this rank's regions that a round needs: those that are read, and those in memory.
class Staged {
 public:
  void read(const std::vector<Filled>& stream, const Round& round, size_t ranks, size_t own,
            const ReadRegion& read_region) {
    parts_.clear();
    visit_filled(stream, round, [&](const Filled& tensor, int64_t first, int64_t last) {
      for (const Source& source : tensor.sources) {
        if (source.bytes.defined() || !is_given(source, tensor, ranks, own)) continue;
        const int64_t begin = count_before(source.region, first);
        const int64_t size = count_before(source.region, last) - begin;
        if (size == 0) continue;
        Part& part = parts_[&source];
        part.begin = static_cast<uint64_t>(begin) * tensor.element;
        part.bytes = at::empty({size * static_cast<int64_t>(tensor.element)}, at::kByte);
        read_region(*source.held, part.begin,
                    {static_cast<char*>(part.bytes.mutable_data_ptr()), part.bytes.nbytes()});
      }
    });
  }
  std::string_view of(const Filled& tensor, const Source& source, const CommonRun& run) const {
    const Place place = place_of(tensor, source, run);
    return {static_cast<const char*>(place.bytes.const_data_ptr()) + place.from, place.size};
  }
  // The same as a tensor, which holds the memory.
  at::Tensor tensor_of(const Filled& tensor, const Source& source, const CommonRun& run) const {
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

  Place place_of(const Filled& tensor, const Source& source, const CommonRun& run) const {
    const uint64_t from = static_cast<uint64_t>(run.in_first) * tensor.element;
    const uint64_t size = static_cast<uint64_t>(run.count) * tensor.element;
    if (source.bytes.defined()) return {source.bytes, from, size};
    const Part& part = parts_.at(&source);
    return {part.bytes, from - part.begin, size};
  }

  // Some rank takes it from this one.
  static bool is_given(const Source& source, const Filled& tensor, size_t ranks, size_t own) {
    if (!source.held) return false;
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (source.provider(rank) == own && tensor.needed_by(rank).elements() > 0) return true;
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
                    const at::Tensor own = tensor.target->own_bytes();
                    const auto begin = run.in_second * static_cast<int64_t>(tensor.element);
                    std::vector<at::Tensor> to = {own.defined() ? own.narrow(0, begin, size)
                                                                : at::empty({size}, at::kByte)};
                    works_.push_back(group_->recv(to, static_cast<int>(rank), kLongRunTag));
                    if (!own.defined()) arriving_.push_back({&tensor, run, to[0]});
                  });
    });
  }

  void send_long(const std::vector<Filled>& stream, const Round& round, const Staged& staged) {
    visit_others([&](size_t rank) {
      visit_given(stream, round, own_, rank,
                  [&](const Filled& tensor, const Source& source, const CommonRun& run) {
                    if (!is_long(tensor, run)) return;
                    std::vector<at::Tensor> sent = {staged.tensor_of(tensor, source, run)};
                    works_.push_back(group_->send(sent, static_cast<int>(rank), kLongRunTag));
                  });
    });
  }

  void exchange_short(const std::vector<Filled>& stream, const Round& round, const Staged& staged) {
    std::vector<int64_t> sent(ranks_), got(ranks_);
    // Shared with the message, which may outlive this call where a rank is lost.
    const auto packed = std::make_shared<std::vector<char>>();
    visit_others([&](size_t rank) {
      const size_t before = packed->size();
      visit_given(stream, round, own_, rank,
                  [&](const Filled& tensor, const Source& source, const CommonRun& run) {
                    if (is_long(tensor, run)) return;
                    const std::string_view bytes = staged.of(tensor, source, run);
                    packed->insert(packed->end(), bytes.begin(), bytes.end());
                  });
      sent[rank] = static_cast<int64_t>(packed->size() - before);
      visit_given(stream, round, rank, own_,
                  [&](const Filled& tensor, const Source&, const CommonRun& run) {
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
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
  std::vector<Arriving> arriving_;
};

}  // namespace

void fill_from_regions(const GroupArgument::Handle& group, c10::Device device,
                       const std::vector<HeldRegion>& held, std::vector<Target>& targets,
                       const ReadRegion& read) {
  const Plan plan = make_plan(*group, device, held, targets);
  const std::vector<Filled>& stream = plan.stream;
  if (stream.empty()) return;
  const auto ranks = static_cast<size_t>(group->getSize());
  const auto own = static_cast<size_t>(group->getRank());
  Staged staged;
  Exchange exchange(group, device);
  for (Round round{0, plan.round_bytes}; round.begin < stream.back().end;
       round = {round.end, round.end + plan.round_bytes}) {
    if (plan.is_any_read) {
      read_together(*group, device, [&] { staged.read(stream, round, ranks, own, read); });
    }
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
