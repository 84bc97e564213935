#include "core/checkpoint/manifest.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/checkpoint/json_fields.h"
#include "core/hash.h"
#include "core/status.h"
#include "core/utf8.h"

namespace meshrun {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr char kFormat[] = "meshrun-checkpoint";
constexpr int64_t kHashedAsAWhole = 1;
constexpr int64_t kHashedInChunks = 2;
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
// A chunk is read into memory as a whole.
constexpr uint64_t kMostChunkBytes = uint64_t{1} << 30;
// Before the hexadecimal form of a text that is not UTF-8: a flag's value may hold any bytes, JSON
// may not. A text that begins so itself has that form too.
constexpr char kBytes[] = "meshrun-bytes:";

using Bytes = std::map<std::string, std::string>;

std::string EncodeText(const std::string& text) {
  return IsUtf8(text) && !text.starts_with(kBytes) ? text : kBytes + HexEncode(text);
}

Bytes EncodeTexts(const Bytes& texts) {
  Bytes encoded;
  for (const auto& [key, value] : texts) encoded[EncodeText(key)] = EncodeText(value);
  return encoded;
}

ordered_json EncodeBytes(const Bytes& values) {
  ordered_json encoded = ordered_json::object();
  for (const auto& [name, bytes] : values) encoded[name] = HexEncode(bytes);
  return encoded;
}

// JSON has neither infinities nor NaN: they are words.
ordered_json EncodeOptions(const std::map<std::string, double>& options) {
  ordered_json encoded = ordered_json::object();
  for (const auto& [name, value] : options) {
    if (std::isfinite(value)) {
      encoded[name] = value;
    } else if (std::isnan(value)) {
      encoded[name] = "nan";
    } else {
      encoded[name] = value > 0 ? "inf" : "-inf";
    }
  }
  return encoded;
}

ordered_json EncodeFile(const Manifest::File& file, int64_t version) {
  ordered_json encoded = {{"bytes", file.bytes}};
  if (version == kHashedAsAWhole) {
    encoded["sha256"] = file.sha256;
  } else {
    ordered_json& chunks = encoded["chunks"] = ordered_json::array();
    for (const Manifest::Chunk& chunk : file.chunks) {
      chunks.push_back({chunk.end, chunk.hash.Hex()});
    }
  }
  for (const auto& [stored, piece] : file.pieces) {
    encoded["pieces"][stored] = {
        {"tensor", piece.tensor}, {"global_shape", piece.global_shape}, {"begin", piece.begin}};
  }
  return encoded;
}

// One line for each field of an object, and for each file: people read it, and a file may have many
// chunks.
std::string Lines(const ordered_json& object, size_t depth) {
  std::string text = "{";
  for (const auto& [key, value] : object.items()) {
    text += text.size() > 1 ? ",\n" : "\n";
    text += std::string(2 * depth, ' ') + ordered_json(key).dump() + ": ";
    const bool is_files = depth == 1 && key == "files" && !value.empty();
    text += is_files ? Lines(value, depth + 1)
                     : value.dump(-1, ' ', false, json::error_handler_t::replace);
  }
  return text + "\n" + std::string(2 * (depth - 1), ' ') + "}";
}

absl::Status Problem(std::string text) { return absl::DataLossError(std::move(text)); }

// A text from the file may be of any length, and a sentence may not.
std::string Named(std::string_view text) { return std::string(Utf8Prefix(text, 200)); }

// "seed of sampler".
std::string Of(const std::string& field, std::string_view name) {
  return fmt::format("{} of {}", Utf8Prefix(name, 100), field);
}

absl::StatusOr<std::string> DecodeText(const std::string& text) {
  if (!text.starts_with(kBytes)) return text;
  return BytesFromHex(text.substr(sizeof(kBytes) - 1));
}

absl::StatusOr<Bytes> DecodeTexts(const json& parsed, const std::string& field) {
  Bytes texts;
  MESHRUN_ASSIGN_OR_RETURN(const json* encoded, JsonField(parsed, field, JsonKind::kObject));
  for (const auto& [key, value] : encoded->items()) {
    MESHRUN_RETURN_IF_ERROR(CheckJson(Of(field, key), value, JsonKind::kText));
    MESHRUN_ASSIGN_OR_RETURN(std::string name, DecodeText(key));
    MESHRUN_ASSIGN_OR_RETURN(texts[std::move(name)], DecodeText(value.get<std::string>()));
  }
  return texts;
}

absl::StatusOr<Bytes> DecodeBytes(const std::string& field, const json& encoded) {
  Bytes values;
  MESHRUN_RETURN_IF_ERROR(CheckJson(field, encoded, JsonKind::kObject));
  for (const auto& [name, text] : encoded.items()) {
    MESHRUN_RETURN_IF_ERROR(CheckJson(Of(field, name), text, JsonKind::kText));
    auto bytes = BytesFromHex(text.get<std::string>());
    if (!bytes.ok()) return Annotate(bytes.status(), Of(field, name));
    values[name] = *std::move(bytes);
  }
  return values;
}

absl::StatusOr<double> DecodeOption(const std::string& name, const json& value) {
  // Earlier versions wrote null for all three.
  if (value.is_null() || value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  if (!value.is_number()) {
    return Problem(
        fmt::format("{} is {}, not a number", Of("optimizer_options", name), Named(value.dump())));
  }
  return value.get<double>();
}

// A whole number from 0 to `most`. The library itself would convert any number, and bool too.
absl::StatusOr<int64_t> DecodeCount(std::string_view name, const json& value, int64_t most) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(most)) {
    return Problem(
        fmt::format("{} is {}, not a whole number from 0 to {}", name, Named(value.dump()), most));
  }
  return value.get<int64_t>();
}

