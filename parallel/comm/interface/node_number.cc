#include "parallel/comm/interface/node_number.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "fmt/format.h"

namespace meshrun {
namespace {

constexpr int kNodeBits = 12;
constexpr int kNumberBits = 48;
constexpr uint64_t kMostNodes = (1 << kNodeBits) - 1;  // more share the last number
constexpr uint64_t kNumber = (uint64_t{1} << kNumberBits) - 1;
constexpr int64_t kPackedUntold = -1;
static_assert(NodeNumber::kInNoNode > kNumber);

constinit thread_local NodeNumber running;

}  // namespace

NodeNumber::NodeNumber(uint64_t serial, uint64_t operation, uint64_t nodes)
    : packed_(serial << kNumberBits |
              ((operation << kNodeBits | std::min(nodes, kMostNodes)) & kNumber)) {}

NodeNumber NodeNumber::untold() { return NodeNumber(kPackedUntold); }

uint64_t NodeNumber::new_serial() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

uint64_t NodeNumber::current(uint64_t serial) {
  const uint64_t packed = running.packed_;
  if (packed == 0) return kInNoNode;
  if (running.packed() == kPackedUntold) return kUntold;
  return packed >> kNumberBits == (serial << kNumberBits) >> kNumberBits ? packed & kNumber
                                                                         : kInNoNode;
}

std::string NodeNumber::words(uint64_t number) {
  if (number == kUntold || number == kInNoNode) return "";
  return fmt::format(" (backward of differentiable call {} after operation {})",
                     number & kMostNodes, number >> kNodeBits);
}

NodeNumber::Scope::Scope(const NodeNumber& number) : before_(std::exchange(running, number)) {}
NodeNumber::Scope::~Scope() { running = before_; }

}  // namespace meshrun
