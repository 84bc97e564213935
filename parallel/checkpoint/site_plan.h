// What the files of each site hold where hosts share no file system (sites.h).
//
//   what all ranks have   whole, at every site: one host that is left has all of a training that
//                         is not cut
//   rank 0's              the same, with rank 0's values
//   pieces                at the sites of the ranks that hold them, each as a tensor of its own:
//                         "w@4,0" begins at [4, 0] of w
//
// A piece that ranks of several sites hold is stored at each of them, if its values are those of
// the ranks that are in a group with rank 0. So any one of two hosts has all of a model whose
// pieces are within each host.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "core/checkpoint/safetensors.h"
#include "parallel/checkpoint/background_save.h"
#include "parallel/checkpoint/file_tensors.h"
#include "parallel/checkpoint/sites.h"

namespace meshrun::detail {

// A stored tensor that this rank writes: bytes of what it has of `tensor`, from `from` on.
struct OwnPiece {
  std::string stored;
  const FileTensor* tensor = nullptr;
  uint64_t from = 0;
  uint64_t bytes = 0;
};

struct SitePlan {
  // Headers of the files of this rank's site. With one site they have all tensors.
  ByFile<SafetensorsHeader> headers;
  ByFile<std::string> heads;  // encoded
  // What this rank writes of pieces; with one site there are none.
  ByFile<std::vector<OwnPiece>> own;
  // Those of all sites, by the name of the file.
  PiecesByFile pieces;
  // Text of the index of the model's files (safetensors_index.h); empty with one site. A tensor
  // that this site has is in its own file.
  std::string index;
};

// "model.safetensors", and with several sites "model-00002-of-00003.safetensors".
std::string site_file_name(FileKind kind, size_t site, size_t sites);

// Whether its ranks have pieces of it. A tensor without elements is whole.
bool is_in_pieces(const FileTensor& tensor);

// `tensors`, which have to outlive the plan, are what agree_on() has left. Collective over `group`
// and over the groups of pieces if there are several sites. Raises CheckpointFileError, the same on
// all ranks, for names that the format does not take.
SitePlan plan_files(const FileTensors& tensors, const Sites& sites, const std::string& directory,
                    c10d::ProcessGroup& group, c10::Device device);

}  // namespace meshrun::detail
