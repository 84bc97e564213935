#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "core/checkpoint/tar_file.h"
#include "core/checkpoint/torch_files.h"
#include "core/checkpoint/torch_save.h"
#include "core/checkpoint/zip_file.h"
#include "core/status.h"

namespace meshrun {
namespace {

constexpr std::string_view kMdlusModel = "model.pt";
constexpr std::string_view kMdlusTexts[] = {"args.json", "metadata.json"};
constexpr uint64_t kLongestMdlusText = uint64_t{16} << 20;

}  // namespace

// Earlier versions of PhysicsNeMo write a tar, later ones a zip.
absl::StatusOr<TensorSourcePtr> OpenMdlus(const std::string& path) {
  MESHRUN_ASSIGN_OR_RETURN(const FileRegion region, FileRegion::Open(path));
  std::string magic(std::min<uint64_t>(region.size(), 4), '\0');
  MESHRUN_RETURN_IF_ERROR(region.Read(0, magic));
  std::map<std::string, FileRegion, std::less<>> members;
  if (magic == "PK\x03\x04") {
    MESHRUN_ASSIGN_OR_RETURN(const ZipFile zip, ZipFile::Open(region));
    for (const std::string_view name : {kMdlusModel, kMdlusTexts[0], kMdlusTexts[1]}) {
      if (!zip.Has(name)) continue;
      MESHRUN_ASSIGN_OR_RETURN(const FileRegion member, zip.Find(name));
      members.emplace(name, member);
    }
  } else {
    MESHRUN_ASSIGN_OR_RETURN(members, ReadTar(region));
  }
  const auto find = [&](std::string_view name) -> absl::StatusOr<FileRegion> {
    if (const auto at = members.find(name); at != members.end()) return at->second;
    return absl::DataLossError(
        fmt::format("{} is not a .mdlus of PhysicsNeMo: it has no member {}", path, name));
  };
  MESHRUN_ASSIGN_OR_RETURN(const FileRegion model, find(kMdlusModel));
  std::map<std::string, std::string> notes;
  for (const std::string_view name : kMdlusTexts) {
    MESHRUN_ASSIGN_OR_RETURN(const FileRegion member, find(name));
    MESHRUN_ASSIGN_OR_RETURN(notes[std::string(name)], member.ReadAll(kLongestMdlusText, name));
  }
  return OpenTorchSaveRegion(model, "PhysicsNeMo .mdlus", std::move(notes));
}

}  // namespace meshrun
