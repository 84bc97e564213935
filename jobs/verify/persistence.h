// What must survive: a checkpoint on this site's file system, and a training that loses a rank.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "jobs/verify/stage.h"
#include "parallel/elastic/elastic_context.h"

namespace meshrun::verify {

// Saves a model with its optimizer to `directory`, which it makes, and reads it back into another
// one. When it returns, no rank needs the directory any more.
void check_checkpoint(Stage& stage, const std::string& directory);

// Why no rank can be killed here; empty: one can. Equal on all ranks.
std::string why_no_recovery();
// Ranks go on in process on ucx alone: joins the world anew on it, where it is on another backend.
// Collective.
void move_to_ucx();
// A small training. Without `killed` its last rank is ended by SIGKILL half-way, and the others
// leave this function by the error of a lost peer. In the next world all ranks call it with the
// time of that, which rank 0 knows; it compares the result with that of an undisturbed training.
void check_recovery(Stage& stage, ElasticContext& elastic,
                    std::optional<std::chrono::steady_clock::time_point> killed);

}  // namespace meshrun::verify
