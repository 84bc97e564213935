#include "coordinator/api/whole_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/api/flight_sentence.h"
#include "coordinator/api/log_cursor.h"
#include "coordinator/api/log_pieces.h"
#include "core/json/json.h"
#include "core/picture_name.h"
#include "core/status.h"
#include "meshrun/v1/job_service.pb.h"

namespace meshrun::coordinator {
namespace {

using google::protobuf::Message;
using Json = nlohmann::ordered_json;

std::string Line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// All answers of a call, each as one value; those that come too late are not waited for. False:
// `take` wants no more.
absl::StatusOr<bool> Collect(const std::shared_ptr<LocalStream>& stream, const Patience& patience,
                             const std::function<bool(const Message&)>& take) {
  bool goes_on = true;
  while (goes_on) {
    auto taken = LocalStream::Taken::kNothing;
    absl::Status status = AwaitPatiently(
        patience, "the job's hosts have not answered in time: try again", [&](Deadline step) {
          taken = stream->Take(step, [&](const Message& answer) { goes_on = take(answer); });
          return taken != LocalStream::Taken::kNothing;
        });
    if (taken == LocalStream::Taken::kMessage) continue;
    if (status.ok()) status = stream->status();
    stream->Leave();
    if (!status.ok()) return status;
    return true;
  }
  stream->Leave();
  return false;
}

constexpr const char* kTooManyRanks =
    "so many ranks have written output that their places have no room in `next`: ask for fewer "
    "ranks at a time, for example ranks=0-63";

// Where each stream goes on: after its pieces, else where it began.
std::vector<v1::LogPosition> Places(const v1::ReadLogsRequest& request, const LogPieces& pieces) {
  std::map<std::pair<int, int>, v1::LogPosition> places;
  const auto add = [&](const v1::LogPosition& place) {
    places[{place.rank(), place.stream()}] = place;
  };
  for (const v1::LogPosition& place : request.positions()) add(place);
  for (const v1::LogPosition& place : pieces.Ends()) add(place);
  std::vector<v1::LogPosition> out;
  for (auto& [stream, place] : places) out.push_back(std::move(place));
  return out;
}

// How much room is left for answers of ranks.
class Room {
 public:
  // Whether so many bytes fit still: then they are taken.
  bool Take(size_t bytes) {
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }

