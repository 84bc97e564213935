// Comparing what a stranger shows with a secret.
#pragma once

#include <cstddef>
#include <string_view>

namespace meshrun {

// True when `shown` is `secret`. Takes equally long wherever they differ, so that nobody finds a
// secret byte by byte. It does not hide the secret's length.
inline bool SameSecret(std::string_view shown, std::string_view secret) {
  if (shown.size() != secret.size()) return false;
  // volatile: no loop that ends at the first difference.
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < secret.size(); ++i) {
    difference = static_cast<unsigned char>(difference | (shown[i] ^ secret[i]));
  }
  return difference == 0;
}

}  // namespace meshrun
