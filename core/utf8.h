// Bytes as text. Names of files, arguments and environments are bytes; sentences, JSON and
// protobuf's strings are UTF-8. Pure.
#pragma once

#include <string>
#include <string_view>

namespace meshrun {

// Bytes of the character that `text` begins with: 1 to 4; 0 where it begins with none, or is empty.
// Overlong forms, surrogates and code points beyond Unicode are invalid: they count as none.
size_t Utf8Length(std::string_view text);

bool IsUtf8(std::string_view text);

// UTF-8 as it is, every other byte as \xNN: "caf\xe9".
std::string EscapeBytes(std::string_view text);

// Whether a text that is not empty begins with a control character: one below U+0020, or U+007F to
// U+009F.
bool IsControl(std::string_view text);
// For sentences: as EscapeBytes, and the bytes of control characters as \xNN too. A name with a
// line break or a terminal's escape sequence then neither breaks the sentence nor colours the
// screen.
std::string EscapeControls(std::string_view text);

// Longest beginning of `text`, which is UTF-8, that ends between two characters and has at most
// `most_bytes`.
std::string_view Utf8Prefix(std::string_view text, size_t most_bytes);

// Every byte that is not part of a character replaced by '?': for output of ranks, whose columns
// then stay.
std::string ReplaceBytes(std::string_view text);

}  // namespace meshrun
