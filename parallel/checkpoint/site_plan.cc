#include "parallel/checkpoint/site_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/save_ranges.h"

namespace meshrun::detail {
namespace {

using nlohmann::json;
using TensorMap = std::map<std::string, FileTensor>;

// A box of a tensor in the elements of its stored form.
struct StoredBox {
  std::vector<int64_t> begin;
  std::vector<int64_t> size;

  auto operator<=>(const StoredBox&) const = default;
};

// A rank's boxes of a tensor.
struct ToldBoxes {
  bool is_with_rank_0 = false;  // its group has rank 0
  int64_t sample = 0;
  std::vector<StoredBox> boxes;
};
// Those of all ranks, by the place of the tensor among those of its file, and by rank.
using ToldByTensor = std::map<size_t, std::map<size_t, ToldBoxes>>;

std::vector<StoredBox> own_boxes(const FileTensor& tensor) {
  std::vector<StoredBox> boxes;
  const Region own = stored_region(tensor.cut->own(), tensor.info);
  if (own.elements() == 0) return boxes;
  for (Region& box : boxes_of(own, tensor.info.shape)) {
    boxes.push_back({std::move(box.begin), std::move(box.size)});
  }
  return boxes;
}

// What this rank says of its pieces. Collective over their groups.
json told_of_pieces(const FileTensors& tensors, int rank, c10::Device device) {
  std::map<const c10d::ProcessGroup*, bool> with_rank_0;
  json told = json::array();
  for (const TensorMap& file : tensors) {
    json& of_file = told.emplace_back(json::array());
    size_t place = 0;
    for (const auto& [name, tensor] : file) {
      const size_t own_place = place++;
      if (!is_in_pieces(tensor)) continue;
      const GroupArgument::Handle& of = tensor.cut->group;
      if (!with_rank_0.contains(of.get())) {
        with_rank_0[of.get()] = has_rank_0(*of, device, rank);
      }
      json boxes = json::array();
      for (const StoredBox& box : own_boxes(tensor)) boxes.push_back({box.begin, box.size});
      if (boxes.empty()) continue;
      of_file.push_back({own_place, with_rank_0[of.get()],
                         static_cast<int64_t>(tensor.bytes.sample()), std::move(boxes)});
    }
  }
  return told;
}

ByFile<ToldByTensor> told_by_all(const std::vector<std::string>& texts) {
  ByFile<ToldByTensor> all;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const json told = json::parse(texts[rank]);
    for (size_t kind = 0; kind < all.size(); ++kind) {
      for (const json& of_tensor : told.at(kind)) {
        ToldBoxes& boxes = all[kind][of_tensor.at(0).get<size_t>()][rank];
        boxes.is_with_rank_0 = of_tensor.at(1).get<bool>();
        boxes.sample = of_tensor.at(2).get<int64_t>();
        for (const json& box : of_tensor.at(3)) {
          boxes.boxes.push_back(
              {box.at(0).get<std::vector<int64_t>>(), box.at(1).get<std::vector<int64_t>>()});
        }
      }
    }
  }
  return all;
}

// The rank that writes each box of a tensor, by site. Boxes are those of ranks in a group with rank
// 0; other ranks write one that they have with the same values.
std::vector<std::map<StoredBox, size_t>> writers_of(const std::map<size_t, ToldBoxes>& told,
                                                    const Sites& sites) {
  std::map<StoredBox, int64_t> samples;
  for (const auto& [rank, of_rank] : told) {
    if (!of_rank.is_with_rank_0) continue;
    for (const StoredBox& box : of_rank.boxes) samples.try_emplace(box, of_rank.sample);
  }
  std::vector<std::map<StoredBox, size_t>> writers(sites.count());
  for (const auto& [rank, of_rank] : told) {
    for (const StoredBox& box : of_rank.boxes) {
      const auto wanted = samples.find(box);
      if (wanted == samples.end() || wanted->second != of_rank.sample) continue;
      writers[sites.of_rank[rank]].try_emplace(box, rank);
    }
  }
  return writers;
}

// The name of a box as a tensor of its own, which no other tensor of the file has.
std::string piece_name(const std::string& name, const TensorInfo& whole, const StoredBox& box,
                       const TensorMap& others) {
  if (box.size == whole.shape) return name;
  std::string piece = fmt::format("{}@{}", name, fmt::join(box.begin, ","));
  while (others.contains(piece)) piece += '@';
  return piece;
}

// Fills a plan's part of one file.
class FilePlanner {
 public:
  FilePlanner(FileKind kind, const TensorMap& tensors, const Sites& sites, size_t rank,
              SitePlan& plan)
      : kind_(kind),
        tensors_(tensors),
        sites_(sites),
        rank_(rank),
        site_(sites.of_rank[rank]),
        plan_(plan) {}

