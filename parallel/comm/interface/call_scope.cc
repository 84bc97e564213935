#include "parallel/comm/interface/call_scope.h"

#include <utility>

namespace meshrun {
namespace {

constinit thread_local CallScope::Name outermost;

}  // namespace

CallScope::CallScope(const char* name, Comparison comparison)
    : is_outermost_(outermost.text == nullptr) {
  if (is_outermost_) outermost = {name, comparison == Comparison::kByName};
}

CallScope::~CallScope() {
  if (is_outermost_) outermost = {};
}

const char* CallScope::current() { return outermost.text; }
CallScope::Name CallScope::current_name() { return outermost; }

CallScope::Suspended::Suspended() : before_(std::exchange(outermost, Name())) {}
CallScope::Suspended::~Suspended() { outermost = before_; }

}  // namespace meshrun
