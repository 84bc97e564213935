// Names the function that a program calls where collectives of other names do its work: a
// CheckpointDirectory::save broadcasts an int64, which no program of ours knows it has called.
//
//   void save(...) {
//     const CallScope scope("CheckpointDirectory::save");
//     group.broadcast(...)      // ucx says "CheckpointDirectory::save (broadcast of int64 [1])"
//
// A backend that compares calls compares the name, too: a broadcast of one function does not match
// one of another. So all ranks of a group have to make such a call in the same scope. Where several
// functions of a library may meet in one call (a reduce in place on one rank alone), their names
// are told and not compared: Comparison::kNone.
//
// The outermost of nested scopes counts. Threads: each has its own; a call takes the
// name of the thread that makes it. No errors.
#pragma once

#include <string>
#include <string_view>

namespace meshrun {

class CallScope {
 public:
  enum class Comparison { kByName, kNone };
  struct Name {
    const char* text = nullptr;  // null: none
    bool is_compared = false;
  };

  // `name` is static.
  explicit CallScope(const char* name, Comparison comparison = Comparison::kByName);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  // Null: none.
  static const char* current();
  static Name current_name();
  static const char* current_or(const char* name) {
    return current() == nullptr ? name : current();
  }
  // `words` of an operation that was called in `scope` (null: none): "scope (words)", unless the
  // scope is the operation's own name, as some of Bagua's functions have it.
  static std::string words_in(const char* scope, std::string_view operation, std::string words);

  // No scope, for what this thread does on behalf of others.
  class Suspended {
   public:
    Suspended();
    ~Suspended();
    Suspended(const Suspended&) = delete;
    Suspended& operator=(const Suspended&) = delete;

   private:
    const Name before_;
  };

 private:
  const bool is_outermost_;
};

}  // namespace meshrun
