// The files of the page, which are part of the program, and what a browser is told with each.
//
// A file of this folder is served at its path: app.js at /app.js, and index.html at / too. All that
// it takes to add one is that the glob in BUILD.bazel finds it. Thread-safe.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshrun::coordinator {

struct Asset {
  std::string_view content_type;
  std::string_view bytes;
  // Changes with the bytes; with its quotation marks, as a header has it.
  std::string etag;
};

// The file at the path of a request, such as "/" or "/app.js"; null: there is none.
const Asset* FindAsset(std::string_view path);

// By the ending of the file's name; an ending that is not known: bytes that no browser runs.
std::string_view ContentTypeOf(std::string_view path);

// Headers of each answer that a browser may show: it loads nothing from other hosts, runs no
// script that stands in a document, is framed by nobody, and tells nobody where it came from.
using Header = std::pair<std::string_view, std::string_view>;
std::span<const Header> PageHeaders();

// Whether the header If-None-Match of a request names this ETag: the browser has the file.
bool Matches(std::string_view if_none_match, std::string_view etag);

}  // namespace meshrun::coordinator
