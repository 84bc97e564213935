// What the state machine asks its shell to do. Actions are released in order, after the rows of the
// same batch are durable.
#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "meshrun/v1/session.pb.h"
#include "meshrun/v1/state.pb.h"

namespace meshrun::coordinator {

using MessagePtr = std::shared_ptr<const google::protobuf::Message>;

struct SendToSession {
  uint64_t session_id = 0;
  v1::OpenSessionResponse message;
};

struct CloseSession {
  uint64_t session_id = 0;
  absl::Status status;
};

// Ends the call: with `response` when the status is ok and the call is unary.
struct ReplyToCall {
  uint64_t call_id = 0;
  absl::Status status;
  MessagePtr response;
};

// One message of a streaming call. The shell may drop all but the last when the reader is slow.
struct StreamItem {
  uint64_t call_id = 0;
  MessagePtr item;
};

// Where one log file is, or a host's pictures: the shell opens it there and passes its bytes on to
// the call.
struct LogSource {
  std::string node_id;
  std::string node_name;
  uint64_t session_id = 0;
  v1::OpenLog open;
  // In place of `open`, whose stream_id it shares.
  std::optional<v1::OpenPictures> pictures = std::nullopt;
  v1::Fence fence;
  // As the reader asked for it; `open` names the process, which may have another rank and
  // generation of its own.
  int rank = 0;
  uint64_t generation = 0;
};
struct OpenLogRelay {
  uint64_t call_id = 0;
  std::vector<LogSource> sources;
  // OK, or which files cannot be had now: the call's status after the last of `sources` has ended.
  absl::Status end;
};

// The node is LOST: what it uploads besides its session ends with `why`.
struct EndUploads {
  std::string node_id;
  absl::Status why;
};

struct WriteLog {
  bool warning = false;
  std::string text;
};

// When the rows are durable, this term among them: the shell restores what is on disk, as after any
// start, ends all sessions, and notes this event.
struct BeginAnew {
  uint64_t term = 0;
  std::string kind;
  std::string message;
};

using Action = std::variant<SendToSession, CloseSession, ReplyToCall, StreamItem, OpenLogRelay,
                            EndUploads, WriteLog, BeginAnew>;

struct Actions {
  std::vector<Action> list;
  // What must be durable before any of the list is released. Filled at the end of a batch.
  std::vector<v1::StateRow> rows;
  // Error of a restore: DATA_LOSS names a row that cannot be read. The restored state must then not
  // be used.
  absl::Status damage;
};

// For tests and replays: two actions are the same when their texts are.
std::string DebugText(const Action& action);

}  // namespace meshrun::coordinator
