// Every parser that bytes from outside reach: from clients, workers, ranks, files that a rank or a
// person writes, certificates. Each takes any bytes, and may refuse them; none may crash, hang or
// grow.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace meshrun::fuzz {

struct Parser {
  std::string name;
  std::function<void(std::string_view)> parse;
  // Well-formed inputs, from which others are made.
  std::vector<std::string> seeds;
};

const std::vector<Parser>& Parsers();

}  // namespace meshrun::fuzz
