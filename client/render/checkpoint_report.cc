#include "client/render/checkpoint_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>

#include "client/render/style.h"
#include "client/render/table.h"
#include "core/text.h"
#include "core/utf8.h"

namespace meshrun::client {
namespace {

constexpr size_t kMostNotes = 20;
constexpr size_t kTextWidth = 100;

std::string WrittenAt(int64_t seconds) { return AbsoluteTime(std::chrono::seconds(seconds)); }

std::string Shape(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string State(const CheckpointEntry& checkpoint, bool is_newest) {
  switch (checkpoint.state) {
    case CheckpointEntry::State::kComplete: {
      std::string state = is_newest ? "complete, the newest" : "complete";
      if (checkpoint.files_elsewhere > 0) {
        state += fmt::format("; {} on other hosts", Count(checkpoint.files_elsewhere, "file"));
      }
      return state;
    }
    case CheckpointEntry::State::kUnfinished:
      return "not complete: " + EscapeControls(checkpoint.problem);
    case CheckpointEntry::State::kDamaged:
      return "damaged: " + EscapeControls(checkpoint.problem);
  }
  return "";
}

std::string Texts(std::string_view title, const std::map<std::string, std::string>& texts) {
  std::string out;
  size_t shown = 0;
  for (const auto& [name, value] : texts) {
    if (++shown > kMostNotes) {
      out += fmt::format("{} {} more: -o json has them\n", title, texts.size() - kMostNotes);
      break;
    }
    out += fmt::format("{} {}: {}\n", title, EscapeControls(name),
                       OneLine(EscapeBytes(value), kTextWidth));
  }
  return out;
}

std::string ManifestLines(const Manifest& manifest) {
  std::string out =
      fmt::format("step {}, optimizer {}", manifest.step,
                  manifest.optimizer.empty() ? "-" : EscapeControls(manifest.optimizer));
  if (manifest.written != 0) out += ", written " + WrittenAt(manifest.written);
  out += '\n' + Texts("identity", manifest.identity);
  if (!manifest.hosts.empty()) {
    out += EscapeControls(fmt::format("written by {}", fmt::join(manifest.hosts, ", "))) + "\n";
  }
  return out;
}

}  // namespace

std::string CheckpointTable(const std::vector<CheckpointEntry>& checkpoints, int width) {
  const CheckpointEntry* newest = nullptr;
  for (const CheckpointEntry& each : checkpoints) {
    if (each.state == CheckpointEntry::State::kComplete) newest = &each;
  }
  Table table({">STEP", "NAME", "~WRITTEN", ">BYTES", ">~FILES", "STATE"});
  for (const CheckpointEntry& each : checkpoints) {
    table.Add({std::to_string(each.step), EscapeControls(each.name), WrittenAt(each.written),
               FormatBytes(each.bytes), std::to_string(each.files), State(each, &each == newest)});
  }
  return table.Render(0, width);
}

std::string TensorReport(const std::string& path, const TensorListing& listing, int width) {
  std::string out =
      fmt::format("{}  {}, {}, {}, {}\n", EscapeControls(path), listing.format,
                  Count(listing.tensors.size(), "tensor"), Count(listing.total_elements, "element"),
                  FormatBytes(listing.total_bytes));
  out += listing.manifest ? ManifestLines(*listing.manifest) : Texts("note", listing.notes);
  Table table({"TENSOR", "DTYPE", "SHAPE", ">BYTES"});
  for (const auto& [name, tensor] : listing.tensors) {
    table.Add({EscapeControls(name), tensor.dtype, Shape(tensor.shape),
               std::to_string(listing.bytes.at(name))});
  }
  return table.empty() ? out : out + table.Render(0, width);
}

std::string VerificationReport(const std::string& path, const Verification& verification) {
  std::string out;
  for (const Damage& damage : verification.damages) out += EscapeControls(damage.message) + "\n";
  if (verification.more_damages > 0) {
    out += fmt::format("and {} more damaged places\n", verification.more_damages);
  }
  for (const std::string& each : verification.unfinished) {
    out += fmt::format("{} is of a save under way, or left by a crash: it was not read\n",
                       EscapeControls(each));
  }
  for (const std::string& each : verification.parts) {
    out += fmt::format("{} has files on other hosts, which were not read\n", EscapeControls(each));
  }
  const uint64_t damaged = verification.damages.size() + verification.more_damages;
  const bool has_hashes = !verification.files.empty() && !verification.files[0].hash.empty();
  out += fmt::format("{}  {}, {}: ", EscapeControls(path), Count(verification.files.size(), "file"),
                     FormatBytes(verification.bytes));
  if (damaged > 0) return out + fmt::format("{}\n", Count(damaged, "damaged place"));
  if (!has_hashes) return out + "all tensors are readable; the format has no hashes to compare\n";
  return out + "every byte has the hash that it was written with\n";
}

std::string ConversionReport(const std::string& to, const Conversion& conversion) {
  std::string out =
      fmt::format("{}  {}, {}, from {}\n", EscapeControls(to), Count(conversion.tensors, "tensor"),
                  FormatBytes(conversion.bytes), conversion.format);
  if (!conversion.left_out.empty()) {
    out += EscapeControls(fmt::format("  not read: {}: --all takes their tensors too",
                                      fmt::join(conversion.left_out, ", "))) +
           "\n";
  }
  return out;
}

std::string ComparisonReport(const std::string& a, const std::string& b,
                             const Comparison& comparison, const CompareOptions& options,
                             int width) {
  std::string out;
  for (const std::string& name : comparison.only_in_a) {
    out += EscapeControls(fmt::format("only in {}: {}", a, name)) + "\n";
  }
  for (const std::string& name : comparison.only_in_b) {
    out += EscapeControls(fmt::format("only in {}: {}", b, name)) + "\n";
  }
  Table table({"TENSOR", "DTYPE", "SHAPE", ">DIFFERENT", ">ELEMENTS", ">NOT NEAR", ">NAN",
               ">LARGEST", ">RELATIVE L2"});
  for (const TensorDifference& each : comparison.different) {
    if (!each.comparable) {
      out += fmt::format("{} is {} in {}, and {} in {}\n", EscapeControls(each.name),
                         DescribeTensor(each.a), EscapeControls(a), DescribeTensor(each.b),
                         EscapeControls(b));
      continue;
    }
    table.Add({EscapeControls(each.name), each.a.dtype, Shape(each.a.shape),
               std::to_string(each.differing), std::to_string(each.elements),
               options.tolerance ? std::to_string(each.outside) : "",
               each.nans > 0 ? std::to_string(each.nans) : "", fmt::format("{:.3g}", each.largest),
               fmt::format("{:.3g}", each.relative_norm)});
  }
  if (!table.empty()) out += table.Render(0, width);
  if (!comparison.left_out.empty()) {
    out += EscapeControls(fmt::format("not compared: {}: the other has nothing of the kind",
                                      fmt::join(comparison.left_out, ", "))) +
           "\n";
  }
  out += fmt::format("{} bit-equal, {} different, {} only in one\n",
                     Count(comparison.bit_equal, "tensor"), comparison.different.size(),
                     comparison.only_in_a.size() + comparison.only_in_b.size());
  if (comparison.equal() && !comparison.different.empty()) {
    out += "all differences are within --rtol and --atol\n";
  }
  return out;
}

}  // namespace meshrun::client
