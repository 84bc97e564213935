#pragma once

namespace meshrun {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace meshrun
