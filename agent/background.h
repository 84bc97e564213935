// Threads beside the training, such as one that writes a checkpoint: while they wait for other
// ranks the training goes on. An agent's calls on them do not count as waiting.
#pragma once

namespace meshrun::agent {

// The calling thread is in the background within this scope.
class InBackground {
 public:
  InBackground();
  ~InBackground();
  InBackground(const InBackground&) = delete;
  InBackground& operator=(const InBackground&) = delete;
};

// Whether the calling thread is.
bool IsInBackground();

}  // namespace meshrun::agent