absl::StatusOr<int64_t> CountIn(const json& object, const std::string& name, int64_t most) {
  MESHRUN_ASSIGN_OR_RETURN(const json* value, JsonField(object, name));
  return DecodeCount(name, *value, most);
}

absl::StatusOr<std::string> TextIn(const json& object, const std::string& name) {
  MESHRUN_ASSIGN_OR_RETURN(const json* value, JsonField(object, name, JsonKind::kText));
  return value->get<std::string>();
}

absl::StatusOr<std::vector<int64_t>> CountsIn(const json& object, const std::string& name) {
  MESHRUN_ASSIGN_OR_RETURN(const json* values, JsonField(object, name, JsonKind::kList));
  std::vector<int64_t> counts;
  for (const json& value : *values) {
    MESHRUN_ASSIGN_OR_RETURN(const int64_t count, DecodeCount(name, value, kMost));
    counts.push_back(count);
  }
  return counts;
}

// Chunks that cover `bytes` without holes.
absl::StatusOr<std::vector<Manifest::Chunk>> DecodeChunks(const json& encoded, uint64_t bytes) {
  std::vector<Manifest::Chunk> chunks;
  uint64_t begin = 0;
  for (const json& each : encoded) {
    if (!each.is_array() || each.size() != 2 || !each[1].is_string()) {
      return Problem("a chunk is not [end, hash]");
    }
    MESHRUN_ASSIGN_OR_RETURN(const int64_t end, DecodeCount("the end of a chunk", each[0], kMost));
    MESHRUN_ASSIGN_OR_RETURN(const std::string hash, BytesFromHex(each[1].get<std::string>()));
    Manifest::Chunk chunk{.end = static_cast<uint64_t>(end), .hash = {}};
    if (chunk.end <= begin || chunk.end > bytes) {
      return Problem(fmt::format("a chunk goes from byte {} to {} of {}", begin, end, bytes));
    }
    if (chunk.end - begin > kMostChunkBytes) {
      return Problem(fmt::format("a chunk has {} bytes, and the format allows {}",
                                 chunk.end - begin, kMostChunkBytes));
    }
    if (hash.size() != 16) return Problem("the hash of a chunk does not have 32 digits");
    for (size_t i = 0; i < 16; ++i) {
      uint64_t& half = i < 8 ? chunk.hash.high : chunk.hash.low;
      half = half << 8 | static_cast<unsigned char>(hash[i]);
    }
    begin = chunk.end;
    chunks.push_back(chunk);
  }
  if (begin == bytes) return chunks;
  return Problem(fmt::format("its chunks cover {} of {} bytes", begin, bytes));
}

absl::StatusOr<Manifest::Piece> DecodePiece(const std::string& stored, const json& encoded) {
  Manifest::Piece piece;
  MESHRUN_RETURN_IF_ERROR(CheckJson("the piece " + stored, encoded, JsonKind::kObject));
  MESHRUN_ASSIGN_OR_RETURN(piece.tensor, TextIn(encoded, "tensor"));
  MESHRUN_ASSIGN_OR_RETURN(piece.global_shape, CountsIn(encoded, "global_shape"));
  MESHRUN_ASSIGN_OR_RETURN(piece.begin, CountsIn(encoded, "begin"));
  bool within = piece.begin.size() == piece.global_shape.size();
  for (size_t i = 0; within && i < piece.begin.size(); ++i) {
    within = piece.begin[i] <= piece.global_shape[i];
  }
  if (within) return piece;
  return Problem("a piece of " + Named(piece.tensor) + " is not in its tensor");
}

