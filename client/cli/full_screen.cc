#include "client/cli/full_screen.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace meshrun::client {
namespace {

// What follows "ESC [" or "ESC O".
constexpr std::pair<std::string_view, Key> kSequences[] = {
    {"A", Key::kUp},   {"B", Key::kDown}, {"5~", Key::kPageUp}, {"6~", Key::kPageDown},
    {"H", Key::kHome}, {"F", Key::kEnd},  {"1~", Key::kHome},   {"4~", Key::kEnd},
};

void Write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

// Bytes of an escape sequence at the beginning, and its key; 0: it is the key Escape.
size_t SequenceLength(std::string_view bytes, Key* key) {
  if (bytes.size() < 3 || (bytes[1] != '[' && bytes[1] != 'O')) return 0;
  for (const auto& [end, known] : kSequences) {
    if (!bytes.substr(2).starts_with(end)) continue;
    *key = known;
    return 2 + end.size();
  }
  // Another key: all of its sequence is skipped.
  size_t length = 2;
  while (length < bytes.size() && static_cast<unsigned char>(bytes[length]) < 0x40) ++length;
  *key = Key::kCharacter;
  return std::min(length + 1, bytes.size());
}

}  // namespace

std::vector<KeyPress> ParseKeys(std::string_view bytes) {
  std::vector<KeyPress> out;
  while (!bytes.empty()) {
    size_t length = 1;
    KeyPress press{.key = Key::kCharacter, .character = bytes[0]};
    if (bytes[0] == '\x1b') {
      Key key = Key::kEscape;
      const size_t sequence = SequenceLength(bytes, &key);
      length = std::max<size_t>(sequence, 1);
      press = {.key = key};
    } else if (bytes[0] == '\r' || bytes[0] == '\n') {
      press = {.key = Key::kEnter};
    }
    // A sequence that is no key of ours has no character.
    if (press.key != Key::kCharacter || press.character != 0) out.push_back(press);
    bytes.remove_prefix(length);
  }
  return out;
}

void FullScreen::Enter() {
  if (entered_ || ::tcgetattr(STDIN_FILENO, &before_) != 0) return;
  termios raw = before_;
  // Signals stay: Ctrl-C and Ctrl-Z.
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  raw.c_cc[VMIN] = 0;
  raw.c_cc[VTIME] = 0;
  ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  // The other screen, without a cursor, without wrapping.
  Write("\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J");
  entered_ = true;
  Forget();
}

void FullScreen::Leave() {
  if (!entered_) return;
  Write("\x1b[?7h\x1b[?25h\x1b[?1049l");
  ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  entered_ = false;
}

void FullScreen::Draw(const std::vector<std::string>& rows) {
  std::string out;
  const bool all = drawn_.size() != rows.size();
  if (all) out += "\x1b[2J";
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!all && drawn_[i] == rows[i]) continue;
    out += fmt::format("\x1b[{};1H{}\x1b[K", i + 1, rows[i]);
  }
  Write(out);
  drawn_ = rows;
}

std::vector<KeyPress> FullScreen::ReadKeys() {
  char bytes[256];
  const ssize_t got = ::read(STDIN_FILENO, bytes, sizeof bytes);
  return got <= 0 ? std::vector<KeyPress>() : ParseKeys({bytes, static_cast<size_t>(got)});
}

}  // namespace meshrun::client
