// libFuzzer's entry. The first byte chooses the parser; MESHRUN_FUZZ_PARSER names one instead,
// whose seeds are then written into MESHRUN_FUZZ_CORPUS, a directory, for libFuzzer to begin with.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/fuzz/parsers.h"

namespace {

const meshrun::fuzz::Parser* Chosen() {
  const char* const name = std::getenv("MESHRUN_FUZZ_PARSER");
  for (const auto& parser : meshrun::fuzz::Parsers()) {
    if (name != nullptr && parser.name == name) return &parser;
  }
  return nullptr;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const meshrun::fuzz::Parser* const parser = Chosen();
  const char* const corpus = std::getenv("MESHRUN_FUZZ_CORPUS");
  for (size_t i = 0; parser != nullptr && corpus != nullptr && i < parser->seeds.size(); ++i) {
    std::ofstream out(std::filesystem::path(corpus) / ("seed-" + std::to_string(i)));
    out << parser->seeds[i];
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto& parsers = meshrun::fuzz::Parsers();
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  static const meshrun::fuzz::Parser* const chosen = Chosen();
  if (chosen != nullptr) {
    chosen->parse(bytes);
  } else if (!bytes.empty()) {
    parsers[static_cast<uint8_t>(bytes[0]) % parsers.size()].parse(bytes.substr(1));
  }
  return 0;
}
