"""Writes the C++ program that runs the examples of a page such as docs/collectives.md: the page's first C++ block stands at its top, each other in a
function that every rank calls."""

import pathlib
import sys

from pages import blocks

page = sys.argv[1]
prelude, *examples = [block for block in blocks(page) if block.language == "cpp"]
print(prelude.text)
print("namespace {")
for number, example in enumerate(examples, 1):
    print(f'void example_{number}([[maybe_unused]] int64_t rank) {{\n#line {example.line + 1} "docs/{pathlib.Path(page).name}"\n{example.text}}}')
print("}  // namespace\n\nint main() {\n  DistributedManager::initialize();\n  const int64_t rank = DistributedManager::get().rank();")
for number, example in enumerate(examples, 1):
    print(f"  example_{number}(rank);")
print(f'  if (rank == 0) std::puts("{len(examples)} examples ran");\n  DistributedManager::cleanup(true);\n}}')
