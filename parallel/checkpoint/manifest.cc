#include "parallel/checkpoint/manifest.h"

#include <nlohmann/json.hpp>

#include "core/hash.h"

namespace meshrun {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr char kFormat[] = "meshrun-checkpoint";
constexpr int kVersion = 1;

std::string from_hex(const std::string& text) {
  const auto digit = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    throw std::invalid_argument("a random generator's state is not hexadecimal");
  };
  if (text.size() % 2 != 0) throw std::invalid_argument("a random generator's state is cut short");
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 2) {
    bytes.push_back(static_cast<char>(digit(text[i]) * 16 + digit(text[i + 1])));
  }
  return bytes;
}

}  // namespace

std::string encode_manifest(const Manifest& manifest) {
  ordered_json generators = ordered_json::object();
  for (const auto& [device, state] : manifest.random_generators) {
    generators[device] = HexEncode(state);
  }
  ordered_json files = ordered_json::object();
  for (const auto& [name, file] : manifest.files) {
    files[name] = {{"bytes", file.bytes}, {"sha256", file.sha256}};
  }
  const ordered_json content = {{"format", kFormat},
                                {"version", kVersion},
                                {"sequence", manifest.sequence},
                                {"step", manifest.step},
                                {"identity", manifest.identity},
                                {"sampler", manifest.sampler},
                                {"random_generators", generators},
                                {"optimizer", manifest.optimizer},
                                {"files", files}};
  // A flag's value may hold any bytes; JSON may not.
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
  parsed.at("identity").get_to(manifest.identity);
  parsed.at("sampler").get_to(manifest.sampler);
  parsed.at("optimizer").get_to(manifest.optimizer);
  for (const auto& [device, state] : parsed.at("random_generators").items()) {
    manifest.random_generators[device] = from_hex(state.get<std::string>());
  }
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
