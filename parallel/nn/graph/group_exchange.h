// The lists of a plan over a process group: int64 tensors through all_to_all_v. Internal to
// parallel/nn/graph.
#pragma once

#include "c10/core/Device.h"
#include "parallel/manager/group_argument.h"
#include "parallel/nn/graph/list_exchange.h"

namespace meshrun::detail {

class GroupExchange : public ListExchange {
 public:
  explicit GroupExchange(GroupArgument::Handle group);

  int rank() const override;
  int world() const override;
  RankLists all_to_all(const RankLists& lists) override;

 private:
  const GroupArgument::Handle group_;
  // The CPU where the group has a backend for it, else its accelerator.
  const c10::Device device_;
};

}  // namespace meshrun::detail
