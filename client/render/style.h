// What an output can show (colour, width), and short forms of values for people. Pure.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "meshrun/v1/common.pb.h"

namespace meshrun::client {

struct Style {
  // Redrawing of the last line is possible.
  bool terminal = false;
  bool colour = false;
  // Bars and boxes may use more than ASCII.
  bool utf8 = false;
  int width = 80;
  int height = 24;
};

// For Table::Render: what is not read on a terminal may be of any width.
inline int TableWidth(const Style& style) { return style.terminal ? style.width : 0; }

enum class Colour { kRed, kGreen, kYellow, kBlue, kMagenta, kCyan, kGrey, kBold };

std::string Paint(const Style& style, Colour colour, std::string_view text);
// Neighbouring ranks differ.
Colour RankColour(int rank);

// "12s", "3m", "2h", "5d": coarse, for ages.
std::string Age(std::chrono::nanoseconds age);
// "3m ago"; "just now" below two seconds; "-" when `then` is zero.
std::string Ago(std::chrono::nanoseconds now, std::chrono::nanoseconds then);
// "2026-11-23 01:30:27Z"; "-" when `then` is zero.
std::string AbsoluteTime(std::chrono::nanoseconds then);
// "0.01235", "nan", "-inf": a NaN is without its sign, which means nothing.
std::string ShortNumber(double value, int digits = 4);
// "1 rank", "2 ranks".
std::string Count(uint64_t n, std::string_view noun);

// Code points, which is columns for what meshrun prints.
size_t DisplayWidth(std::string_view text);
// At most `width` columns, the last one an ellipsis where something was cut.
std::string Shorten(std::string_view text, size_t width);
// At most `width` columns, without a sign of what was cut.
std::string_view FirstColumns(std::string_view text, size_t width);
// Pieces of at most `width` columns, cut at blanks where there are some.
std::vector<std::string> Wrap(std::string_view text, size_t width);
// What a terminal would show of a line: without control characters and escape sequences, tabs as
// blanks, and without a character at its end of which bytes are missing.
std::string Visible(std::string_view text);
// Makes text of ranks and people fit for a table or the last line of a terminal: the first line,
// without control characters, shortened.
std::string OneLine(std::string_view text, size_t width);
// Most columns of an event's message.
inline constexpr size_t kEventWidth = 300;
// Most columns of a progress note.
inline constexpr size_t kNoteWidth = 60;

}  // namespace meshrun::client
