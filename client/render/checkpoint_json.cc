#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "client/render/checkpoint_report.h"
#include "core/json/json.h"
#include "core/utf8.h"

namespace meshrun::client {
namespace {

using Json = nlohmann::ordered_json;

std::string Printed(const Json& value) {
  return value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// The form is that of core/json/json.h.
Json Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

Json Texts(const std::map<std::string, std::string>& texts) {
  Json out = Json::object();
  for (const auto& [name, value] : texts) out[EscapeBytes(name)] = EscapeBytes(value);
  return out;
}

Json Names(const std::vector<std::string>& names) {
  Json out = Json::array();
  for (const std::string& name : names) out.push_back(EscapeBytes(name));
  return out;
}

Json WrittenAt(int64_t seconds) { return JsonTime(std::chrono::seconds(seconds)); }

const char* StateName(CheckpointEntry::State state) {
  switch (state) {
    case CheckpointEntry::State::kComplete:
      return "complete";
    case CheckpointEntry::State::kUnfinished:
      return "unfinished";
    case CheckpointEntry::State::kDamaged:
      return "damaged";
  }
  return "";
}

Json ManifestValue(const Manifest& manifest) {
  Json files = Json::object();
  for (const auto& [name, file] : manifest.files) {
    files[EscapeBytes(name)] = {{"bytes", file.bytes},
                                {"hash", file.chunks.empty() ? "SHA-256" : "XXH3-128"}};
  }
  Json out = {{"step", manifest.step}, {"sequence", manifest.sequence}};
  if (manifest.written != 0) out["written"] = WrittenAt(manifest.written);
  out["save"] = EscapeBytes(manifest.save);
  out["optimizer"] = EscapeBytes(manifest.optimizer);
  out["identity"] = Texts(manifest.identity);
  out["files"] = std::move(files);
  out["hosts"] = Names(manifest.hosts);
  return out;
}

Json TensorValue(const TensorInfo& tensor) {
  return {{"dtype", tensor.dtype}, {"shape", tensor.shape}};
}

}  // namespace

std::string CheckpointsJson(const std::string& path,
                            const std::vector<CheckpointEntry>& checkpoints) {
  Json entries = Json::array();
  for (const CheckpointEntry& each : checkpoints) {
    entries.push_back({{"name", EscapeBytes(each.name)},
                       {"step", each.step},
                       {"sequence", each.sequence},
                       {"written", WrittenAt(each.written)},
                       {"bytes", each.bytes},
                       {"files", each.files},
                       {"filesElsewhere", each.files_elsewhere},
                       {"state", StateName(each.state)},
                       {"problem", EscapeBytes(each.problem)}});
  }
  return Printed({{"path", EscapeBytes(path)}, {"checkpoints", std::move(entries)}});
}

std::string TensorsJson(const std::string& path, const TensorListing& listing) {
  Json tensors = Json::array();
  for (const auto& [name, tensor] : listing.tensors) {
    Json value = {{"name", EscapeBytes(name)}};
    value.update(TensorValue(tensor));
    value["bytes"] = listing.bytes.at(name);
    tensors.push_back(std::move(value));
  }
  Json out = {{"path", EscapeBytes(path)},     {"format", listing.format},
              {"bytes", listing.total_bytes},  {"elements", listing.total_elements},
              {"tensors", std::move(tensors)}, {"notes", Texts(listing.notes)}};
  if (listing.manifest) out["manifest"] = ManifestValue(*listing.manifest);
  return Printed(out);
}

std::string VerificationJson(const std::string& path, const Verification& verification) {
  Json files = Json::array();
  for (const VerifiedFile& file : verification.files) {
    files.push_back({{"path", EscapeBytes(file.path)}, {"bytes", file.bytes}, {"hash", file.hash}});
  }
  Json damages = Json::array();
  for (const Damage& damage : verification.damages) {
    damages.push_back({{"file", EscapeBytes(damage.file)},
                       {"begin", damage.begin},
                       {"end", damage.end},
                       {"message", EscapeBytes(damage.message)}});
  }
  return Printed({{"path", EscapeBytes(path)},
                  {"sound", verification.damages.empty()},
                  {"bytes", verification.bytes},
                  {"files", std::move(files)},
                  {"damages", std::move(damages)},
                  {"moreDamages", verification.more_damages},
                  {"unfinished", Names(verification.unfinished)},
                  {"parts", Names(verification.parts)}});
}

std::string ConversionJson(const std::string& from, const std::string& to,
                           const Conversion& conversion) {
  return Printed({{"from", EscapeBytes(from)},
                  {"format", conversion.format},
                  {"to", EscapeBytes(to)},
                  {"tensors", conversion.tensors},
                  {"leftOut", Names(conversion.left_out)},
                  {"bytes", conversion.bytes}});
}

std::string ComparisonJson(const std::string& a, const std::string& b,
                           const Comparison& comparison) {
  Json different = Json::array();
  for (const TensorDifference& each : comparison.different) {
    Json value = {{"name", EscapeBytes(each.name)},
                  {"a", TensorValue(each.a)},
                  {"b", TensorValue(each.b)},
                  {"comparable", each.comparable}};
    if (each.comparable) {
      value["elements"] = each.elements;
      value["differing"] = each.differing;
      value["outside"] = each.outside;
      value["nans"] = each.nans;
      value["largest"] = Number(each.largest);
      value["relativeNorm"] = Number(each.relative_norm);
    }
    different.push_back(std::move(value));
  }
  return Printed({{"a", EscapeBytes(a)},
                  {"b", EscapeBytes(b)},
                  {"equal", comparison.equal()},
                  {"bitEqual", comparison.bit_equal},
                  {"different", std::move(different)},
                  {"onlyInA", Names(comparison.only_in_a)},
                  {"onlyInB", Names(comparison.only_in_b)},
                  {"leftOut", Names(comparison.left_out)}});
}

}  // namespace meshrun::client
