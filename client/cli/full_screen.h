// The whole terminal, row by row, and its keys. It is as it was before when the object ends. Not
// thread-safe.
#pragma once

#include <termios.h>

#include <string>
#include <string_view>
#include <vector>

namespace meshrun::client {

enum class Key { kUp, kDown, kPageUp, kPageDown, kHome, kEnd, kEnter, kEscape, kCharacter };
struct KeyPress {
  Key key = Key::kCharacter;
  // Only with kCharacter.
  char character = 0;
};

// The keys in what a terminal sends. An escape sequence that is cut off is the key Escape. Pure.
std::vector<KeyPress> ParseKeys(std::string_view bytes);

class FullScreen {
 public:
  // Standard input and output must be a terminal.
  FullScreen() { Enter(); }
  ~FullScreen() { Leave(); }
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

  // Only rows that have changed are sent.
  void Draw(const std::vector<std::string>& rows);
  // The next Draw sends all: the size has changed, or something else was drawn.
  void Forget() { drawn_.clear(); }
  // For a stop by Ctrl-Z, and after it.
  void Leave();
  void Enter();
  // What has been typed by now.
  std::vector<KeyPress> ReadKeys();

 private:
  termios before_{};
  bool entered_ = false;
  std::vector<std::string> drawn_;
};

}  // namespace meshrun::client
