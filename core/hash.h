#pragma once

#include <string>
#include <string_view>

namespace meshrun {

// 32 raw bytes.
std::string Sha256(std::string_view data);
std::string HexEncode(std::string_view bytes);

}  // namespace meshrun
