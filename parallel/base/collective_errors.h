// The exceptions that collectives raise, on whatever backend.
//
// All derive from c10::Error. Those that all ranks decide together carry the same sentence on every
// rank. None carries a C++ backtrace.
#pragma once

#include "c10/util/Exception.h"

namespace meshrun {

// An argument is wrong in itself, here or on another rank, which the text names.
class CollectiveArgumentError : public c10::ValueError {
  using ValueError::ValueError;
};

// Two ranks called different operations, or one with different sizes: names both, and both sides'
// values.
class CollectiveMismatchError : public c10::ValueError {
  using ValueError::ValueError;
};

// Ranks wait for each other in different groups.
class CollectiveDeadlockError : public c10::DistError {
  using DistError::DistError;
};

// A rank exited without calling.
class PeerLeftError : public c10::DistBackendError {
  using DistBackendError::DistBackendError;
};

// A rank died, or cannot be reached any more.
class PeerLostError : public c10::DistBackendError {
  using DistBackendError::DistBackendError;
};

// The operation's timeout has passed; names the ranks that it still waited for.
class CollectiveTimeoutError : public c10::DistBackendError {
  using DistBackendError::DistBackendError;
};

// abort() was called, here or on another rank; and every later use of a group that failed.
class GroupAbortedError : public c10::DistBackendError {
  using DistBackendError::DistBackendError;
};

// The network itself refuses: no such device, out of memory, a rank's address is not found.
class TransportError : public c10::DistBackendError {
  using DistBackendError::DistBackendError;
};

}  // namespace meshrun