// Names of files are joined to the checkpoint's directory.
bool IsBelow(const std::string& name) {
  const std::string parts = "/" + name + "/";
  return parts.find('\0') == parts.npos && parts.find("//") == parts.npos &&
         parts.find("/./") == parts.npos && parts.find("/../") == parts.npos;
}

absl::StatusOr<Manifest::File> DecodeFile(const std::string& name, const json& encoded,
                                          int64_t version) {
  if (!IsBelow(name)) return Problem("its name is not that of a file in the checkpoint");
  MESHRUN_RETURN_IF_ERROR(CheckJson("its entry", encoded, JsonKind::kObject));
  Manifest::File file;
  MESHRUN_ASSIGN_OR_RETURN(file.bytes, CountIn(encoded, "bytes", kMost));
  if (version == kHashedAsAWhole) {
    MESHRUN_ASSIGN_OR_RETURN(file.sha256, TextIn(encoded, "sha256"));
  } else {
    MESHRUN_ASSIGN_OR_RETURN(const json* chunks, JsonField(encoded, "chunks", JsonKind::kList));
    MESHRUN_ASSIGN_OR_RETURN(file.chunks, DecodeChunks(*chunks, file.bytes));
  }
  MESHRUN_ASSIGN_OR_RETURN(const json* pieces,
                           OptionalJsonField(encoded, "pieces", JsonKind::kObject));
  for (const auto& [stored, piece] : pieces->items()) {
    MESHRUN_ASSIGN_OR_RETURN(file.pieces[stored], DecodePiece(stored, piece));
  }
  return file;
}

// What is absent in checkpoints of earlier versions.
absl::Status DecodeLaterFields(const json& parsed, Manifest* manifest) {
  constexpr JsonKind kList = JsonKind::kList;
  const std::string by_rank = "random_generators_by_rank";
  MESHRUN_ASSIGN_OR_RETURN(const json* ranks, OptionalJsonField(parsed, by_rank, kList));
  for (const json& states : *ranks) {
    MESHRUN_ASSIGN_OR_RETURN(manifest->random_generators_by_rank.emplace_back(),
                             DecodeBytes(by_rank, states));
  }
  MESHRUN_ASSIGN_OR_RETURN(const json* groups,
                           OptionalJsonField(parsed, "optimizer_options", kList));
  for (const json& group : *groups) {
    MESHRUN_RETURN_IF_ERROR(CheckJson("an entry of optimizer_options", group, JsonKind::kObject));
    auto& options = manifest->optimizer_options.emplace_back();
    for (const auto& [name, value] : group.items()) {
      MESHRUN_ASSIGN_OR_RETURN(options[name], DecodeOption(name, value));
    }
  }
  MESHRUN_ASSIGN_OR_RETURN(const json* kept,
                           OptionalJsonField(parsed, "kept_values", JsonKind::kObject));
  MESHRUN_ASSIGN_OR_RETURN(manifest->kept_values, DecodeBytes("kept_values", *kept));
  MESHRUN_ASSIGN_OR_RETURN(const json* hosts, OptionalJsonField(parsed, "hosts", kList));
  for (const json& host : *hosts) {
    MESHRUN_RETURN_IF_ERROR(CheckJson("an entry of hosts", host, JsonKind::kText));
    manifest->hosts.push_back(host.get<std::string>());
  }
  return absl::OkStatus();
}

