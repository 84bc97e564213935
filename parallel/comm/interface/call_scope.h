// Names the function that a program calls where collectives of other names do its work: a
// CheckpointDirectory::save broadcasts an int64, which no program of ours knows it has called.
//
//   void save(...) {
//     const CallScope scope("CheckpointDirectory::save");
//     group.broadcast(...)      // ucx says "CheckpointDirectory::save (broadcast of int64 [1])"
//
// A backend that compares calls compares the name, too: a broadcast of one function does not match
// one of another. So all ranks of a group have to make such a call in the same scope.
//
// The outermost of nested scopes counts. Threads: each has its own; a call takes the
// name of the thread that makes it. No errors.
#pragma once

namespace meshrun {

class CallScope {
 public:
  // `name` is static.
  explicit CallScope(const char* name);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  // Null: none.
  static const char* current();

  // No scope, for what this thread does on behalf of others.
  class Suspended {
   public:
    Suspended();
    ~Suspended();
    Suspended(const Suspended&) = delete;
    Suspended& operator=(const Suspended&) = delete;

   private:
    const char* const before_;
  };

 private:
  const bool is_outermost_;
};

}  // namespace meshrun
