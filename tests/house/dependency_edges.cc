#include "tests/house/dependency_edges.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

namespace meshrun::house {
namespace {

namespace fs = std::filesystem;

// The rooms that each room's files may name. A room always may use itself.
const std::map<std::string, std::set<std::string>, std::less<>>& AllowedRooms() {
  static const auto* const rooms = new std::map<std::string, std::set<std::string>, std::less<>>{
      {"proto", {}},
      {"core", {"proto"}},
      {"coordinator", {"core", "proto"}},
      {"worker", {"core", "proto"}},
      {"client", {"core", "proto"}},
      {"agent", {"core", "proto"}},
      {"parallel", {"core", "agent"}},
      {"jobs", {"core", "agent", "parallel"}},
      {"deploy", {"core"}},
      {"python", {"core", "agent", "parallel"}},
  };
  return *rooms;
}

std::string RoomOf(std::string_view path) { return std::string(path.substr(0, path.find('/'))); }

using Siblings = std::map<std::string, std::set<std::string>, std::less<>>;

// What the folders inside a folder may use of each other. A folder always may use itself, and a
// file that lies in the outer folder may use all of them.
const std::map<std::string, Siblings, std::less<>>& Layers() {
  static const auto* const layers = new std::map<std::string, Siblings, std::less<>>{
      {"parallel",
       {{"base", {}},
        {"kernels", {"base"}},
        {"comm", {"base", "kernels"}},
        {"manager", {"base", "kernels", "comm"}},
        {"collectives", {"base", "kernels", "comm", "manager"}},
        {"fft", {"base", "kernels", "comm", "manager", "collectives"}},
        {"shard", {"base", "kernels", "comm", "manager", "collectives", "fft"}},
        {"nn", {"base", "kernels", "comm", "manager", "collectives", "fft", "shard"}},
        {"bagua", {"base", "kernels", "comm", "manager", "collectives"}},
        {"checkpoint", {"base", "kernels", "comm", "manager", "collectives", "fft", "shard", "nn"}},
        {"elastic",
         {"base", "kernels", "comm", "manager", "collectives", "fft", "shard", "nn", "checkpoint"}},
        {"c_api",
         {"base", "kernels", "comm", "manager", "collectives", "fft", "shard", "nn",
          "checkpoint"}}}},
      {"parallel/comm",
       {{"interface", {}},
        {"store", {"interface"}},
        {"point_to_point", {"interface"}},
        {"ucx", {"interface"}}}},
      {"parallel/comm/ucx/engine",
       {{"values", {}},
        {"planning", {"values"}},
        {"transport", {"values"}},
        {"liveness", {"values"}},
        {"protocol", {"values", "planning"}},
        {"execution", {"values", "planning", "transport", "liveness", "protocol"}}}},
  };
  return *layers;
}

// The folder of `path` that lies directly inside `outer`; empty: `path` is not below one.
std::string FolderInside(std::string_view outer, std::string_view path) {
  if (!path.starts_with(outer) || path.size() <= outer.size() || path[outer.size()] != '/') {
    return "";
  }
  path.remove_prefix(outer.size() + 1);
  const size_t slash = path.find('/');
  return slash == std::string_view::npos ? "" : std::string(path.substr(0, slash));
}

std::string FolderOf(std::string_view path) {
  const size_t slash = path.rfind('/');
  return std::string(path.substr(0, slash == std::string_view::npos ? 0 : slash));
}

// Where the backend `ucx` may be named: the others are the same for all backends. The manager opens
// its process's engine and hands it on unseen, by parallel/comm/ucx_engine.h.
bool MayNameUcx(std::string_view path) {
  return RoomOf(path) != "parallel" ||
         (path.starts_with("parallel/comm/") && !path.starts_with("parallel/comm/interface/") &&
          !path.starts_with("parallel/comm/point_to_point/"));
}

// Rooms that a folder may use which this repository does not know: somebody's own project in a
// clone.
const std::set<std::string>& RoomsForProjects() {
  static const auto* const rooms = new std::set<std::string>{"agent", "client", "core", "parallel"};
  return *rooms;
}

// The rooms of this repository that have C++ sources; any other top-level folder is a project.
bool IsProject(std::string_view room) {
  return !AllowedRooms().contains(room) && room != "docs" && room != "tests" && room != "tools";
}

bool MayUseAnything(std::string_view room) { return room == "tests" || room == "tools"; }

bool StartsWithAny(std::string_view text, std::initializer_list<std::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return text.starts_with(prefix); });
}

