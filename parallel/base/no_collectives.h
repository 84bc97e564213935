// Parts of a program in which no collective may be called.
//
//   const NoCollectives none("ElasticState::update()");
//   change();   // each collective of this thread raises CollectiveForbiddenError
//
// It does not depend on the environment: ranks that run one program all raise, and so does one
// process alone. Where calls start they ask check_collectives_allowed(): ucx's backend for all
// that it carries, parallel/collectives and parallel/checkpoint for every other backend. What sends
// nothing in a group of one rank asks before it returns early. Threads: of the calling thread
// alone; the backward pass on a GPU runs in threads of its own.
#pragma once

#include <string>
#include <utility>

#include "parallel/base/collective_errors.h"

namespace meshrun {

namespace detail {

// Null where collectives are allowed.
inline constinit thread_local const char* no_collectives_in = nullptr;

}  // namespace detail

class NoCollectives {
 public:
  // `where`: as errors name it; must outlive this. Null: collectives are allowed again.
  explicit NoCollectives(const char* where)
      : before_(std::exchange(detail::no_collectives_in, where)) {}
  ~NoCollectives() { detail::no_collectives_in = before_; }
  NoCollectives(const NoCollectives&) = delete;
  NoCollectives& operator=(const NoCollectives&) = delete;

 private:
  const char* const before_;
};

// `words`: a function that gives the call in words, asked for where it raises.
template <typename Words>
void check_collectives_allowed(const Words& words) {
  if (detail::no_collectives_in == nullptr) [[likely]]
    return;
  throw CollectiveForbiddenError(std::string(words()) + " inside " + detail::no_collectives_in +
                                 ": move it before or after; state changes there alone, and a "
                                 "rank that waits there for a lost one would have half of a step");
}

}  // namespace meshrun
