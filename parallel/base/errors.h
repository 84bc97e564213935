// The exceptions of parallel/comm, parallel/manager and what stands on them.
//
// All derive from c10::Error, so one handler catches them together with LibTorch's own. They carry
// no C++ backtrace: what() is the sentence a user needs. Each says what failed, both sides' values,
// and what to do next.
//
// PhysicsNeMo's UndefinedGroupError and UninitializedDistributedManagerWarning are
// UndefinedGroupError and UninitializedError here; its AssertionErrors and bare ValueErrors are
// GroupError and MeshError.
#pragma once

#include "c10/util/Exception.h"

namespace meshrun {

// DistributedManager::get() before initialize() or setup().
class UninitializedError : public c10::Error {
  using Error::Error;
};

// No group or mesh of that name was created.
class UndefinedGroupError : public c10::Error {
  using Error::Error;
};

// A group cannot be formed as asked: its size does not divide the parent's, its name is taken.
class GroupError : public c10::ValueError {
  using ValueError::ValueError;
};

// A mesh cannot be formed as asked: its shape does not fit the world, a name repeats or is unknown.
class MeshError : public c10::ValueError {
  using ValueError::ValueError;
};

// The launcher's environment is half set, malformed or contradicts itself.
class EnvironmentError : public c10::ValueError {
  using ValueError::ValueError;
};

// A backend this process cannot use: unknown, not linked in, or without its device.
class BackendError : public c10::DistError {
  using DistError::DistError;
};

// The ranks did not meet: the port is taken, the store is another job's, peers are missing, or the
// worker daemon does not answer.
class RendezvousError : public c10::DistError {
  using DistError::DistError;
};

}  // namespace meshrun
