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

std::string CallScope::words_in(const char* scope, std::string_view operation, std::string words) {
  if (scope == nullptr || scope == operation) return words;
  return std::string(scope) + " (" + words + ")";
}

CallScope::Suspended::Suspended() : before_(std::exchange(outermost, Name())) {}
CallScope::Suspended::~Suspended() { outermost = before_; }

}  // namespace meshrun