// Libraries that some rooms must not reach, by what their headers are called.
enum class Library { kNone, kLibTorch, kWire };

Library LibraryOfHeader(std::string_view header) {
  if (StartsWithAny(header, {"ATen/", "c10/", "caffe2/", "torch/"})) return Library::kLibTorch;
  if (header.ends_with(".pb.h") ||
      StartsWithAny(header, {"google/protobuf/", "grpc/", "grpc++/", "grpcpp/"})) {
    return Library::kWire;
  }
  return Library::kNone;
}

// The engine below the ucx backend is built and checked without LibTorch.
bool UsesLibTorch(std::string_view path) {
  const std::string room = RoomOf(path);
  return (room == "parallel" || room == "jobs" || room == "python" || IsProject(room)) &&
         !path.starts_with("parallel/comm/ucx/engine/");
}

std::vector<Library> ForbiddenLibraries(std::string_view path) {
  const std::string room = RoomOf(path);
  std::vector<Library> forbidden;
  if (!UsesLibTorch(path)) forbidden.push_back(Library::kLibTorch);
  if (room == "parallel" || room == "jobs" || room == "python") forbidden.push_back(Library::kWire);
  return forbidden;
}

// How a violation names who must not reach a library.
std::string NameOfUser(std::string_view path) {
  const std::string room = RoomOf(path);
  return room == "parallel" && !UsesLibTorch(path) ? "parallel/comm/ucx/engine/" : room + "/";
}

std::string_view NameOf(Library library) {
  return library == Library::kWire ? "protobuf or gRPC" : "LibTorch";
}

struct Include {
  int line = 0;
  std::string header;
};

struct Source {
  std::string path;
  std::vector<std::string> lines;
  std::vector<Include> includes;  // of C++ sources
};

std::string RoomOfHeader(std::string_view header) {
  // proto/ is the root of its own imports and generated headers.
  return header.starts_with("meshrun/") ? "proto" : RoomOf(header);
}

bool IsBuildFile(const fs::path& path) { return path.filename() == "BUILD.bazel"; }

bool IsCppSource(const fs::path& path) {
  static constexpr std::array<std::string_view, 4> kEndings = {".cc", ".h", ".cu", ".cuh"};
  return std::find(kEndings.begin(), kEndings.end(), path.extension()) != kEndings.end();
}

std::vector<std::string> ReadLines(const fs::path& path) {
  std::ifstream stream(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(std::move(line));
  return lines;
}

std::vector<Include> ReadIncludes(const std::vector<std::string>& lines) {
  static const std::regex* const kInclude =
      new std::regex(R"re(^\s*#\s*include\s*["<]([^">]+)[">])re");
  std::vector<Include> includes;
  std::smatch match;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (std::regex_search(lines[i], match, *kInclude)) {
      includes.push_back({static_cast<int>(i) + 1, match[1]});
    }
  }
  return includes;
}

using Sources = std::map<std::string, Source, std::less<>>;

Sources ReadTree(const fs::path& root) {
  Sources sources;
  for (auto entry = fs::recursive_directory_iterator(root); entry != fs::end(entry); ++entry) {
    const fs::path path = entry->path().lexically_relative(root);
    if (entry->is_symlink()) continue;
    if (entry->is_directory()) {
      if (path.filename().string().starts_with('.') || path == "third_party") {
        entry.disable_recursion_pending();
      }
      continue;
    }
    if (!IsCppSource(path) && !IsBuildFile(path) && path.extension() != ".proto") continue;
    if (!path.has_parent_path()) continue;  // the root's own BUILD file
    Source source{path.string(), ReadLines(entry->path()), {}};
    if (IsCppSource(path)) source.includes = ReadIncludes(source.lines);
    sources.emplace(path.string(), std::move(source));
  }
  return sources;
}

