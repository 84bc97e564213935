#include "parallel/checkpoint/manifest.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/hash.h"
#include "core/utf8.h"

namespace meshrun {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr char kFormat[] = "meshrun-checkpoint";
constexpr int kVersion = 1;
// Before the hexadecimal form of a text that is not UTF-8: a flag's value may hold any bytes, JSON
// may not. A text that begins so itself has that form too.
constexpr char kBytes[] = "meshrun-bytes:";

using Bytes = std::map<std::string, std::string>;

ordered_json to_hex(const Bytes& values) {
  ordered_json coded = ordered_json::object();
  for (const auto& [name, bytes] : values) coded[name] = HexEncode(bytes);
  return coded;
}

// JSON has neither infinities nor NaN: they are words.
ordered_json encode_options(const std::map<std::string, double>& options) {
  ordered_json coded = ordered_json::object();
  for (const auto& [name, value] : options) {
    if (std::isfinite(value)) {
      coded[name] = value;
    } else if (std::isnan(value)) {
      coded[name] = "nan";
    } else {
      coded[name] = value > 0 ? "inf" : "-inf";
    }
  }
  return coded;
}

// Raises std::invalid_argument.
double decode_option(const json& value) {
  // Earlier versions wrote null for all three.
  if (value.is_null() || value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  if (value.is_string()) throw std::invalid_argument(value.dump() + " is not a number");
  return value.get<double>();
}

Bytes from_hex(const json& coded) {
  Bytes values;
  for (const auto& [name, text] : coded.items()) {
    values[name] = bytes_from_hex(text.get<std::string>());
  }
  return values;
}

}  // namespace

std::string bytes_from_hex(const std::string& text) {
  const auto digit = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    throw std::invalid_argument("bytes are not hexadecimal");
  };
  if (text.size() % 2 != 0) throw std::invalid_argument("hexadecimal bytes are cut short");
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 2) {
    bytes.push_back(static_cast<char>(digit(text[i]) * 16 + digit(text[i + 1])));
  }
  return bytes;
}

namespace {

std::string encode_text(const std::string& text) {
  return IsUtf8(text) && !text.starts_with(kBytes) ? text : kBytes + HexEncode(text);
}

std::string decode_text(const std::string& text) {
  return text.starts_with(kBytes) ? bytes_from_hex(text.substr(sizeof(kBytes) - 1)) : text;
}

std::map<std::string, std::string> each_text(std::string (*convert)(const std::string&),
                                             const std::map<std::string, std::string>& texts) {
  std::map<std::string, std::string> converted;
  for (const auto& [key, value] : texts) converted[convert(key)] = convert(value);
  return converted;
}

}  // namespace

std::string encode_manifest(const Manifest& manifest) {
  ordered_json files = ordered_json::object();
  for (const auto& [name, file] : manifest.files) {
    files[name] = {{"bytes", file.bytes}, {"sha256", file.sha256}};
  }
  ordered_json content = {{"format", kFormat},
                          {"version", kVersion},
                          {"sequence", manifest.sequence},
                          {"step", manifest.step},
                          {"identity", each_text(encode_text, manifest.identity)},
                          {"sampler", each_text(encode_text, manifest.sampler)},
                          {"random_generators", to_hex(manifest.random_generators)},
                          {"optimizer", manifest.optimizer},
                          {"optimizer_options", ordered_json::array()},
                          {"files", files}};
  for (const auto& options : manifest.optimizer_options) {
    content["optimizer_options"].push_back(encode_options(options));
  }
  if (!manifest.kept_values.empty()) content["kept_values"] = to_hex(manifest.kept_values);
  for (const Bytes& states : manifest.random_generators_by_rank) {
    content["random_generators_by_rank"].push_back(to_hex(states));
  }
  return content.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

Manifest decode_manifest(const std::string& path, const std::string& content) try {
  const json parsed = json::parse(content);
  const auto version = parsed.at("version").get<int>();
  if (parsed.at("format") != kFormat || version != kVersion) {
    throw DamagedCheckpoint(path + " has format " + parsed.at("format").dump() + " version " +
                            std::to_string(version) + "; this program reads \"" + kFormat +
                            "\" version " + std::to_string(kVersion));
  }
  Manifest manifest;
  parsed.at("sequence").get_to(manifest.sequence);
  parsed.at("step").get_to(manifest.step);
  using Texts = std::map<std::string, std::string>;
  manifest.identity = each_text(decode_text, parsed.at("identity").get<Texts>());
  manifest.sampler = each_text(decode_text, parsed.at("sampler").get<Texts>());
  parsed.at("optimizer").get_to(manifest.optimizer);
  manifest.random_generators = from_hex(parsed.at("random_generators"));
  // What follows is absent in checkpoints of earlier versions.
  for (const json& states : parsed.value("random_generators_by_rank", json::array())) {
    manifest.random_generators_by_rank.push_back(from_hex(states));
  }
  for (const json& group : parsed.value("optimizer_options", json::array())) {
    auto& options = manifest.optimizer_options.emplace_back();
    for (const auto& [name, value] : group.items()) options[name] = decode_option(value);
  }
  manifest.kept_values = from_hex(parsed.value("kept_values", json::object()));
  for (const auto& [name, file] : parsed.at("files").items()) {
    manifest.files[name] = {file.at("bytes").get<uint64_t>(), file.at("sha256").get<std::string>()};
  }
  return manifest;
} catch (const json::exception& error) {
  throw DamagedCheckpoint(path + " is damaged: " + error.what());
} catch (const std::invalid_argument& error) {
  throw DamagedCheckpoint(path + " is damaged: " + error.what());
}

}  // namespace meshrun
