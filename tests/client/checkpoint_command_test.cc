// meshrun checkpoint as a person or a script calls it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/client/command_fixture.h"
#include "tests/core/checkpoint/step_files.h"

namespace meshrun::client {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using testing::EncodeTensors;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;
using testing::WriteStep;

class CheckpointCommandTest : public CommandTest {
 protected:
  CheckpointCommandTest() {
    for (const int64_t step : {500, 600}) {
      Manifest manifest;
      manifest.step = manifest.sequence = step;
      manifest.written = 1795938345;
      WriteStep(
          files_, manifest,
          {{"model.safetensors", EncodeTensors({{"w", {{"U8", {1}}, step == 500 ? "v" : "w"}}})},
           {"optimizer.safetensors", EncodeTensors({{"step.w", {{"U8", {1}}, "5"}}})}});
    }
  }
  Result Checkpoint(std::vector<std::string> words) {
    words.insert(words.begin(), "checkpoint");
    return Run(words);
  }
  json Json(std::vector<std::string> words, int code = 0) {
    words.insert(words.end(), {"-o", "json"});
    const Result result = Checkpoint(words);
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_EQ(result.err, "");
    return json::parse(result.out);
  }

  const TemporaryDirectory files_;
  const std::string first_ = files_ / "step-500";
  const std::string second_ = files_ / "step-600";
};

TEST_F(CheckpointCommandTest, ListsStepsAndTensors) {
  const Result steps = Checkpoint({"ls", files_.path()});
  EXPECT_EQ(steps.code, 0) << steps.err;
  EXPECT_THAT(steps.out, AllOf(HasSubstr("step-500"), HasSubstr("complete, the newest")));
  EXPECT_EQ(Json({"ls", files_.path()}).at("checkpoints").size(), 2u);
  EXPECT_EQ(Json({"ls", first_}).at("manifest").at("step"), 500);
  EXPECT_EQ(Json({"ls", first_ + "/model.safetensors"}).at("tensors").at(0).at("dtype"), "U8");
}

TEST_F(CheckpointCommandTest, VerifyExits1WhereSomethingIsDamaged) {
  EXPECT_EQ(Json({"verify", files_.path(), "--jobs", "2"}).at("sound"), true);
  std::string model = files_.Read("step-500/model.safetensors");
  model.back() ^= 1;
  files_.Write("step-500/model.safetensors", model);
  const Result found = Checkpoint({"verify", files_.path()});
  EXPECT_EQ(found.code, 1);
  EXPECT_THAT(found.out, HasSubstr("is damaged: bytes 0 to 0 of w (bytes "));
  EXPECT_EQ(Json({"verify", files_.path()}, 1).at("damages").size(), 1u);
}

TEST_F(CheckpointCommandTest, VerifyExits1WhereAStepIsNotComplete) {
  files_.Write(".step-700.node-a.3.unfinished/model.safetensors", "");
  EXPECT_EQ(Checkpoint({"verify", files_.path()}).code, 0);
  files_.Write("step-700/model.safetensors", "");
  const Result found = Checkpoint({"verify", files_.path()});
  EXPECT_EQ(found.code, 1);
  EXPECT_THAT(found.out, HasSubstr("step-700 is not a complete checkpoint: it has no manifest"));
  EXPECT_EQ(Checkpoint({"verify", files_ / "step-700"}).code, 1);
}

TEST_F(CheckpointCommandTest, ConvertReplacesOnlyByForce) {
  const std::string to = files_ / "out.safetensors";
  EXPECT_EQ(Json({"convert", files_.path(), to}).at("tensors"), 1);
  const Result again = Checkpoint({"convert", first_, to});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr(to + " is there: name another file, or give --force"));
  EXPECT_EQ(Checkpoint({"diff", to, second_}).code, 0);
  EXPECT_EQ(Json({"convert", first_, to, "--force", "--all"}).at("tensors"), 2);
  EXPECT_EQ(Checkpoint({"diff", to, first_}).code, 0);
}

TEST_F(CheckpointCommandTest, ANewerStepThatIsNotCompleteIsNotPassedOverInSilence) {
  files_.Write("step-700/model.safetensors", "");
  const std::string said = "meshrun: " + files_ / "step-700" +
                           " has no manifest.json, so it is not a whole checkpoint; step-600 is "
                           "taken\n";
  EXPECT_EQ(Checkpoint({"convert", files_.path(), files_ / "out"}).err, said);
  EXPECT_EQ(Checkpoint({"diff", files_.path(), second_}).err, said);
  EXPECT_EQ(Checkpoint({"diff", second_, files_.path()}).err, said);
  EXPECT_EQ(Checkpoint({"diff", second_, second_}).err, "");
}

TEST_F(CheckpointCommandTest, DiffTellsDifferencesFromTrouble) {
  const json found = Json({"diff", first_, second_}, 1);
  EXPECT_EQ(found.at("equal"), false);
  EXPECT_EQ(found.at("different").at(0).at("largest"), 1.0);
  EXPECT_EQ(Json({"diff", first_, second_, "--atol", "1"}).at("equal"), true);
  files_.Write("step-500/model.safetensors", "");
  EXPECT_EQ(Checkpoint({"diff", first_, second_}).code, 2);
}

TEST_F(CheckpointCommandTest, WrongCallsAreSentences) {
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{"ls", files_ / "absent"}, "absent: No such file or directory"},
      {{"ls"}, "PATH is required"},
      {{"diff", first_}, "B is required"},
      {{"diff", first_, second_, "--rtol", "-1"}, "--rtol -1: write a number from 0 up"},
      {{"diff", first_, second_, "--atol", "x"}, "--atol x: write a number from 0 up"},
      {{"verify", first_, "--jobs", "0"}, "--jobs 0: write a whole number from 1 to 256"},
      {{"convert", first_, files_.path()}, "is not a file: name a file"},
      {{"verfy", first_}, "there is no command 'verfy'"},
  };
  for (const auto& [words, sentence] : wrong) {
    const Result result = Checkpoint(words);
    EXPECT_EQ(result.code, 2) << sentence;
    EXPECT_EQ(result.out, "") << sentence;
    EXPECT_THAT(result.err, HasSubstr(sentence));
  }
}

}  // namespace
}  // namespace meshrun::client
