// meshrun checkpoint: what lies in checkpoints and tensor files.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>

#include "absl/strings/charconv.h"
#include "client/checkpoint/comparison.h"
#include "client/checkpoint/conversion.h"
#include "client/checkpoint/listing.h"
#include "client/checkpoint/verification.h"
#include "client/cli/context.h"
#include "client/render/checkpoint_report.h"
#include "client/render/progress_line.h"
#include "core/exit_codes.h"
#include "core/os/process.h"
#include "core/status.h"
#include "core/utf8.h"

namespace meshrun::client {
namespace {

constexpr uint32_t kMostJobs = 256;

struct CheckpointFlags {
  std::string path;
  std::string other;
  std::string output;
  uint32_t jobs = 0;
  bool all = false;
  bool force = false;
  std::string rtol;
  std::string atol;
};

// Draws how far a command is in the last line of a terminal, if it takes long enough to be asked.
class ProgressOnTerminal {
 public:
  explicit ProgressOnTerminal(std::string what)
      : line_(std::move(what), std::chrono::steady_clock::now()), style_(StyleOf(2)) {}
  ~ProgressOnTerminal() {
    if (drawn_) std::fputs("\r\033[K", stderr);
  }
  ProgressOnTerminal(const ProgressOnTerminal&) = delete;
  ProgressOnTerminal& operator=(const ProgressOnTerminal&) = delete;

  void operator()(uint64_t done, uint64_t all) {
    if (!style_.terminal) return;
    const auto text = line_.Next(done, all, std::chrono::steady_clock::now());
    if (!text) return;
    std::fputs(fmt::format("\r\033[K{}",
                           FirstColumns(*text, static_cast<size_t>(std::max(style_.width - 1, 1))))
                   .c_str(),
               stderr);
    std::fflush(stderr);
    drawn_ = true;
  }

 private:
  ProgressLine line_;
  const Style style_;
  bool drawn_ = false;
};

int List(const CheckpointFlags& flags) {
  const int width = TableWidth(StyleOf(1));
  const bool json = flags.output == "json";
  if (HoldsCheckpoints(flags.path)) {
    const auto checkpoints = ListCheckpoints(flags.path);
    if (!checkpoints.ok()) return Fail(checkpoints.status());
    Print(json ? CheckpointsJson(flags.path, *checkpoints) : CheckpointTable(*checkpoints, width));
    return kExitOk;
  }
  const auto tensors = ListTensors(flags.path);
  if (!tensors.ok()) return Fail(tensors.status());
  Print(json ? TensorsJson(flags.path, *tensors) : TensorReport(flags.path, *tensors, width));
  return kExitOk;
}

int Verify(const CheckpointFlags& flags) {
  VerifyOptions options;
  // More threads wait for one disk.
  constexpr uint32_t kMostByDefault = 8;
  const uint32_t cores = std::max(std::thread::hardware_concurrency(), 1u);
  options.jobs = static_cast<int>(flags.jobs != 0 ? flags.jobs : std::min(cores, kMostByDefault));
  absl::StatusOr<Verification> verification = absl::UnknownError("");
  {
    ProgressOnTerminal progress("verified");
    options.progress = std::ref(progress);
    verification = client::Verify(flags.path, options);
  }
  if (!verification.ok()) return Fail(verification.status());
  Print(flags.output == "json" ? VerificationJson(flags.path, *verification)
                               : VerificationReport(flags.path, *verification));
  return verification->damages.empty() ? kExitOk : kExitJobFailed;
}

// The unfinished file of a conversion; empty: none. A signal handler reads it.
char unfinished_file[4096];

// Removes it, and ends the program as the signal does. Only async-signal-safe calls.
void RemoveUnfinished(int signal) {
  if (unfinished_file[0] != '\0') ::unlink(unfinished_file);
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void SetUnfinished(const std::string& path) {
  unfinished_file[0] = '\0';
  if (path.size() < sizeof(unfinished_file)) std::strcpy(unfinished_file, path.c_str());
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    // One that is ignored, as under nohup, stays so.
    if (!os::IsIgnored(signal)) ::signal(signal, path.empty() ? SIG_DFL : RemoveUnfinished);
  }
}

void TellPassedOver(const std::string& path) {
  for (const std::string& sentence : PassedOverIn(path)) {
    std::fputs(fmt::format("meshrun: {}\n", EscapeControls(sentence)).c_str(), stderr);
  }
}

int Convert(const CheckpointFlags& flags) {
  TellPassedOver(flags.path);
  ConvertOptions options{.all = flags.all, .force = flags.force, .unfinished = SetUnfinished};
  absl::StatusOr<Conversion> conversion = absl::UnknownError("");
  {
    ProgressOnTerminal progress("converted");
    options.progress = std::ref(progress);
    conversion = client::Convert(flags.path, flags.other, options);
  }
  if (!conversion.ok()) return Fail(conversion.status());
  Print(flags.output == "json" ? ConversionJson(flags.path, flags.other, *conversion)
                               : ConversionReport(flags.other, *conversion));
  return kExitOk;
}

absl::StatusOr<double> ParseTolerance(const char* flag, const std::string& text) {
  if (text.empty()) return 0.0;
  double value = 0;
  const auto [end, error] = absl::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc{} && end == text.data() + text.size() && std::isfinite(value) &&
      value >= 0) {
    return value;
  }
  return absl::InvalidArgumentError(
      fmt::format("{} {}: write a number from 0 up, for example 1e-5", flag, text));
}

absl::StatusOr<Comparison> CompareFlagged(const CheckpointFlags& flags, CompareOptions* options) {
  if (!flags.rtol.empty() || !flags.atol.empty()) {
    Tolerance tolerance;
    MESHRUN_ASSIGN_OR_RETURN(tolerance.relative, ParseTolerance("--rtol", flags.rtol));
    MESHRUN_ASSIGN_OR_RETURN(tolerance.absolute, ParseTolerance("--atol", flags.atol));
    options->tolerance = tolerance;
  }
  ProgressOnTerminal progress("compared");
  options->progress = std::ref(progress);
  return Compare(flags.path, flags.other, *options);
}

int Diff(const CheckpointFlags& flags) {
  TellPassedOver(flags.path);
  TellPassedOver(flags.other);
  CompareOptions options;
  const auto comparison = CompareFlagged(flags, &options);
  if (!comparison.ok()) {
    // 1 says that tensors differ, which nobody knows here.
    const int code = Fail(comparison.status());
    return code == kExitJobFailed ? static_cast<int>(kExitUsage) : code;
  }
  Print(flags.output == "json" ? ComparisonJson(flags.path, flags.other, *comparison)
                               : ComparisonReport(flags.path, flags.other, *comparison, options,
                                                  TableWidth(StyleOf(1))));
  return comparison->equal() ? kExitOk : kExitJobFailed;
}

}  // namespace

