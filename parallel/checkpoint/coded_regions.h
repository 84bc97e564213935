// Regions as JSON: ranks tell each other what they hold and need.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "parallel/checkpoint/regions.h"

namespace meshrun {

inline void to_json(nlohmann::json& coded, const Region& region) {
  coded = {region.shape, region.begin, region.size};
}

inline void from_json(const nlohmann::json& coded, Region& region) {
  coded.at(0).get_to(region.shape);
  coded.at(1).get_to(region.begin);
  coded.at(2).get_to(region.size);
}

}  // namespace meshrun
