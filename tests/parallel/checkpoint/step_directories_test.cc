// Directories of checkpoints, without tensors.
#include "parallel/checkpoint/step_directories.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "parallel/checkpoint/atomic_file.h"

namespace meshrun {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class StepDirectoriesTest : public testing::Test {
 protected:
  StepDirectoriesTest() { fs::remove_all(directory_); }

  void write(int64_t step, int64_t keep = 2, const std::string& content = "tensors") {
    Manifest manifest;
    manifest.step = step;
    manifest.identity = {{"--lr", "0.1"}};
    manifest.sampler = {{"seed", "7"}};
    manifest.random_generators = {{"cpu", std::string("\0\xff\x10", 3)}};
    manifest.random_generators_by_rank = {{{"cpu", "a"}}, {{"cpu", "b"}}};
    manifest.optimizer = "Adam";
    manifest.optimizer_options = {{{"lr", 0.1}, {"eps", 1e-300}}, {{"lr", 1.0 / 3}}};
    manifest.kept_values = {{"sampler", std::string("\0\xff", 2)}};
    UnfinishedStep unfinished(directory_, step, writer_);
    check_status(unfinished.create_file("model", content.size()));
    std::ofstream(unfinished.path() + "/model", std::ios::binary) << content;
    manifest.files["model"] = {.bytes = content.size(),
                               .sha256 = "",
                               .chunks = {{content.size(), Xxh3(content)}},
                               .pieces = {}};
    manifest.sequence = unfinished.last_sequence() + 1;
    unfinished.describe(manifest);
    unfinished.commit();
    unfinished.publish({.keep = keep});
    unfinished.remove_hidden();
  }
  std::vector<int64_t> steps() const {
    std::vector<int64_t> steps;
    for (const auto& each : value_of(ListStepDirectories(directory_))) {
      steps.push_back(each.manifest.step);
    }
    return steps;
  }
  bool finish(const std::string& directory, int64_t step, const std::string& digest,
              const std::string& temporary) {
    return finish_step_directory(directory, step, digest, temporary, writer_.say);
  }
  std::string content() const { return read_file(newest().path + "/model"); }
  StepDirectory newest() const { return value_of(ListStepDirectories(directory_)).back(); }

  // Grants every commit, unless a test says otherwise.
  StepWriter writer_ = {"here.3", 3, [](int64_t, const std::string&, const std::string&) {},
                        [this](const std::string& line) { said_.push_back(line); }};
  std::vector<std::string> said_;
  const std::string directory_ = testing::TempDir() + "step_directories";
};

TEST_F(StepDirectoriesTest, ComesBackAsItWasWritten) {
  EXPECT_TRUE(value_of(ListStepDirectories(directory_)).empty());
  write(5);
  const Manifest manifest = newest().manifest;
  EXPECT_EQ(manifest.step, 5);
  EXPECT_EQ(manifest.identity.at("--lr"), "0.1");
  EXPECT_EQ(manifest.sampler.at("seed"), "7");
  EXPECT_EQ(manifest.random_generators.at("cpu"), std::string("\0\xff\x10", 3));
  EXPECT_EQ(manifest.random_generators_by_rank.at(1).at("cpu"), "b");
  EXPECT_EQ(manifest.optimizer, "Adam");
  // The same bits.
  EXPECT_EQ(manifest.optimizer_options.at(0).at("lr"), 0.1);
  EXPECT_EQ(manifest.optimizer_options.at(0).at("eps"), 1e-300);
  EXPECT_EQ(manifest.optimizer_options.at(1).at("lr"), 1.0 / 3);
  EXPECT_EQ(manifest.kept_values.at("sampler"), std::string("\0\xff", 2));
  EXPECT_EQ(content(), "tensors");
}

TEST_F(StepDirectoriesTest, TheNewestIsTheOneWrittenLastAndOlderOnesGo) {
  for (const int64_t step : {100, 900, 1000}) write(step);
  EXPECT_THAT(steps(), ElementsAre(900, 1000));
  write(50);  // a run that started anew
  EXPECT_THAT(steps(), ElementsAre(1000, 50));
  write(1000, 2, "others");
  EXPECT_THAT(steps(), ElementsAre(50, 1000));
  EXPECT_EQ(content(), "others");
  write(1100, 1);
  EXPECT_THAT(steps(), ElementsAre(1100));
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), {}), 1);
}