class Checker {
 public:
  explicit Checker(Sources sources) : sources_(std::move(sources)) {}

  std::vector<Violation> Check() {
    for (const auto& [path, source] : sources_) {
      const std::string room = RoomOf(path);
      if (MayUseAnything(room)) continue;
      if (IsBuildFile(path)) {
        CheckLabels(source);
      } else if (IsCppSource(path)) {
        CheckIncludes(source);
      } else {
        CheckImports(source);
      }
    }
    CheckCircles();
    std::sort(violations_.begin(), violations_.end(), [](const Violation& a, const Violation& b) {
      return std::tie(a.file, a.line, a.reason) < std::tie(b.file, b.line, b.reason);
    });
    return std::move(violations_);
  }

 private:
  void Report(const Source& source, int line, std::string reason) {
    violations_.push_back({source.path, line, std::move(reason)});
  }

  void CheckRoom(const Source& source, int line, const std::string& used) {
    const std::string room = RoomOf(source.path);
    const auto allowed = AllowedRooms().find(room);
    if (allowed == AllowedRooms().end() && !IsProject(room)) {
      Report(source, line, "no rule says what " + room + "/ may use");
    } else if (room != used &&
               !(IsProject(room) ? RoomsForProjects() : allowed->second).contains(used)) {
      Report(source, line, room + "/ must not use " + used + "/");
    }
  }

  // `used`: a header, or a package with a slash behind it.
  void CheckLayers(const Source& source, int line, const std::string& used) {
    for (const auto& [outer, siblings] : Layers()) {
      const std::string user = FolderInside(outer, source.path);
      const std::string other = FolderInside(outer, used);
      if (user.empty() || other.empty() || user == other) continue;
      const auto allowed = siblings.find(user);
      if (allowed == siblings.end()) {
        Report(source, line, "no rule says what " + outer + "/" + user + "/ may use");
      } else if (!allowed->second.contains(other)) {
        Report(source, line, outer + "/" + user + "/ must not use " + outer + "/" + other + "/");
      }
    }
    if (used.starts_with("parallel/comm/ucx/") && !MayNameUcx(source.path)) {
      Report(source, line, source.path + " must not name a backend: " + used);
    }
  }

  // Folders whose files include each other, by any number of steps. Reported once for each pair of
  // folders in a circle, at the first include that leads from one to the other.
  void CheckCircles() {
    struct Place {
      const Source* source;
      int line;
    };
    std::map<std::string, std::map<std::string, Place>> uses;
    for (const auto& [path, source] : sources_) {
      const std::string folder = FolderOf(path);
      for (const Include& include : source.includes) {
        const std::string used = FolderOf(include.header);
        if (used == folder || !sources_.contains(include.header)) continue;
        uses[folder].try_emplace(used, Place{&source, include.line});
      }
    }
    const auto reaches = [&](const std::string& from, const std::string& to) {
      std::set<std::string> seen;
      std::vector<std::string> open = {from};
      while (!open.empty()) {
        const std::string folder = std::move(open.back());
        open.pop_back();
        for (const auto& [used, place] : uses[folder]) {
          if (used == to) return true;
          if (seen.insert(used).second) open.push_back(used);
        }
      }
      return false;
    };
    const auto edges = uses;
    for (const auto& [folder, used_folders] : edges) {
      for (const auto& [used, place] : used_folders) {
        if (!reaches(used, folder)) continue;
        Report(*place.source, place.line,
               "a circle of folders: " + folder + "/ uses " + used + "/, which uses it in turn");
      }
    }
  }

