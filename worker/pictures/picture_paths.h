// Where the pictures of ranks are.
#pragma once

#include <cstdint>
#include <string>

namespace meshrun::worker {

// The directory that a rank writes to. `ranks`: the directory that ranks of another user reach for
// as long as their job has a generation here; empty: there is none, and the rank writes to
// KeptPicturesPath. Pure.
std::string PicturesPath(const std::string& ranks, const std::string& logs, int rank,
                         uint64_t generation);
// Beside the rank's logs, for as long as those are kept. Pure.
std::string KeptPicturesPath(const std::string& logs, int rank);

// Moves all pictures in `ranks` to where they are kept: `logs_of_job` has a directory for each
// generation; empty: they go. What fails is logged. Blocks as long as the file system does.
void KeepPictures(const std::string& ranks, const std::string& logs_of_job);

}  // namespace meshrun::worker
