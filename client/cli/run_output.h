// The flags of `meshrun run` that say where the ranks' output goes and where their input comes
// from, with torchrun's spellings.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/flag_set.h"
#include "client/cli/input_broadcast.h"
#include "client/cli/output_pipe.h"
#include "client/local_cluster.h"
#include "core/os/fd.h"

namespace meshrun::client {

struct RunOutputFlags {
  std::string log_dir;
  std::string tee;
  std::string redirects;
  std::string local_ranks_filter;
  std::string input = "0";
  bool tty = false;
  std::string prefix_template;
};

void AddRunOutputFlags(FlagSet& flags, RunOutputFlags* values);

// Style of the terminal that shows what ranks write: standard error's, else standard output's. Its
// width leaves out what stands in front of the lines of several ranks.
Style StyleForRanks(uint32_t ranks);

// What the flags ask for, on this host.
struct RunOutput {
  // Checks the flags and makes the directory. `ranks`: on this host. INVALID_ARGUMENT: the flag and
  // what is wrong with it.
  static absl::StatusOr<RunOutput> Prepare(const RunOutputFlags& flags, uint32_t ranks);
  // On one of several hosts: turns the local ranks in --tee and --redirects into world ranks, which
  // the worker uses. `first`: the world rank of this host's first rank. INVALID_ARGUMENT: the flags
  // name ranks, and `first` is absent.
  absl::Status CountFrom(std::optional<uint32_t> first);
  // Whether --tee or --redirects names ranks.
  bool names_ranks() const;
  // The worker's flags.
  void AddTo(LocalCluster::Options* options) const;

  // Made absolute; empty: none.
  std::string log_dir;
  std::string tee, redirects;
  // COLUMNSxROWS of the ranks' pseudo-terminals; empty: they write to pipes.
  std::string terminal;
  OutputView view;
  uint64_t log_limit_bytes = 0;
  // A duplicate of standard input for a rank, or all of it for each; or none.
  os::UniqueFd input;
  int input_rank = 0;
  std::unique_ptr<InputBroadcast> input_of_all;
};

}  // namespace meshrun::client