 private:
  size_t left_ = kMostAnswerBytes;
};

}  // namespace

absl::StatusOr<std::string> AllLogs(const std::shared_ptr<LocalStream>& stream,
                                    const v1::ReadLogsRequest& request, const Patience& patience) {
  LogPieces pieces;
  Json list = Json::array();
  size_t bytes = 0;
  uint64_t generation = request.generation();
  const absl::StatusOr<bool> all = Collect(stream, patience, [&](const Message& answer) {
    const auto& piece = static_cast<const v1::ReadLogsResponse&>(answer);
    bytes += piece.data().size();
    generation = piece.generation();
    if (Json json = pieces.Add(piece); !json.is_null()) list.push_back(std::move(json));
    return bytes < kMostLogBytes;
  });
  const bool more = all.ok() && !*all;
  // The next page begins with a character that this one would cut.
  if (!more) {
    for (Json& json : pieces.Rest()) list.push_back(std::move(json));
  }
  if (!all.ok() && list.empty()) return all.status();
  Json out{{"pieces", std::move(list)}, {"more", more}};
  std::optional<std::string> next;
  if (generation != 0) next = WriteLogCursor(generation, Places(request, pieces));
  if (next) out["next"] = *std::move(next);
  if (!all.ok()) {
    // Files are missing here: what came of the others stays valid.
    out["problem"] = std::string(all.status().message());
  } else if (more && !out.contains("next")) {
    out["problem"] = kTooManyRanks;
  }
  return Line(out);
}

absl::StatusOr<std::string> AllStacks(const std::shared_ptr<LocalStream>& stream,
                                      const Patience& patience) {
  std::map<int, Json> stacks;
  uint64_t generation = 0;
  Room room;
  MESHRUN_ASSIGN_OR_RETURN(const bool all, Collect(stream, patience, [&](const Message& answer) {
                             const auto& one = static_cast<const v1::GetStacksResponse&>(answer);
                             if (!room.Take(one.ByteSizeLong())) return false;
                             generation = one.generation();
                             stacks[one.stack().rank()] = Json::parse(ToJson(one.stack()));
                             return true;
                           }));
  Json list = Json::array();
  for (auto& [rank, stack] : stacks) list.push_back(std::move(stack));
  return Line({{"stacks", std::move(list)}, {"generation", generation}, {"more", !all}});
}

absl::StatusOr<std::string> AllFlightRecords(const std::shared_ptr<LocalStream>& stream,
                                             const Patience& patience) {
  std::map<int, v1::FlightRecord> by_rank;
  uint64_t generation = 0;
  Room room;
  MESHRUN_ASSIGN_OR_RETURN(
      const bool all, Collect(stream, patience, [&](const Message& answer) {
        const auto& one = static_cast<const v1::GetFlightRecordsResponse&>(answer);
        const size_t bytes = one.ByteSizeLong();
        const bool fits = bytes <= kMostRecordBytes;
        if (fits && !room.Take(bytes)) return false;
        generation = one.generation();
        v1::FlightRecord& record = by_rank[one.record().rank()];
        record.Clear();
        if (fits) {
          record = one.record();
        } else {
          record.set_rank(one.record().rank());
          record.set_error(fmt::format("its record has {} bytes, and at most {} are given here",
                                       bytes, kMostRecordBytes));
        }
        return true;
      }));
  std::vector<v1::FlightRecord> records;
  Json list = Json::array();
  for (auto& [rank, record] : by_rank) {
    list.push_back(Json::parse(ToJson(record)));
    records.push_back(std::move(record));
  }
  return Line({{"records", std::move(list)},
               {"generation", generation},
               {"more", !all},
               {"sentence", FlightSentence(records)}});
}

absl::StatusOr<std::string> AllPictures(const std::shared_ptr<LocalStream>& stream,
                                        const Patience& patience) {
  std::map<std::pair<int, std::string>, Json> pictures;
  Room room;
  bool is_found = false;
  const absl::StatusOr<bool> all = Collect(stream, patience, [&](const Message& answer) {
    const auto& part = static_cast<const v1::ReadPicturesResponse&>(answer);
    is_found = true;
    if (!room.Take(part.ByteSizeLong())) return false;
    for (const v1::Picture& picture : part.pictures()) {
      if (PictureType(picture.name()).empty()) continue;
      pictures[{picture.rank(), picture.name()}] = Json::parse(ToJson(picture));
    }
    return true;
  });
  // Afterwards only hosts can fail, each of which hides its own pictures alone.
  if (!all.ok() && !is_found) return all.status();
  Json list = Json::array();
  for (auto& [place, picture] : pictures) list.push_back(std::move(picture));
  Json out{{"pictures", std::move(list)}};
  if (!all.ok()) {
    out["problem"] = std::string(all.status().message());
  } else if (!*all) {
    out["problem"] = "the job has too many pictures: those of some ranks are not here";
  }
  return Line(out);
}

absl::StatusOr<WholePicture> OnePicture(const std::shared_ptr<LocalStream>& stream,
                                        const std::function<bool(std::string_view etag)>& has,
                                        const Patience& patience) {
  WholePicture out;
  uint64_t wanted = 0;
  std::string bytes;
  MESHRUN_ASSIGN_OR_RETURN(
      const bool all, Collect(stream, patience, [&](const Message& answer) {
        const auto& part = static_cast<const v1::ReadPicturesResponse&>(answer);
        if (part.pictures_size() > 0) {
          const v1::Picture& picture = part.pictures(0);
          wanted = std::min<uint64_t>(picture.bytes(), kMostPictureBytes);
          out.etag = fmt::format("\"{:x}-{:x}-{:x}\"", picture.modified_at().seconds(),
                                 picture.modified_at().nanos(), picture.bytes());
          if (has(out.etag)) return false;
        }
        bytes += part.data();
        return bytes.size() <= wanted;
      }));
  if (!all && bytes.empty()) return out;
  if (!all || out.etag.empty() || bytes.size() != wanted) {
    return absl::UnavailableError(fmt::format(
        "the picture has {} bytes, and {} of them have come: ask again", wanted, bytes.size()));
  }
  out.bytes = std::move(bytes);
  return out;
}

}  // namespace meshrun::coordinator
