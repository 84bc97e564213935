// What a copy of the state becomes by what the hosts run: the end of a roll call (roll_call.h).
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "meshrun/v1/session.pb.h"
#include "meshrun/v1/state.pb.h"

namespace meshrun::coordinator {

// A host that has answered the roll call.
struct RollCallNode {
  v1::Hello hello;
  uint64_t incarnation = 0;
  // What it was told of each generation that it runs, by job and generation.
  std::map<std::pair<std::string, uint64_t>, v1::GenerationDetails> details;
};

struct RollCallResult {
  // Changes of the state.
  std::vector<v1::StateRow> rows;
  // "2 jobs go on, 1 of which the copy did not know; ...".
  std::string summary;
};

// Rows that Reconcile looks at; of those of the ranks' store it needs the keys alone.
bool IsReconciled(v1::StateTable table);

// The copy after what the hosts have said. Pure. `wall`: now.
RollCallResult Reconcile(const std::vector<v1::StateRow>& copy,
                         const std::map<std::string, RollCallNode>& nodes, WallNanos wall);

}  // namespace meshrun::coordinator