  void CheckIncludes(const Source& source) {
    const std::vector<Library> forbidden = ForbiddenLibraries(source.path);
    for (const Include& include : source.includes) {
      CheckLayers(source, include.line, include.header);
      const std::string used = RoomOfHeader(include.header);
      if (AllowedRooms().contains(used) || MayUseAnything(used)) {
        CheckRoom(source, include.line, used);
      }
      for (const Library library : forbidden) {
        std::set<std::string, std::less<>> seen;
        if (const auto way = WayTo(library, include.header, seen)) {
          Report(source, include.line,
                 NameOfUser(source.path) + " must not reach " + std::string(NameOf(library)) +
                     ": " + *way);
        }
      }
    }
  }

  // The chain of headers that leads from `header` to one of `library`.
  std::optional<std::string> WayTo(Library library, const std::string& header,
                                   std::set<std::string, std::less<>>& seen) const {
    if (LibraryOfHeader(header) == library) return header;
    const auto found = sources_.find(header);
    if (found == sources_.end() || !seen.insert(header).second) return std::nullopt;
    for (const Include& include : found->second.includes) {
      if (const auto way = WayTo(library, include.header, seen)) return header + " -> " + *way;
    }
    return std::nullopt;
  }

  void CheckImports(const Source& source) {
    static const std::regex* const kImport =
        new std::regex(R"re(^\s*import\s+(?:public\s+|weak\s+)?"([^"]+)")re");
    std::smatch match;
    for (size_t i = 0; i < source.lines.size(); ++i) {
      if (!std::regex_search(source.lines[i], match, *kImport)) continue;
      const std::string import = match[1];
      if (!StartsWithAny(import, {"meshrun/", "google/"})) {
        Report(source, static_cast<int>(i) + 1, "proto/ must not use " + import);
      }
    }
  }

  void CheckLabels(const Source& source) {
    static const std::regex* const kLabel =
        new std::regex(R"re("(@?[\w.-]*)//([\w/.-]*)(:[^"]*)?")re");
    static const std::regex* const kTorch = new std::regex(R"re(\btorch\s*=\s*True\b)re");
    for (size_t i = 0; i < source.lines.size(); ++i) {
      const int line_number = static_cast<int>(i) + 1;
      const std::string line = source.lines[i].substr(0, source.lines[i].find('#'));
      for (std::sregex_iterator label(line.begin(), line.end(), *kLabel), end; label != end;
           ++label) {
        CheckLabel(source, line_number, (*label)[1], (*label)[2], (*label)[3]);
      }
      if (!UsesLibTorch(source.path) && std::regex_search(line, *kTorch)) {
        Report(source, line_number,
               NameOfUser(source.path) + " must not reach LibTorch: torch = True");
      }
    }
  }

  void CheckLabel(const Source& source, int line, const std::string& repository,
                  const std::string& package, const std::string& target) {
    // A visibility names packages that may see a target, not packages that the target uses.
    if (target == ":__subpackages__" || target == ":__pkg__" || package.ends_with("...")) return;
    const std::string used = RoomOf(package);
    if (repository.empty() && (AllowedRooms().contains(used) || used == "tests")) {
      CheckRoom(source, line, used);
    }
    if (repository.empty()) CheckLayers(source, line, package + "/");
    const bool torch = repository == "@libtorch" || package == "third_party/libtorch";
    const bool wire = package == "third_party/grpc" || package == "third_party/protobuf";
    const Library reached = torch ? Library::kLibTorch : wire ? Library::kWire : Library::kNone;
    for (const Library library : ForbiddenLibraries(source.path)) {
      if (reached != library) continue;
      Report(source, line,
             NameOfUser(source.path) + " must not reach " + std::string(NameOf(reached)) + ": " +
                 repository + "//" + package + target);
    }
  }

  Sources sources_;
  std::vector<Violation> violations_;
};

}  // namespace

std::vector<Violation> FindForbiddenEdges(const std::filesystem::path& root) {
  return Checker(ReadTree(root)).Check();
}

}  // namespace meshrun::house
