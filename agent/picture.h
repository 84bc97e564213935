// Pictures that a rank shows while it runs: the coordinator's page has them beside its curves. For
// programs that need nothing else of agent/agent.h; this header needs no abseil.
//
// A picture is a file in the directory that MESHRUN_PICTURES names: no agent is needed, and any
// program may write such files itself. Threads: any, one at a time for each name.
#pragma once

#include <string>
#include <string_view>

namespace meshrun::agent {

// Whether a picture would be shown: outside meshrun it need not be drawn.
bool ShowsPictures();

// Shows `bytes`, the content of an image file, as `name`: "map.png". It takes the place of this
// rank's picture of that name; a reader sees the old one or the new one. A name has up to 64 of
// A-Z, a-z, 0-9, '.', '_', '-', and ends with .png, .jpg, .jpeg, .webp or .gif. A picture has at
// most 4 MiB, and the newest 16 of a rank are shown. Writes a file, and syncs none.
//
// Returns the reason why it is not shown; empty if it is, or outside meshrun.
std::string ShowPicture(const std::string& name, std::string_view bytes);

}  // namespace meshrun::agent
