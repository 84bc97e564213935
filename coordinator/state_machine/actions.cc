#include "coordinator/state_machine/actions.h"

#include <fmt/format.h>

namespace meshrun::coordinator {
namespace {

std::string Text(const MessagePtr& message) {
  return message == nullptr ? "-"
                            : message->GetTypeName() + "{" + message->ShortDebugString() + "}";
}

struct Printer {
  std::string operator()(const SendToSession& a) const {
    return fmt::format("send {} {}", a.session_id, a.message.ShortDebugString());
  }
  std::string operator()(const CloseSession& a) const {
    return fmt::format("close {} {}", a.session_id, a.status.ToString());
  }
  std::string operator()(const ReplyToCall& a) const {
    return fmt::format("reply {} {} {}", a.call_id, a.status.ToString(), Text(a.response));
  }
  std::string operator()(const StreamItem& a) const {
    return fmt::format("item {} {}", a.call_id, Text(a.item));
  }
  std::string operator()(const OpenLogRelay& a) const {
    std::string out = fmt::format("relay {} {}", a.call_id, a.end.ToString());
    for (const LogSource& source : a.sources) {
      out += fmt::format(
          " [{} {}]", source.session_id,
          source.pictures ? source.pictures->ShortDebugString() : source.open.ShortDebugString());
    }
    return out;
  }
  std::string operator()(const EndUploads& a) const {
    return fmt::format("end uploads of {} {}", a.node_id, a.why.ToString());
  }
  std::string operator()(const WriteLog& a) const {
    return fmt::format("log {}{}", a.warning ? "warning " : "", a.text);
  }
  std::string operator()(const BeginAnew& a) const {
    return fmt::format("begin anew in term {}: {}", a.term, a.message);
  }
};

}  // namespace

std::string DebugText(const Action& action) { return std::visit(Printer{}, action); }

}  // namespace meshrun::coordinator
