#include "client/render/hints.h"

#include <string_view>

namespace meshrun::client {
namespace {

struct Known {
  std::string_view text;
  std::string_view hint;
};

constexpr std::string_view kOtherVersion =
    "a library was found in another version than the one that the program was linked with, often "
    "LibTorch: 'ldd' on the program shows which, and LD_LIBRARY_PATH comes before the program's "
    "own paths";

// The first one that is found counts: what causes others stands before them.
constexpr Known kKnown[] = {
    {"remote=[127.0.1.1]",
     "a rank's host gives its own name the address 127.0.1.1, which is each host for itself: set "
     "GLOO_SOCKET_IFNAME to the interface between the hosts, or give the name the host's address "
     "in "
     "/etc/hosts"},
    {"No module named 'torch'",
     "the Python that ran has no torch: name the one that has, as in 'meshrun submit -- "
     "/path/to/venv/bin/python train.py', or submit with its environment active"},
    {"symbol lookup error", kOtherVersion},
    {"undefined symbol", kOtherVersion},
    {"terminate called",
     "an exception of C++ left a thread or main: its text follows 'what():', and gdb's 'catch "
     "throw' shows where it was thrown; a destructor or a thread that outlives main does that too"},
};

}  // namespace

std::string HintFor(const v1::RankExit& exit) {
  for (const Known& known : kKnown) {
    if (exit.error_message().find(known.text) != std::string::npos) return std::string(known.hint);
    for (const std::string& line : exit.last_lines()) {
      if (line.find(known.text) != std::string::npos) return std::string(known.hint);
    }
  }
  return "";
}

}  // namespace meshrun::client
