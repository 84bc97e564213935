// The version of meshrun.
#pragma once

namespace meshrun {

// Everything that says a version takes it from here (docs/stability.md). deploy/install and
// tools/bundle read this line.
inline constexpr char kVersion[] = "0.2.0";

}  // namespace meshrun
