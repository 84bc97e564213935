// Where the output of ranks goes. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "core/stream_choice.h"
#include "meshrun/v1/session.pb.h"

namespace meshrun::worker {

// <logs>/<rank>.stdout.log and so on: the daemon's own, bounded.
std::string LogPath(const std::string& logs, int rank, v1::LogStream stream);
std::string ErrorFilePath(const std::string& logs, int rank);

// A directory that the user named, laid out as torchrun's:
// <directory>/<job>/attempt_<n>/<rank>/{stdout.log,stderr.log,error.json}. Its files are kept
// whole. Reports of hangs go there too.
struct LogLayout {
  // Empty: none.
  std::string directory;
  // What goes there.
  StreamChoice tee;
  StreamChoice redirects;

  bool Takes(int rank, v1::LogStream stream) const;
  // `logs`: the daemon's directory of that generation.
  std::string Path(const std::string& logs, const std::string& job_id, uint64_t generation,
                   int rank, v1::LogStream stream) const;
  std::string ErrorFile(const std::string& logs, const std::string& job_id, uint64_t generation,
                        int rank) const;
  // What is written of a rank where its job seems to hang: dump.txt and flight_record.json beside
  // these, or with the rank's number in `logs`.
  std::string DumpFile(const std::string& logs, const std::string& job_id, uint64_t generation,
                       int rank) const;
  std::string FlightRecordFile(const std::string& logs, const std::string& job_id,
                               uint64_t generation, int rank) const;
};

// Is this a file of a LogLayout's directory, and not the daemon's?
bool IsOfLogLayout(const std::string& path);

}  // namespace meshrun::worker
