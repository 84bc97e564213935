// The fuzzer's parsers without libFuzzer: every seed, and the same mutations of the seeds in each
// run.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <random>

#include "tests/fuzz/parsers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace meshrun::fuzz {
namespace {

constexpr std::chrono::milliseconds kTimePerParser(400);
constexpr int kMostMutations = 3000;

// Bytes flipped, cut out, doubled, made extreme, or put in from elsewhere.
std::string Mutated(std::string text, const std::string& other, std::mt19937_64& random) {
  const int changes = 1 + static_cast<int>(random() % 8);
  for (int i = 0; i < changes; ++i) {
    const size_t at = text.empty() ? 0 : random() % text.size();
    const size_t length = text.empty() ? 0 : std::min<size_t>(text.size() - at, random() % 16);
    switch (random() % 6) {
      case 0:
        if (!text.empty()) text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(at, length));
        break;
      case 3:
        if (!text.empty()) text[at] = "\x00\x7f\x80\xff"[random() % 4];
        break;
      case 4:
        text.insert(at, other.substr(0, random() % (other.size() + 1)));
        break;
      default:
        for (size_t k = 0; k < 10 && at + k < text.size(); ++k) text[at + k] = '\xff';
    }
  }
  return text;
}

void Feed(size_t parser, const std::string& bytes) {
  const std::string input = static_cast<char>(parser) + bytes;
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

TEST(FixedInputsTest, NoParserCrashes) {
  for (size_t i = 0; i < Parsers().size(); ++i) {
    const Parser& parser = Parsers()[i];
    std::mt19937_64 random(i);
    for (const std::string& seed : parser.seeds) Feed(i, seed);
    Feed(i, "");
    // The order is fixed; how far it comes depends on the machine.
    const auto end = std::chrono::steady_clock::now() + kTimePerParser;
    int fed = 0;
    for (; fed < kMostMutations && std::chrono::steady_clock::now() < end; ++fed) {
      const std::string& seed = parser.seeds[random() % parser.seeds.size()];
      Feed(i, Mutated(seed, parser.seeds[random() % parser.seeds.size()], random));
    }
    std::printf("%s: %d inputs\n", parser.name.c_str(), fed);
    EXPECT_GT(fed, 0) << parser.name;
  }
}

}  // namespace
}  // namespace meshrun::fuzz
