// What goes wrong, drawn from the seed.
#pragma once

#include <memory>
#include <vector>

#include "tests/coordinator/simulation/clients.h"
#include "tests/coordinator/simulation/world.h"

namespace meshrun::coordinator::simulation {

// `count` faults at random moments of the next `span`. Those that last are over after at most half
// a minute.
void PlanFaults(World& world, const std::vector<std::unique_ptr<Client>>& clients, nanoseconds span,
                int count);

// No fault is left: links let through, what was refused is allowed, daemons come back.
void HealAll(World& world);

}  // namespace meshrun::coordinator::simulation