absl::StatusOr<Manifest> Decode(const json& parsed, int64_t version) {
  Manifest manifest;
  // The next checkpoint's is one more.
  MESHRUN_ASSIGN_OR_RETURN(manifest.sequence, CountIn(parsed, "sequence", kMost - 1));
  MESHRUN_ASSIGN_OR_RETURN(manifest.step, CountIn(parsed, "step", kMost));
  if (version == kHashedInChunks) {
    MESHRUN_ASSIGN_OR_RETURN(manifest.save, TextIn(parsed, "save"));
    MESHRUN_ASSIGN_OR_RETURN(manifest.written, CountIn(parsed, "written", kMost));
  }
  MESHRUN_ASSIGN_OR_RETURN(manifest.identity, DecodeTexts(parsed, "identity"));
  MESHRUN_ASSIGN_OR_RETURN(manifest.sampler, DecodeTexts(parsed, "sampler"));
  MESHRUN_ASSIGN_OR_RETURN(manifest.optimizer, TextIn(parsed, "optimizer"));
  MESHRUN_ASSIGN_OR_RETURN(const json* generators, JsonField(parsed, "random_generators"));
  MESHRUN_ASSIGN_OR_RETURN(manifest.random_generators,
                           DecodeBytes("random_generators", *generators));
  MESHRUN_RETURN_IF_ERROR(DecodeLaterFields(parsed, &manifest));
  MESHRUN_ASSIGN_OR_RETURN(const json* files, JsonField(parsed, "files", JsonKind::kObject));
  for (const auto& [name, encoded] : files->items()) {
    auto file = DecodeFile(name, encoded, version);
    if (!file.ok()) return Annotate(file.status(), "file " + Named(name));
    manifest.files[name] = *std::move(file);
  }
  return manifest;
}

absl::StatusOr<Manifest> DecodeAny(const std::string& path, const std::string& content) {
  MESHRUN_ASSIGN_OR_RETURN(const json parsed, ParseJson(content));
  MESHRUN_RETURN_IF_ERROR(CheckJson("it", parsed, JsonKind::kObject));
  MESHRUN_ASSIGN_OR_RETURN(const std::string format, TextIn(parsed, "format"));
  MESHRUN_ASSIGN_OR_RETURN(const int64_t version, CountIn(parsed, "version", kMost));
  if (format == kFormat && (version == kHashedAsAWhole || version == kHashedInChunks)) {
    return Decode(parsed, version);
  }
  return absl::UnimplementedError(
      fmt::format("{} has format \"{}\" version {}; this program reads \"{}\" "
                  "versions {} and {}",
                  path, Named(format), version, kFormat, kHashedAsAWhole, kHashedInChunks));
}

}  // namespace

std::string EncodeManifest(const Manifest& manifest) {
  int64_t version = kHashedInChunks;
  ordered_json files = ordered_json::object();
  for (const auto& [name, file] : manifest.files) {
    if (!file.sha256.empty() && file.chunks.empty()) version = kHashedAsAWhole;
  }
  for (const auto& [name, file] : manifest.files) files[name] = EncodeFile(file, version);
  ordered_json content = {{"format", kFormat},
                          {"version", version},
                          {"sequence", manifest.sequence},
                          {"step", manifest.step}};
  if (version == kHashedInChunks) {
    content["save"] = manifest.save;
    content["written"] = manifest.written;
  }
  content["identity"] = EncodeTexts(manifest.identity);
  content["sampler"] = EncodeTexts(manifest.sampler);
  content["random_generators"] = EncodeBytes(manifest.random_generators);
  for (const Bytes& states : manifest.random_generators_by_rank) {
    content["random_generators_by_rank"].push_back(EncodeBytes(states));
  }
  content["optimizer"] = manifest.optimizer;
  content["optimizer_options"] = ordered_json::array();
  for (const auto& options : manifest.optimizer_options) {
    content["optimizer_options"].push_back(EncodeOptions(options));
  }
  if (!manifest.kept_values.empty()) content["kept_values"] = EncodeBytes(manifest.kept_values);
  content["files"] = files;
  if (!manifest.hosts.empty()) content["hosts"] = manifest.hosts;
  return Lines(content, 1) + "\n";
}

absl::StatusOr<Manifest> DecodeManifest(const std::string& path, const std::string& content) {
  auto manifest = DecodeAny(path, content);
  if (manifest.ok()) return manifest;
  const std::string problem(manifest.status().message());
  if (absl::IsUnimplemented(manifest.status())) return Problem(problem);
  return Problem(fmt::format("{} is damaged: {}", path, Named(problem)));
}

absl::StatusOr<std::string> BytesFromHex(const std::string& text) {
  const auto digit = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  };
  if (text.size() % 2 != 0) return Problem("hexadecimal bytes are cut short");
  std::string bytes;
  bytes.reserve(text.size() / 2);
  for (size_t i = 0; i < text.size(); i += 2) {
    const int high = digit(text[i]);
    const int low = digit(text[i + 1]);
    if (high < 0 || low < 0) return Problem("bytes are not hexadecimal");
    bytes.push_back(static_cast<char>(high * 16 + low));
  }
  return bytes;
}

}  // namespace meshrun
