// A job's body in every world that it lives through (parallel/elastic/elastic_context.h).
#pragma once

#include <functional>

#include "parallel/elastic/elastic_context.h"

namespace meshrun::jobs {

// Calls `body` in the world that join_world() has joined, and again in each one that follows it; a
// world that follows is joined as the first was. Raises Stopped where the coordinator stops the job
// meanwhile, and what `body` raises.
void run_elastic(const std::function<void(ElasticContext& elastic)>& body);

}  // namespace meshrun::jobs