void AddCheckpoint(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<CheckpointFlags>();
  FlagSet checkpoint = root.Command(
      "checkpoint",
      "Looks at checkpoints and tensor files: lists, verifies, converts, compares\n\n"
      "Reads meshrun's checkpoints, safetensors files (also a directory of them with its index),\n"
      "files of torch.save(), directories of torch.distributed.checkpoint, and .mdlus files.\n"
      "Files are read in place: they may be larger than memory (docs/checkpoints.md).");
  checkpoint.Examples(
      "  meshrun checkpoint ls ckpt                      which checkpoints there are\n"
      "  meshrun checkpoint ls ckpt/step-500             its tensors\n"
      "  meshrun checkpoint verify ckpt\n"
      "  meshrun checkpoint convert model.pt model.safetensors\n"
      "  meshrun checkpoint diff ckpt/step-500 ckpt/step-600");
  checkpoint.ListUnder("Checkpoints");
  FlagSet list = checkpoint.Command(
      "ls",
      "Lists the checkpoints of a directory, or the tensors of a checkpoint or file\n\n"
      "A checkpoint is complete if its manifest names files that are there and have their length.\n"
      "'meshrun checkpoint verify' reads them.");
  FlagSet verify = checkpoint.Command(
      "verify",
      "Reads everything, and compares it with its hashes\n\n"
      "Every damaged place is named, by file, tensor and bytes. Exits 1 if there is one, and if a\n"
      "step-N lacks its manifest.json or a file. Formats without hashes are read as a whole.");
  verify.Number("--jobs", &values->jobs, "Threads that read (default: one for each core, up to 8)",
                1, kMostJobs);
  FlagSet convert = checkpoint.Command(
      "convert",
      "Writes tensors of any readable format into one safetensors file\n\n"
      "Dtypes, shapes and bytes stay as they are; a complex128 tensor becomes an F64 tensor with "
      "a\n"
      "last dimension of 2. Of a checkpoint it takes the model, under its plain names, and reads\n"
      "no other file. The file appears when it is whole and on the disk.");
  convert.Switch("--all", &values->all,
                 "Take a checkpoint's optimizer/ too, and kept/, what the program kept");
  convert.Switch("--force", &values->force, "Replace TO if it is there");
  FlagSet diff = checkpoint.Command(
      "diff",
      "Compares the tensors of two checkpoints or files\n\n"
      "Exits 0 if they are equal, 1 if they differ, and 2 if they cannot be compared. Without\n"
      "--rtol and --atol every bit counts. With one of them an element may differ from B's by\n"
      "atol + rtol * |B|. A NaN is only equal to one of the same bits.");
  diff.Examples(
      "  meshrun checkpoint diff ckpt/step-500 exported.safetensors\n"
      "  meshrun checkpoint diff a.safetensors b.safetensors --rtol 1e-5 --atol 1e-8");
  diff.Text("--rtol", &values->rtol, "X", "Relative tolerance (default 0)");
  diff.Text("--atol", &values->atol, "X", "Absolute tolerance (default 0)");
  for (FlagSet* command : {&list, &verify, &convert, &diff}) command->ListUnder("Commands");
  for (FlagSet* command : {&list, &verify}) {
    command->Argument("PATH", &values->path, /*required=*/true,
                      "A directory of checkpoints, a checkpoint, or a tensor file");
  }
  convert.Argument("FROM", &values->path, /*required=*/true, "A checkpoint or a tensor file");
  convert.Argument("TO", &values->other, /*required=*/true, "The safetensors file to write");
  diff.Argument("A", &values->path, /*required=*/true, "A checkpoint or a tensor file");
  diff.Argument("B", &values->other, /*required=*/true, "Another one: the reference");
  for (FlagSet* command : {&list, &verify, &convert, &diff}) {
    AddOutputFlag(*command, &values->output);
  }
  commands->push_back({list.app(), [values] { return List(*values); }});
  commands->push_back({verify.app(), [values] { return Verify(*values); }});
  commands->push_back({convert.app(), [values] { return Convert(*values); }});
  commands->push_back({diff.app(), [values] { return Diff(*values); }});
}

}  // namespace meshrun::client
