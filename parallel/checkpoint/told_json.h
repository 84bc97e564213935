// Regions and the tensors of an outline as JSON, in which ranks tell each other of them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/checkpoint/tensor_source.h"
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

inline void to_json(nlohmann::json& coded, const TensorInfo& info) {
  coded = {info.dtype, info.shape};
}

inline void from_json(const nlohmann::json& coded, TensorInfo& info) {
  coded.at(0).get_to(info.dtype);
  coded.at(1).get_to(info.shape);
}

}  // namespace meshrun