  void add(const ToldByTensor& told) {
    size_t place = 0;
    for (const auto& [name, tensor] : tensors_) {
      const size_t own_place = place++;
      if (!is_in_pieces(tensor)) {
        outline_[name] = tensor.info;
        names_[name] = site_;
        bytes_ += stored_bytes(tensor.info);
      } else if (const auto found = told.find(own_place); found != told.end()) {
        add_pieces(name, tensor, found->second);
      }
    }
  }
  void lay_out(const std::string& directory) {
    const std::string path = directory + "/" + site_file_name(kind_, site_, sites_.count());
    auto header = LayOutSafetensors(path, outline_);
    if (!header.ok()) throw CheckpointFileError(std::string(header.status().message()));
    plan_.headers[kind_] = *std::move(header);
  }
  std::string index() const {
    json files = json::object();
    for (const auto& [name, site] : names_) {
      files[name] = site_file_name(kind_, site, sites_.count());
    }
    const json index = {{"metadata", {{"total_size", bytes_}}}, {"weight_map", std::move(files)}};
    return index.dump(2) + "\n";
  }

 private:
  void add_pieces(const std::string& name, const FileTensor& tensor,
                  const std::map<size_t, ToldBoxes>& told) {
    const auto writers = writers_of(told, sites_);
    for (size_t site = 0; site < writers.size(); ++site) {
      for (const auto& [box, writer] : writers[site]) {
        const std::string stored = piece_name(name, tensor.info, box, tensors_);
        const std::string file = site_file_name(kind_, site, sites_.count());
        plan_.pieces[file][stored] = {name, tensor.info.shape, box.begin};
        const bool is_new = names_.try_emplace(stored, site).second;
        if (is_new) bytes_ += stored_bytes({tensor.info.dtype, box.size});
        if (site != site_) continue;
        names_[stored] = site;
        outline_[stored] = {tensor.info.dtype, box.size};
      }
    }
    uint64_t from = 0;
    for (const StoredBox& box : own_boxes(tensor)) {
      const uint64_t bytes = stored_bytes({tensor.info.dtype, box.size});
      const auto writer = writers[site_].find(box);
      if (writer != writers[site_].end() && writer->second == rank_) {
        plan_.own[kind_].push_back(
            {piece_name(name, tensor.info, box, tensors_), &tensor, from, bytes});
      }
      from += bytes;
    }
  }

  const FileKind kind_;
  const TensorMap& tensors_;
  const Sites& sites_;
  const size_t rank_;
  const size_t site_;
  SitePlan& plan_;
  Outline outline_;                      // of this site's file
  std::map<std::string, size_t> names_;  // of all sites, and where each is
  uint64_t bytes_ = 0;
};

SitePlan plan_of_one_site(const FileTensors& tensors, const std::string& directory) {
  SitePlan plan;
  for (size_t file = 0; file < tensors.size(); ++file) {
    Outline outline;
    for (const auto& [name, tensor] : tensors[file]) outline[name] = tensor.info;
    auto header = LayOutSafetensors(directory + "/" + kFileNames[file], outline);
    if (!header.ok()) throw CheckpointFileError(std::string(header.status().message()));
    plan.headers[file] = *std::move(header);
  }
  return plan;
}

SitePlan with_heads(SitePlan plan) {
  std::ranges::transform(plan.headers, plan.heads.begin(), EncodeSafetensorsHeader);
  return plan;
}

}  // namespace

std::string site_file_name(FileKind kind, size_t site, size_t sites) {
  const std::string whole = kFileNames[kind];
  if (sites == 1) return whole;
  const size_t dot = whole.find('.');
  return fmt::format("{}-{:05}-of-{:05}{}", whole.substr(0, dot), site + 1, sites,
                     whole.substr(dot));
}

bool is_in_pieces(const FileTensor& tensor) {
  return tensor.cut != nullptr && Region::whole(tensor.info.shape).elements() > 0;
}

SitePlan plan_files(const FileTensors& tensors, const Sites& sites, const std::string& directory,
                    c10d::ProcessGroup& group, c10::Device device) {
  // It has all tensors, so a name that the format does not take is an error on all ranks.
  SitePlan of_one = plan_of_one_site(tensors, directory);
  if (sites.count() == 1) return with_heads(std::move(of_one));
  const int rank = group.getRank();
  const std::string told = told_of_pieces(tensors, rank, device).dump();
  const ByFile<ToldByTensor> all = told_by_all(gather_texts(group, device, told));
  SitePlan plan;
  for (size_t file = 0; file < tensors.size(); ++file) {
    const auto kind = static_cast<FileKind>(file);
    FilePlanner planner(kind, tensors[file], sites, static_cast<size_t>(rank), plan);
    planner.add(all[file]);
    planner.lay_out(directory);
    if (kind == kModel) plan.index = planner.index();
  }
  return with_heads(std::move(plan));
}

}  // namespace meshrun::detail
