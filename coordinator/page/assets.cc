#include "coordinator/page/assets.h"

#include <fmt/format.h>

#include <map>

#include "core/embed/embedded_file.h"
#include "core/fingerprint.h"

namespace meshrun::coordinator {

// Defined by //coordinator/page:files.
std::span<const EmbeddedFile> PageFiles();

namespace {

constexpr std::pair<std::string_view, std::string_view> kTypes[] = {
    {".html", "text/html; charset=utf-8"},
    {".css", "text/css; charset=utf-8"},
    {".js", "text/javascript; charset=utf-8"},
    {".mjs", "text/javascript; charset=utf-8"},
    {".json", "application/json"},
    {".svg", "image/svg+xml"},
    {".png", "image/png"},
    {".ico", "image/x-icon"},
    {".woff2", "font/woff2"},
    {".txt", "text/plain; charset=utf-8"},
};

constexpr Header kHeaders[] = {
    {"Content-Security-Policy",
     "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
    {"Referrer-Policy", "no-referrer"},
    {"X-Content-Type-Options", "nosniff"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
};

std::map<std::string, Asset, std::less<>> MakeAssets() {
  std::map<std::string, Asset, std::less<>> out;
  for (const EmbeddedFile& file : PageFiles()) {
    const Asset asset{.content_type = ContentTypeOf(file.path),
                      .bytes = file.bytes,
                      .etag = fmt::format("\"{:016x}\"", Fingerprint(file.bytes))};
    out.emplace(fmt::format("/{}", file.path), asset);
    if (file.path == "index.html") out.emplace("/", asset);
  }
  return out;
}

}  // namespace

const Asset* FindAsset(std::string_view path) {
  static const auto* const assets = new auto(MakeAssets());
  const auto found = assets->find(path);
  return found == assets->end() ? nullptr : &found->second;
}

std::string_view ContentTypeOf(std::string_view path) {
  for (const auto& [ending, type] : kTypes) {
    if (path.ends_with(ending)) return type;
  }
  return "application/octet-stream";
}

std::span<const Header> PageHeaders() { return kHeaders; }

bool Matches(std::string_view if_none_match, std::string_view etag) {
  return if_none_match == "*" || if_none_match.find(etag) != std::string_view::npos;
}

}  // namespace meshrun::coordinator
