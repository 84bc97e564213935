// What the job leaves behind: a sentence, a JSON file, a picture. Rank 0 writes them.
#pragma once

#include <optional>
#include <vector>

#include "jobs/mesh_gnn/evaluation.h"
#include "jobs/mesh_gnn/options.h"
#include "jobs/mesh_gnn/training.h"

namespace meshrun::mesh_gnn {

struct Outcome {
  jobs::TrainingResult training;
  std::optional<Errors> held_out;  // absent with --no-evaluation
  int64_t nodes = 0;
  int64_t edges = 0;
  // By rank.
  std::vector<int64_t> own_nodes;
  std::vector<int64_t> halo_nodes;
  double edge_degrees = 0;
};

// On every rank, as jobs::finish().
void finish(ElasticContext& elastic, const Outcome& outcome, const Options& options,
            const GraphNetwork& network);

// Writes the picture that the options name. Raises std::runtime_error, which names the path.
// The outcome must have been evaluated.
void write_picture(const SlopeMaps& maps, const Outcome& outcome, const Options& options);

}  // namespace meshrun::mesh_gnn
