#include "parallel/checkpoint/region_plan.h"

#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>

#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/told_json.h"

namespace meshrun::detail {
namespace {

using nlohmann::json;

// What a rank sends in a round.
constexpr uint64_t kMostSent = uint64_t{64} << 20;
constexpr uint64_t kLeastRound = uint64_t{1} << 20;

// A region of a tensor of `shape` as ranks tell it: nothing says that it is all of it.
json told_region(const Region& region, const std::vector<int64_t>& shape) {
  return region.is_whole() && region.shape == shape ? json() : json(region);
}

Region heard_region(const json& told, const std::vector<int64_t>& shape) {
  return told.is_null() ? Region::whole(shape) : told.get<Region>();
}

// The source for these elements, which `rank` holds; null if there are none. Ranks come in order.
RegionSource* add_source(FilledTensor& tensor, Region region, size_t rank) {
  if (region.elements() == 0) return nullptr;
  auto known = std::ranges::find(tensor.sources, region, &RegionSource::region);
  if (known == tensor.sources.end()) {
    known = tensor.sources.insert(known, {std::move(region), {}, {}, {}});
  }
  if (!known->is_of(rank)) known->ranks.push_back(rank);
  return &*known;
}

void add_needed(FilledTensor& tensor, Region region) {
  const auto known = std::ranges::find(tensor.regions, region);
  tensor.needed.push_back(static_cast<size_t>(known - tensor.regions.begin()));
  if (known == tensor.regions.end()) tensor.regions.push_back(std::move(region));
}

// One that is whole is enough.
void keep_what_is_needed(FilledTensor& tensor) {
  const auto whole = std::ranges::find_if(
      tensor.sources, [](const RegionSource& source) { return source.region.is_whole(); });
  if (whole == tensor.sources.end()) return;
  RegionSource only = std::move(*whole);
  tensor.sources.clear();
  tensor.sources.push_back(std::move(only));
}

bool is_covered(const FilledTensor& tensor) {
  if (tensor.place.size() == 0) return true;
  std::vector<Region> regions;
  for (const RegionSource& source : tensor.sources) regions.push_back(source.region);
  return cover_tensor(std::move(regions));
}

// How many ranks get a part of it from one that has it, at most. The parts of several sources are
// counted as one.
size_t receivers_of_one(const FilledTensor& tensor) {
  size_t most = 0;
  for (const RegionSource& source : tensor.sources) {
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
void hear(FillPlan& plan, const json& told, size_t rank, const std::vector<HeldRegion>* held) {
  std::vector<FilledTensor>& stream = plan.stream;
  plan.is_any_read = plan.is_any_read || told.at("reads").get<bool>();
  for (const json& one : told.at("held")) {
    FilledTensor& tensor = stream.at(one.at(0).get<size_t>());
    const auto& shape = tensor.target->info().shape;
    Region region = heard_region(one.at(1), shape);
    if (Region::whole(region.shape).elements() != Region::whole(shape).elements()) {
      throw std::runtime_error("rank " + std::to_string(rank) + " holds a piece of another " +
                               tensor.target->name());
    }
    RegionSource* const source = add_source(tensor, std::move(region), rank);
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

}  // namespace

FillPlan make_plan(c10d::ProcessGroup& group, c10::Device device,
                   const std::vector<HeldRegion>& held, std::vector<Target>& targets) {
  FillPlan plan;
  uint64_t end = 0;
  for (Target& target : targets) {
    FilledTensor& tensor = plan.stream.emplace_back();
    tensor.target = &target;
    tensor.place = StreamPlace::after(end, target.info());
    end = tensor.place.end;
  }
  const std::vector<std::string> all = gather_texts(group, device, told(held, targets).dump());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const bool is_own = rank == static_cast<size_t>(group.getRank());
    hear(plan, json::parse(all[rank]), rank, is_own ? &held : nullptr);
  }
  size_t most = 1;
  for (FilledTensor& tensor : plan.stream) {
    keep_what_is_needed(tensor);
    if (!is_covered(tensor)) {
      throw std::runtime_error("no rank has all of " + tensor.target->name());
    }
    const size_t receivers = receivers_of_one(tensor);
    tensor.travels = receivers > 0;
    most = std::max(most, receivers);
  }
  plan.round_bytes = std::max(kLeastRound, kMostSent / most / kStreamAlignment * kStreamAlignment);
  return plan;
}

}  // namespace meshrun::detail
