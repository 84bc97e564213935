#include "parallel/comm/interface/node_number.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "fmt/format.h"

namespace meshrun {
namespace {

constexpr uint64_t kNodes = 1 << 16;  // after one operation; more share the last number

constinit thread_local NodeNumber running;

}  // namespace

NodeNumber::NodeNumber(uint64_t serial, uint64_t operation, uint64_t nodes)
    : serial_(serial), value_(operation * kNodes + std::min(nodes, kNodes - 1)) {}

uint64_t NodeNumber::new_serial() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

uint64_t NodeNumber::current(uint64_t serial) {
  return running.serial_ == serial ? running.value_ : 0;
}

std::string NodeNumber::words(uint64_t number) {
  return fmt::format(" (backward of differentiable call {} after operation {})", number % kNodes,
                     number / kNodes);
}

NodeNumber::Scope::Scope(const NodeNumber& number) : before_(std::exchange(running, number)) {}
NodeNumber::Scope::~Scope() { running = before_; }

}  // namespace meshrun
