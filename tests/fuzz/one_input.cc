// libFuzzer's entry. The first byte chooses the parser; MESHRUN_FUZZ_PARSER names one instead.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tests/fuzz/parsers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto& parsers = meshrun::fuzz::Parsers();
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  static const char* const chosen = std::getenv("MESHRUN_FUZZ_PARSER");
  if (chosen != nullptr) {
    for (const auto& parser : parsers) {
      if (parser.name == chosen) parser.parse(bytes);
    }
  } else if (!bytes.empty()) {
    parsers[static_cast<uint8_t>(bytes[0]) % parsers.size()].parse(bytes.substr(1));
  }
  return 0;
}