TEST_F(StepDirectoriesTest, WhatIsReplacedStaysUntilTheNewNameIsOnTheDisk) {
  write(5, 2, "old");
  std::vector<std::string> seen;
  writer_.flush = [&](const std::string& directory) {
    EXPECT_EQ(fs::path(directory), fs::path(directory_));
    for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
      std::ifstream file(entry.path() / "model");
      seen.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    return os::SyncDirectory(directory);
  };
  write(5, 2, "new");
  EXPECT_THAT(seen, ::testing::UnorderedElementsAre("old", "new"));
  EXPECT_EQ(content(), "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), {}), 1);
  // The disk refuses: both are still there, and the next writer goes on.
  writer_.flush = [](const std::string&) { return absl::UnavailableError("the disk is away"); };
  EXPECT_THROW(write(5, 2, "newer"), std::runtime_error);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), {}), 2);
  EXPECT_EQ(content(), "newer");
  writer_.flush = os::SyncDirectory;
  write(6);
  EXPECT_THAT(steps(), ElementsAre(5, 6));
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), {}), 2);
}

TEST_F(StepDirectoriesTest, WhatACrashLeavesIsNotReadAndThenRemoved) {
  write(5);
  const fs::path unfinished = fs::path(directory_) / ".step-9.unfinished";
  fs::create_directories(unfinished);
  fs::copy(fs::path(directory_) / "step-5", unfinished);
  fs::create_directories(fs::path(directory_) / "step-8");  // no manifest: not complete
  EXPECT_THAT(steps(), ElementsAre(5));
  write(6);
  EXPECT_THAT(steps(), ElementsAre(5, 6));
  EXPECT_FALSE(fs::exists(unfinished));
}

// The answer of the coordinator that committed it was lost, and the next one refused.
TEST_F(StepDirectoriesTest, ARefusedCommitIsFinishedWhereItWasCommittedAndElseRemoved) {
  write(5);
  std::string digest, temporary;
  const auto commit = writer_.commit;
  writer_.commit = [&](int64_t, const std::string& of, const std::string& name) {
    digest = of;
    temporary = name;
    throw CommitRefused("generation 4 has the right");
  };
  EXPECT_THAT([&] { write(6); }, ThrowsMessage<CommitRefused>(HasSubstr("generation 4")));
  EXPECT_THAT(steps(), ElementsAre(5));
  finish(directory_, 6, digest, temporary);
  EXPECT_THAT(steps(), ElementsAre(5, 6));
  EXPECT_THROW(write(7), CommitRefused);
  writer_.commit = commit;
  write(8);
  EXPECT_THAT(steps(), ElementsAre(6, 8));
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), {}), 2);
}

TEST_F(StepDirectoriesTest, AWriterOfAnOlderGenerationLeavesTheFilesOfALaterOneAlone) {
  const fs::path later = fs::path(directory_) / ".step-9.there.4.unfinished";
  const fs::path older = fs::path(directory_) / ".step-9.there.2.unfinished";
  fs::create_directories(later);
  fs::create_directories(older);
  write(5);
  EXPECT_TRUE(fs::exists(later));
  EXPECT_FALSE(fs::exists(older));
}

TEST_F(StepDirectoriesTest, WhatWasCommittedAndNotRenamedIsFinished) {
  write(5);
  std::string digest, temporary;
  writer_.commit = [&](int64_t, const std::string& of, const std::string& name) {
    digest = of;
    temporary = name;
    throw std::runtime_error("the writer dies here");
  };
  EXPECT_THROW(write(6), std::runtime_error);
  EXPECT_FALSE(finish(directory_, 6, "another digest", temporary));
  EXPECT_THAT(steps(), ElementsAre(5));
  EXPECT_TRUE(finish(directory_, 6, digest, temporary));
  EXPECT_THAT(steps(), ElementsAre(5, 6));
  EXPECT_EQ(content(), "tensors");
  EXPECT_TRUE(finish(directory_, 6, digest, temporary));
  EXPECT_THAT(steps(), ElementsAre(5, 6));
  EXPECT_FALSE(finish(directory_, 6, "another digest", temporary));
  EXPECT_FALSE(finish(directory_ + "/elsewhere", 6, digest, temporary));
}

