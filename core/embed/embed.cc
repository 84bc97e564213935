// embed NAMESPACE FUNCTION PREFIX FILE...: C++ that holds the files, on standard output. PREFIX is
// cut from their paths. A program of the build.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace {

// Bytes on one line of a string literal.
constexpr size_t kLine = 64;

// Octal throughout what a literal cannot hold as it is; all three digits, as a digit may follow.
void PrintLiteral(std::string_view bytes) {
  if (bytes.empty()) std::printf("\"\"");
  for (size_t begin = 0; begin < bytes.size(); begin += kLine) {
    std::printf("\n    \"");
    for (const char c : bytes.substr(begin, kLine)) {
      const bool plain = c >= ' ' && c <= '~' && c != '"' && c != '\\' && c != '?';
      if (plain) {
        std::putchar(c);
      } else {
        std::printf("\\%03o", static_cast<unsigned>(static_cast<unsigned char>(c)));
      }
    }
    std::printf("\"");
  }
}

int Main(const std::vector<std::string>& arguments) {
  if (arguments.size() < 3) {
    std::fprintf(stderr, "embed: write NAMESPACE FUNCTION PREFIX FILE...\n");
    return 2;
  }
  const std::string& prefix = arguments[2];
  std::vector<std::string> paths(arguments.begin() + 3, arguments.end());
  std::sort(paths.begin(), paths.end());
  std::printf("#include <span>\n\n#include \"core/embed/embedded_file.h\"\n\nnamespace %s {\n",
              arguments[0].c_str());
  std::printf("std::span<const meshrun::EmbeddedFile> %s();\n", arguments[1].c_str());
  std::printf("std::span<const meshrun::EmbeddedFile> %s() {\n", arguments[1].c_str());
  for (size_t i = 0; i < paths.size(); ++i) {
    std::ifstream file(paths[i], std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (!file) {
      std::fprintf(stderr, "embed: %s cannot be read\n", paths[i].c_str());
      return 1;
    }
    std::printf("  static constexpr char kBytes%zu[] =", i);
    PrintLiteral(bytes);
    std::printf(";\n");
  }
  // An array has one element at least.
  std::printf("  static constexpr meshrun::EmbeddedFile kFiles[] = {\n");
  for (size_t i = 0; i < paths.size(); ++i) {
    std::string_view path = paths[i];
    if (path.starts_with(prefix)) path.remove_prefix(prefix.size());
    std::printf("      {\"%.*s\", {kBytes%zu, sizeof(kBytes%zu) - 1}},\n",
                static_cast<int>(path.size()), path.data(), i, i);
  }
  std::printf("      {}};\n  return {kFiles, %zu};\n}\n}\n", paths.size());
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return Main({argv + 1, argv + argc}); }
