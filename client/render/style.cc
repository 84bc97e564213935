#include "client/render/style.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cmath>

#include "core/utf8.h"

namespace meshrun::client {
namespace {

// Bytes of the control character that a text begins with; 0: it begins with none. A byte from 0x80
// to 0x9f that is part of no character counts as one: it is one to a terminal of single bytes.
size_t ControlLength(std::string_view text) {
  const size_t length = Utf8Length(text);
  if (length > 0) return IsControl(text) ? length : 0;
  const auto byte = static_cast<unsigned char>(text[0]);
  return byte >= 0x80 && byte < 0xA0 ? 1 : 0;
}

}  // namespace

std::string Paint(const Style& style, Colour colour, std::string_view text) {
  if (!style.colour || text.empty()) return std::string(text);
  static constexpr std::string_view kCodes[] = {"31", "32", "33", "34", "35", "36", "90", "1"};
  return fmt::format("\x1b[{}m{}\x1b[0m", kCodes[static_cast<int>(colour)], text);
}

Colour RankColour(int rank) {
  static constexpr Colour kColours[] = {Colour::kCyan, Colour::kYellow,  Colour::kGreen,
                                        Colour::kBlue, Colour::kMagenta, Colour::kRed};
  return kColours[rank % 6];
}

std::string Age(std::chrono::nanoseconds age) {
  const int64_t s =
      std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::seconds>(age).count());
  if (s < 120) return fmt::format("{}s", s);
  if (s < 2 * 3600) return fmt::format("{}m", s / 60);
  if (s < 2 * 86400) return fmt::format("{}h", s / 3600);
  return fmt::format("{}d", s / 86400);
}

std::string Ago(std::chrono::nanoseconds now, std::chrono::nanoseconds then) {
  if (then.count() == 0) return "-";
  if (now - then < std::chrono::seconds(2)) return "just now";
  return Age(now - then) + " ago";
}

std::string AbsoluteTime(std::chrono::nanoseconds then) {
  if (then.count() == 0) return "-";
  const time_t seconds = std::chrono::floor<std::chrono::seconds>(then).count();
  tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  ::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%SZ", &utc);
  return text;
}

std::string ShortNumber(double value, int digits) {
  return std::isnan(value) ? "nan" : fmt::format("{:.{}g}", value, digits);
}

std::string Count(uint64_t n, std::string_view noun) {
  return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s");
}

size_t DisplayWidth(std::string_view text) {
  size_t width = 0;
  for (const char c : text) width += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return width;
}

std::string Shorten(std::string_view text, size_t width) {
  if (DisplayWidth(text) <= width || width < 4) return std::string(text);
  return std::string(FirstColumns(text, width - 3)) + "...";
}

std::string_view FirstColumns(std::string_view text, size_t width) {
  size_t columns = 0;
  size_t bytes = 0;
  while (bytes < text.size()) {
    if ((static_cast<unsigned char>(text[bytes]) & 0xC0) != 0x80 && columns++ == width) break;
    ++bytes;
  }
  return text.substr(0, bytes);
}

std::vector<std::string> Wrap(std::string_view text, size_t width) {
  std::vector<std::string> pieces;
  while (DisplayWidth(text) > width) {
    std::string_view piece = FirstColumns(text, width + 1);
    const size_t blank = piece.rfind(' ');
    piece = blank != std::string_view::npos && blank > 0 ? piece.substr(0, blank)
                                                         : FirstColumns(text, width);
    pieces.emplace_back(piece);
    text.remove_prefix(piece.size());
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  }
  pieces.emplace_back(text);
  return pieces;
}

std::string Visible(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t control = ControlLength(text.substr(i));
    if (text[i] == 0x1B) {
      // "ESC [ parameters final", "ESC ] text BEL", or two bytes.
      if (i + 1 >= text.size()) break;
      if (text[++i] == '[') {
        while (i + 1 < text.size() && static_cast<unsigned char>(text[++i]) < 0x40) {
        }
      } else if (text[i] == ']') {
        while (i + 1 < text.size() && text[i] != '\a' && text[i] != 0x1B) ++i;
      }
    } else if (text[i] == '\t') {
      out += ' ';
    } else if (control > 0) {
      i += control - 1;
    } else {
      const size_t length = std::max<size_t>(Utf8Length(text.substr(i)), 1);
      out += text.substr(i, length);
      i += length - 1;
    }
  }
  // The last character, where its first byte promises more than there is.
  size_t lead = out.size();
  while (lead > 0 && (static_cast<unsigned char>(out[lead - 1]) & 0xC0) == 0x80) --lead;
  if (lead > 0) {
    const auto first = static_cast<unsigned char>(out[lead - 1]);
    const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
    if (length > 1 && out.size() - (lead - 1) < length) out.resize(lead - 1);
  }
  return out;
}

std::string OneLine(std::string_view text, size_t width) {
  const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  const std::string_view line = text.substr(begin, text.find_first_of("\r\n", begin) - begin);
  std::string plain;
  for (size_t i = 0; i < line.size();) {
    const size_t control = ControlLength(line.substr(i));
    const size_t length = std::max<size_t>(Utf8Length(line.substr(i)), 1);
    plain += control > 0 ? " " : line.substr(i, length);
    i += control > 0 ? control : length;
  }
  plain.erase(plain.find_last_not_of(' ') + 1);
  return Shorten(plain, width);
}

}  // namespace meshrun::client
