// What is known of where a process stands.
#pragma once

#include <string>

namespace meshrun::worker {

struct ProcessStack {
  // Where its main thread stands (PlaceOf): "step (train.py:12), in wait (threading.py:327)"; empty
  // where nothing is known.
  std::string place;
  // Frames of all threads as the tool prints them, with a first line that names it; else why there
  // are none.
  std::string text;
  // The reason why `place` is empty, and what to install or to allow: a sentence without its stop.
  std::string problem;
};

}  // namespace meshrun::worker