TEST_F(StepDirectoriesTest, AProbeMakesTheDirectoryAndSaysWhyItCannot) {
  const std::string own = directory_ + "/deep/own";
  EXPECT_TRUE(probe_directory(own).ok());
  EXPECT_TRUE(fs::is_empty(own));
  std::ofstream(directory_ + "/file") << "not a directory";
  for (const char* const refused : {"/file", "/file/below"}) {
    const absl::Status status = probe_directory(directory_ + refused);
    EXPECT_THAT(std::string(status.message()), HasSubstr(directory_ + "/file"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("Not a directory"));
  }
  // Root may write anywhere.
  if (::geteuid() == 0) return;
  fs::permissions(own, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_TRUE(absl::IsPermissionDenied(probe_directory(own)));
  EXPECT_TRUE(absl::IsPermissionDenied(probe_directory(own + "/below")));
}

TEST_F(StepDirectoriesTest, CountAgeAndEveryKthDecideWhatStays) {
  const auto checkpoint = [](int64_t step, int64_t written) {
    StepDirectory directory{"step-" + std::to_string(step), {}};
    directory.manifest.step = step;
    directory.manifest.written = written;
    return directory;
  };
  const std::vector<StepDirectory> all = {checkpoint(100, 10), checkpoint(150, 20),
                                          checkpoint(200, 30), checkpoint(250, 40),
                                          checkpoint(300, 50)};
  const auto gone = [&](const Retention& retention) { return outdated(all, retention, 55); };
  EXPECT_THAT(gone({.keep = 2}), ElementsAre("step-100", "step-150", "step-200"));
  EXPECT_THAT(gone({.keep = 9}), ElementsAre());
  EXPECT_THAT(gone({.keep = 2, .keep_every = 100}), ElementsAre("step-150"));
  EXPECT_THAT(gone({.keep = 1, .keep_for = std::chrono::seconds(30)}),
              ElementsAre("step-100", "step-150"));
}

TEST_F(StepDirectoriesTest, ADamagedManifestIsAnErrorToReadAndStaysWhenOthersAreWritten) {
  write(5);
  const std::string path = directory_ + "/step-5/manifest.json";
  std::ifstream stream(path);
  const std::string whole((std::istreambuf_iterator<char>(stream)), {});
  for (size_t size = 0; size + 2 < whole.size(); size += 7) {
    std::ofstream(path, std::ios::binary) << whole.substr(0, size);
    EXPECT_THAT([&] { value_of(ListStepDirectories(directory_)); },
                ThrowsMessage<DamagedCheckpoint>(HasSubstr(path)))
        << size;
  }
  for (const int64_t step : {6, 7, 8}) write(step);
  EXPECT_TRUE(fs::exists(path));
}

TEST_F(StepDirectoriesTest, WhatIsNotAWholeCheckpointIsKeptWhenItsNameIsTaken) {
  write(5, 2, "old");
  const std::string step = directory_ + "/step-5";
  const auto lose_manifest = [&] { fs::remove(step + "/manifest.json"); };
  lose_manifest();
  write(5, 2, "new");
  EXPECT_EQ(content(), "new");
  EXPECT_THAT(said_, ElementsAre(step +
                                 " is not a complete checkpoint: it has no manifest.json; "
                                 "it is " +
                                 step + ".incomplete-1 now, since a new checkpoint gets its name"));
  lose_manifest();
  std::string digest, temporary;
  writer_.commit = [&](int64_t, const std::string& of, const std::string& name) {
    digest = of;
    temporary = name;
    throw std::runtime_error("the writer dies here");
  };
  EXPECT_THROW(write(5, 2, "newer"), std::runtime_error);
  EXPECT_TRUE(finish(directory_, 5, digest, temporary));
  EXPECT_EQ(content(), "newer");
  EXPECT_EQ(said_.size(), 2U);
  writer_.commit = [](int64_t, const std::string&, const std::string&) {};
  for (const int64_t number : {6, 7, 8}) write(number);
  EXPECT_THAT(steps(), ElementsAre(7, 8));
  EXPECT_EQ(read_file(step + ".incomplete-1/model"), "old");
  EXPECT_EQ(read_file(step + ".incomplete-2/model"), "new");
  // A whole one is replaced, and an empty directory is nothing.
  write(8);
  fs::create_directory(directory_ + "/step-9");
  write(9);
  EXPECT_EQ(said_.size(), 2U);
}

TEST_F(StepDirectoriesTest, ACommittedOneIsFoundByItsManifestUnderAnyName) {
  write(5);
  const std::optional<CommittedStep> named = newest_named(directory_);
  ASSERT_TRUE(named);
  EXPECT_EQ(named->step, 5);
  EXPECT_TRUE(is_named(directory_, *named));
  EXPECT_EQ(temporary_name_of(directory_, *named), "");
  fs::rename(directory_ + "/step-5", directory_ + "/.step-5.there.4.unfinished");
  fs::create_directory(directory_ + "/.step-5.there.5.unfinished");
  EXPECT_FALSE(is_named(directory_, *named));
  EXPECT_FALSE(newest_named(directory_));
  EXPECT_EQ(temporary_name_of(directory_, *named), ".step-5.there.4.unfinished");
  EXPECT_EQ(temporary_name_of(directory_, {5, "another digest"}), "");
  EXPECT_EQ(temporary_name_of(directory_ + "/absent", *named), "");
  ASSERT_EQ(unfinished_steps(directory_).size(), 1);
  EXPECT_TRUE(finish(directory_, 5, named->digest, ".step-5.there.4.unfinished"));
  EXPECT_THAT(steps(), ElementsAre(5));
}

}  // namespace
}  // namespace meshrun
