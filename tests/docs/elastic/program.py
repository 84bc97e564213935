"""Writes the C++ program that runs the blocks of docs/elastic.md: without an argument the page's first C++ block, which is a program itself, and
with N the Nth block after it, as the body of a function that ElasticContext::run() calls."""

import pathlib
import sys

from pages import blocks

MAIN = "int main() {\n"

page = sys.argv[1]
whole, *examples = [block for block in blocks(page) if block.language == "cpp"]
if whole.text.count(MAIN) != 1:
    raise ValueError(f"{page}:{whole.line}: this block has no main()")


def at(line):
    return f'#line {line} "docs/{pathlib.Path(page).name}"\n'


print(at(whole.line + 1) + whole.text.replace(MAIN, "void run_program() {\n"))
print("#include <cstdlib>\n\nnamespace {")
for number, example in enumerate(examples, 1):
    print(f"void example_{number}([[maybe_unused]] ElasticContext& elastic) {{\n{at(example.line + 1)}{example.text}}}")
print("""}  // namespace

int main(int argc, char** argv) {
  const int number = argc > 1 ? std::atoi(argv[1]) : 0;
  if (number == 0) {
    run_program();
    std::puts("the program ran");
    return 0;
  }
  DistributedManager::initialize();
  ElasticContext elastic;
  elastic.run([&] {""")
for number in range(1, len(examples) + 1):
    print(f"    if (number == {number}) example_{number}(elastic);")
print("""  });
  DistributedManager::cleanup(true);
  std::printf("example %d ran\\n", number);
}""")
