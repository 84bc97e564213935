// What the ranks of one save tell each other while a disk works. They use the group's store: no
// collective times out for a slow disk, and threads in the background can meet.
//
// A save has stages. A stage ends for all ranks at once, with one text: empty, or the problem for
// which the save is given up. A stage that one rank ends by itself is a text that it tells the
// others.
//
// Threads: one at a time. Errors: those of the store (its world is over; it cannot be reached), and
// SaveGivenUp where `is_stopped` says so.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace meshrun {

class SaveGivenUp : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class SaveMeeting {
 public:
  // `store` belongs to this meeting alone; null for one rank by itself. `save`: the save's number,
  // which no other save of the world has.
  SaveMeeting(c10::intrusive_ptr<c10d::Store> store, std::string save,
              std::function<bool()> is_stopped);
  ~SaveMeeting();
  SaveMeeting(SaveMeeting&&) noexcept;

  // This rank has come to the end of the stage, with a problem or none. The last of `ranks` ends
  // it, with the problem that came first.
  void arrive(const std::string& stage, const std::string& problem, int ranks);
  // Ends a stage that one rank alone decides.
  void end(const std::string& stage, const std::string& text);
  // Waits until the stage has ended. Returns its text.
  std::string await(const std::string& stage);
  // Removes what the meeting of an earlier save, which is over on all ranks, has left in the store:
  // stages that one rank ended, and those that ranks arrived at.
  void forget(const std::string& save, const std::vector<std::string>& ended,
              const std::vector<std::string>& arrived);

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::string save_;
  std::function<bool()> is_stopped_;
  std::string alone_;  // the text of a stage, of one rank by itself
};

}  // namespace meshrun
