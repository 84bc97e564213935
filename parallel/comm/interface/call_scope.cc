#include "parallel/comm/interface/call_scope.h"

#include <utility>

namespace meshrun {
namespace {

thread_local const char* outermost = nullptr;

}  // namespace

CallScope::CallScope(const char* name) : is_outermost_(outermost == nullptr) {
  if (is_outermost_) outermost = name;
}

CallScope::~CallScope() {
  if (is_outermost_) outermost = nullptr;
}

const char* CallScope::current() { return outermost; }

CallScope::Suspended::Suspended() : before_(std::exchange(outermost, nullptr)) {}
CallScope::Suspended::~Suspended() { outermost = before_; }

}  // namespace meshrun
