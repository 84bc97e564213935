// The same damaged forms of a text in each run.
#pragma once

#include <cstdint>
#include <random>
#include <string>

namespace meshrun::testing {

// Bytes changed, cut out, doubled, made extreme, and digits replaced.
inline std::string Mutated(std::string text, std::mt19937_64& random) {
  const int changes = 1 + static_cast<int>(random() % 6);
  for (int i = 0; i < changes && !text.empty(); ++i) {
    const size_t at = random() % text.size();
    const size_t length = std::min<size_t>(text.size() - at, random() % 16);
    switch (random() % 6) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(at, length));
        break;
      case 3:
        text[at] = "\x00\x7f\x80\xff[{\"-9"[random() % 9];
        break;
      case 4: {
        const size_t digit = text.find_first_of("0123456789", at);
        if (digit != text.npos) text.replace(digit, 1, std::to_string(random() >> random() % 64));
        break;
      }
      default:
        text.resize(text.size() - length);
    }
  }
  return text;
}

}  // namespace meshrun::testing
