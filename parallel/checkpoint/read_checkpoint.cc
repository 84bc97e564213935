#include "parallel/checkpoint/read_checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "parallel/base/digest.h"
#include "parallel/checkpoint/status_errors.h"

namespace meshrun::detail {
namespace {

// Ranks on several hosts see the same of a file, and other values of another one, even if it is a
// copy.
int64_t identity_of(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return 0;
  Digest digest;
  digest.add(static_cast<int64_t>(info.st_ino))
      .add(static_cast<int64_t>(info.st_size))
      .add(static_cast<int64_t>(info.st_mtim.tv_sec))
      .add(static_cast<int64_t>(info.st_mtim.tv_nsec));
  return static_cast<int64_t>(digest.value());
}

}  // namespace

std::optional<FileKind> kind_of_file(const std::string& name) {
  const std::string begin = name.substr(0, name.find_first_of(".-"));
  for (size_t kind = 0; kind < kFileNames.size(); ++kind) {
    const std::string whole = kFileNames[kind];
    if (begin == whole.substr(0, whole.find('.'))) return static_cast<FileKind>(kind);
  }
  return std::nullopt;
}

CheckpointReader::CheckpointReader(StepDirectory step) : step_(std::move(step)) {
  const Manifest& manifest = step_.manifest;
  for (const FileKind kind : {kModel, kOptimizer}) {
    const bool is_named = std::ranges::any_of(
        manifest.files, [&](const auto& file) { return kind_of_file(file.first) == kind; });
    if (is_named) continue;
    throw DamagedCheckpoint(step_.path + "/" + kManifestName + " does not name " +
                            kFileNames[kind]);
  }
  const std::set<std::string> others = FilesOfOtherHosts(step_);
  for (const auto& [name, file] : manifest.files) {
    if (kind_of_file(name) && !others.contains(name)) add(name, file);
  }
}

void CheckpointReader::add(const std::string& name, const Manifest::File& file) {
  auto& opened = files_[name] = value_of(CheckedFile::Open(step_.path + "/" + name, file));
  for (const auto& [stored, entry] : opened->header().tensors) {
    const auto piece = file.pieces.find(stored);
    std::string tensor = stored;
    Region region = Region::whole(entry.tensor.shape);
    if (piece != file.pieces.end()) {
      tensor = piece->second.tensor;
      region.shape = piece->second.global_shape;
      region.begin = piece->second.begin;
    }
    held_.push_back({*kind_of_file(name), std::move(tensor), std::move(region)});
    places_.push_back({opened.get(), entry.begin});
  }
}

std::map<std::string, int64_t> CheckpointReader::files() const {
  std::map<std::string, int64_t> files;
  for (const auto& [name, file] : files_) files[name] = identity_of(step_.path + "/" + name);
  return files;
}

bool CheckpointReader::has_whole_files() const {
  return step_.manifest.hosts.empty() && std::ranges::all_of(files_, [&](const auto& file) {
           return file.first == kFileNames[*kind_of_file(file.first)] &&
                  step_.manifest.files.at(file.first).pieces.empty();
         });
}

Outline CheckpointReader::outline(const std::string& file) const {
  Outline outline;
  for (const auto& [name, entry] : files_.at(file)->header().tensors) {
    outline[name] = entry.tensor;
  }
  return outline;
}

void CheckpointReader::verify(const std::string& file, size_t part, size_t parts) const {
  const CheckedFile& checked = *files_.at(file);
  const size_t chunks = checked.chunk_count();
  if (chunks == 0 && part > 0) return;
  check_status(checked.Verify(chunks * part / parts, chunks * (part + 1) / parts));
}

void CheckpointReader::read(size_t index, uint64_t from, std::span<char> to) const {
  const uint64_t begin = places_[index].begin + from;
  const CheckedFile::Interval interval{begin, begin + to.size()};
  check_status(
      places_[index].file->Read({&interval, 1}, [&](uint64_t offset, std::string_view bytes) {
        std::ranges::copy(bytes, to.begin() + static_cast<int64_t>(offset - begin));
      }));
}

void CheckpointReader::fill(std::vector<Target>& targets) const {
  for (const auto& [name, file] : files_) {
    const FileKind kind = *kind_of_file(name);
    const auto& entries = file->header().tensors;
    std::vector<std::pair<uint64_t, Target*>> ordered;
    for (Target& target : targets) {
      // An empty one begins where the next one does.
      if (target.kind() != kind || target.size() == 0) continue;
      ordered.emplace_back(entries.at(target.name()).begin, &target);
    }
    std::ranges::sort(ordered, {}, [](const auto& each) { return each.first; });
    std::vector<CheckedFile::Interval> intervals;
    for (const auto& [begin, target] : ordered) {
      target->visit_needed([&, begin = begin](uint64_t first, uint64_t last) {
        if (first < last) intervals.push_back({begin + first, begin + last});
      });
    }
    auto next = ordered.begin();
    check_status(file->Read(intervals, [&](uint64_t offset, std::string_view bytes) {
      while (std::next(next) != ordered.end() && std::next(next)->first <= offset) ++next;
      next->second->take(offset - next->first, bytes);
    }));
  }
}

}  // namespace meshrun::detail
