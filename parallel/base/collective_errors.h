// The exceptions that collectives raise, whatever the backend.
//
// All derive from c10::Error. Errors that the ranks find by comparing their calls have the same
// sentence on every rank. None carries a C++ backtrace.
#pragma once

#include "c10/util/Exception.h"

namespace meshrun {

// An argument is wrong in itself, on this rank or on another one, which the text names.
class CollectiveArgumentError : public c10::ValueError {
  using ValueError::ValueError;
};

// Two ranks called different operations, or the same one with different sizes: the text names both
// ranks and both sides' values.
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

// A rank died or became unreachable.
class PeerLostError : public c10::DistBackendError {
  using DistBackendError::DistBackendError;
};

// The operation's timeout has passed; the text names the ranks that it still waited for.
class CollectiveTimeoutError : public c10::DistBackendError {
  using DistBackendError::DistBackendError;
};

// abort() was called, here or on another rank; or the group was used after it had failed.
class GroupAbortedError : public c10::DistBackendError {
  using DistBackendError::DistBackendError;
};

// The call stands where none may be: see no_collectives.h. Raised before anything is sent.
class CollectiveForbiddenError : public c10::Error {
  using Error::Error;
};

// The network itself refused: no such device, out of memory, or a rank's address is unknown.
class TransportError : public c10::DistBackendError {
  using DistBackendError::DistBackendError;
};

}  // namespace meshrun
