#include "parallel/bagua/communicator.h"

#include <atomic>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/bagua/process_group.h"
#include "parallel/base/collective_errors.h"
#include "parallel/comm/has_failed.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun::bagua {

struct Communicator::State {
  std::string name;
  std::vector<int> ranks;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::optional<c10::Stream> stream;
  std::atomic<bool> is_aborted{false};
  bool is_closed = false;
};

Communicator::Communicator(std::string name, std::vector<int> ranks,
                           c10::intrusive_ptr<c10d::ProcessGroup> group,
                           std::optional<c10::Stream> stream)
    : state_(std::make_shared<State>()) {
  state_->name = std::move(name);
  state_->ranks = std::move(ranks);
  state_->group = std::move(group);
  state_->stream = stream;
}

Communicator::Communicator(std::shared_ptr<State> state) : state_(std::move(state)) {}

Communicator Communicator::resolved() const { return Communicator(state()); }

std::shared_ptr<Communicator::State> Communicator::state() const {
  return state_ != nullptr ? state_ : default_process_group().get_global_communicator().state_;
}

int Communicator::rank() const {
  const auto state = this->state();
  return state->group ? state->group->getRank() : -1;
}

int Communicator::nranks() const { return static_cast<int>(state()->ranks.size()); }

const std::vector<int>& Communicator::ranks() const { return state()->ranks; }

bool Communicator::is_member() const { return state()->group.defined(); }

const std::string& Communicator::name() const { return state()->name; }

std::optional<c10::Stream> Communicator::stream() const { return state()->stream; }

const c10::intrusive_ptr<c10d::ProcessGroup>& Communicator::group() const {
  const auto state = this->state();
  if (state->is_closed) {
    throw GroupAbortedError(fmt::format(
        "the communicator \"{}\" has ended with DistributedManager::cleanup()", state->name));
  }
  if (!state->group) {
    throw NotAMemberError(fmt::format(
        "this rank is not in the communicator \"{}\", whose ranks in the job are [{}]: ask "
        "is_member() before calling",
        state->name, fmt::join(state->ranks, ", ")));
  }
  return state->group;
}

void Communicator::close() const {
  state_->is_closed = true;
  state_->group.reset();
}

void Communicator::abort() const {
  const c10::intrusive_ptr<c10d::ProcessGroup> group = this->group();
  state()->is_aborted = true;
  for (const c10::Device& device : group->getDeviceTypes()) {
    group->getBackend(device.type())->abort();
  }
}

bool Communicator::is_aborted() const { return state()->is_aborted; }

bool Communicator::check_abort() const {
  const c10::intrusive_ptr<c10d::ProcessGroup> group = this->group();
  return state()->is_aborted || has_failed(*group);
}

}  // namespace meshrun::bagua
