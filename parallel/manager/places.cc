#include "parallel/manager/places.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "fmt/format.h"
#include "parallel/base/network.h"

namespace meshrun {
namespace {

// In place of an empty address: words must not be empty.
constexpr const char* kNone = "-";

}  // namespace

std::string serialize(const RankPlace& place) {
  return fmt::format("{} {} {}", place.node, place.node_rank,
                     place.address.empty() ? kNone : place.address);
}

std::optional<RankPlace> parse_place(const std::string& text) {
  std::istringstream words(text);
  RankPlace place;
  std::string more;
  if (!(words >> place.node >> place.node_rank >> place.address) || words >> more) {
    return std::nullopt;
  }
  if (place.address == kNone) place.address.clear();
  return place;
}

absl::StatusOr<std::vector<RankPlace>> parse_places(const std::vector<std::string>& texts) {
  std::vector<RankPlace> places;
  for (const std::string& text : texts) {
    std::optional<RankPlace> place = parse_place(text);
    if (!place) {
      return absl::InvalidArgumentError(fmt::format(
          "rank {} said \"{}\" of where it is, which this version of meshrun does not understand: "
          "start all ranks from one build",
          places.size(), text));
    }
    places.push_back(*std::move(place));
  }
  return places;
}

NodeLayout lay_out_nodes(const std::vector<RankPlace>& places, int rank) {
  using Key = std::pair<std::string, int>;
  std::map<Key, int> numbers;
  std::set<int> launchers;
  std::vector<Key> keys;
  for (const RankPlace& place : places) {
    keys.emplace_back(place.node, place.node_rank);
    numbers.emplace(keys.back(), static_cast<int>(numbers.size()));
    launchers.insert(place.node_rank);
  }
  const bool as_launched = launchers.size() == numbers.size() && *launchers.begin() >= 0;
  NodeLayout layout;
  layout.count = static_cast<int>(numbers.size());
  layout.local_world_size = 0;
  for (size_t other = 0; other < keys.size(); ++other) {
    layout.nodes.push_back(as_launched ? places[other].node_rank : numbers.at(keys[other]));
    if (keys[other] != keys[static_cast<size_t>(rank)]) continue;
    ++layout.local_world_size;
    if (static_cast<int>(other) < rank) ++layout.local_rank;
  }
  return layout;
}

std::optional<std::string> address_to_ask_the_way_to(const std::vector<RankPlace>& places,
                                                     int rank) {
  if (!places[static_cast<size_t>(rank)].address.empty()) return std::nullopt;
  const auto found = std::find_if(places.begin(), places.end(),
                                  [](const RankPlace& place) { return !place.address.empty(); });
  return found == places.end() ? std::nullopt : std::optional(found->address);
}

std::vector<std::string> addresses_of_rank_zero(const std::string& master, bool store_is_hosted,
                                                const std::string& own,
                                                const std::vector<std::string>& interfaces) {
  if (is_loopback(master)) return {"127.0.0.1"};
  std::vector<std::string> addresses;
  const auto add = [&](const std::string& address) {
    const bool is_new = std::find(addresses.begin(), addresses.end(), address) == addresses.end();
    if (is_new && !address.empty() && !is_loopback(address)) addresses.push_back(address);
  };
  // Every rank has reached rank 0's own store there. A launcher's store may be on another host.
  if (!store_is_hosted) add(master);
  add(own);
  add(master);
  for (const std::string& address : interfaces) add(address);
  return addresses;
}

}  // namespace meshrun
