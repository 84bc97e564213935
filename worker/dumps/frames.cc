#include "worker/dumps/frames.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <memory>
#include <optional>

#include "core/parse_integer.h"

namespace meshrun::worker {
namespace {

constexpr auto kNone = std::string_view::npos;

// Calls `on_line` with each line, without its newline.
template <typename OnLine>
void EachLine(std::string_view text, const OnLine& on_line) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    on_line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

std::string_view WithoutBlanks(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ') || text.ends_with('\r')) text.remove_suffix(1);
  return text;
}

int Number(std::string_view digits) {
  const size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  return ParseInteger<int>(std::string(digits.substr(0, end))).value_or(0);
}

// "file:12" or "file:12:5".
void SetPlace(std::string_view place, Frame* frame) {
  const auto cut = [&place]() -> std::optional<int> {
    const size_t colon = place.rfind(':');
    if (colon == kNone || colon + 1 == place.size() ||
        place.find_first_not_of("0123456789", colon + 1) != kNone) {
      return std::nullopt;
    }
    const int number = Number(place.substr(colon + 1));
    place = place.substr(0, colon);
    return number;
  };
  const auto last = cut();
  if (!last) return;
  frame->line = cut().value_or(*last);
  frame->file = place;
}

// "#3  0x... in name(int) (arguments) at file:12": without number and address.
std::string_view AfterAddress(std::string_view line) {
  line = WithoutBlanks(line.substr(std::min(line.find(' '), line.size())));
  if (line.starts_with("0x"))
    line = WithoutBlanks(line.substr(std::min(line.find(' '), line.size())));
  if (line.starts_with("in ")) line.remove_prefix(3);
  return line;
}

// Where the blank before gdb's list of arguments stands: the first one outside of brackets that a
// parenthesis follows.
size_t EndOfName(std::string_view text) {
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (depth == 0 && c == ' ' && i + 1 < text.size() && text[i + 1] == '(') return i;
    if (c == '(' || c == '<') ++depth;
    if ((c == ')' || c == '>') && depth > 0) --depth;
  }
  return text.size();
}

bool IsFrame(std::string_view line) {
  return line.size() > 1 && line[0] == '#' && std::isdigit(static_cast<unsigned char>(line[1]));
}

std::string_view BaseName(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == kNone ? path : path.substr(slash + 1);
}

bool IsOwn(const Frame& frame) {
  const std::string_view file = frame.file;
  if (file.empty() || file.starts_with('<')) return false;
  if (file.starts_with("/usr/") || file.starts_with("../sysdeps/")) return false;
  // glibc's own, as its debug information names them.
  for (const char* part : {"./nptl/", "./misc/", "./io/", "./socket/", "./time/", "./signal/",
                           "./posix/", "./libio/", "./stdlib/", "./elf/", "../csu/"}) {
    if (file.starts_with(part)) return false;
  }
  return file.find("/lib/python") == kNone && file.find("/site-packages/") == kNone &&
         file.find("/dist-packages/") == kNone;
}

std::string Name(const Frame& frame) {
  return frame.file.empty()
             ? frame.function
             : fmt::format("{} ({}:{})", frame.function, BaseName(frame.file), frame.line);
}

bool ContainsLower(std::string_view text, std::string_view part) {
  const auto equal = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == b;
  };
  return std::search(text.begin(), text.end(), part.begin(), part.end(), equal) != text.end();
}

// "_ZN3foo3barEv.cold" is "foo::bar() [clone .cold]", as gdb names it.
std::string CppName(const std::string& symbol) {
  const size_t dot = std::min(symbol.find('.'), symbol.size());
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(symbol.substr(0, dot).c_str(), nullptr, nullptr, &status), &std::free);
  if (status != 0 || name == nullptr) return symbol;
  return dot == symbol.size() ? name.get()
                              : fmt::format("{} [clone {}]", name.get(), symbol.substr(dot));
}

bool IsOfSymbol(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '$';
}

std::string WithCppNames(std::string_view line) {
  std::string out;
  while (!line.empty()) {
    const bool begins = line.starts_with("_Z") && (out.empty() || !IsOfSymbol(out.back()));
    size_t end = 1;
    while (begins && end < line.size() && IsOfSymbol(line[end])) ++end;
    const std::string part(line.substr(0, end));
    out += begins ? CppName(part) : part;
    line.remove_prefix(end);
  }
  return out;
}

constexpr std::string_view kGdbsNotes[] = {"[New LWP ", "[Thread debugging using ",
                                           "Using host libthread_db ",
                                           "add symbol table from file "};

}  // namespace

std::string TidyGdb(std::string_view text) {
  std::string out;
  bool in_traceback = false;
  EachLine(text, [&](std::string_view line) {
    if (line.starts_with("Traceback (most recent call last)")) {
      in_traceback = true;
      return;
    }
    // Its last line, the exception, stands at the left.
    if (in_traceback) {
      in_traceback = line.starts_with(' ');
      return;
    }
    for (const std::string_view note : kGdbsNotes) {
      if (line.starts_with(note)) return;
    }
    out += WithCppNames(line) + "\n";
  });
  return out;
}

std::vector<Frame> FramesOfPySpy(std::string_view text, int id) {
  std::vector<Frame> frames;
  bool wanted = false;
  EachLine(text, [&](std::string_view line) {
    if (line.starts_with("Thread ")) {
      wanted = Number(line.substr(7)) == id;
      return;
    }
    const size_t open = line.find(" (", 4);
    if (!wanted || !line.starts_with("    ") || open == kNone || !line.ends_with(')')) return;
    Frame& frame = frames.emplace_back();
    frame.function = WithoutBlanks(line.substr(0, open));
    SetPlace(line.substr(open + 2, line.size() - open - 3), &frame);
  });
  return frames;
}

std::vector<Frame> FramesOfFaulthandler(std::string_view text) {
  std::vector<Frame> frames;
  bool wanted = false;
  EachLine(text, [&](std::string_view line) {
    if (line.ends_with("(most recent call first):")) {
      wanted = line.starts_with("Current thread") || line.starts_with("Stack");
      return;
    }
    constexpr std::string_view kFile = "  File \"";
    constexpr std::string_view kLine = "\", line ";
    const size_t line_at = line.rfind(kLine);
    if (!wanted || !line.starts_with(kFile) || line_at == kNone) return;
    Frame& frame = frames.emplace_back();
    frame.file = line.substr(kFile.size(), line_at - kFile.size());
    const std::string_view rest = line.substr(line_at + kLine.size());
    frame.line = Number(rest);
    const size_t in = rest.find(" in ");
    frame.function = in == kNone ? "?" : rest.substr(in + 4);
  });
  return frames;
}

std::vector<Frame> FramesOfEuStack(std::string_view text, int id) {
  std::vector<Frame> frames;
  bool wanted = false;
  EachLine(text, [&](std::string_view line) {
    if (line.starts_with("TID ")) {
      wanted = Number(line.substr(4)) == id;
    } else if (wanted && IsFrame(line)) {
      std::string_view function = AfterAddress(line);
      // gdb names it without them.
      if (function.ends_with("()") && !function.ends_with("operator()")) function.remove_suffix(2);
      frames.emplace_back().function = function;
    } else if (wanted && line.starts_with("    ") && !frames.empty()) {
      SetPlace(WithoutBlanks(line), &frames.back());
    }
  });
  return frames;
}

std::vector<Frame> FramesOfGdb(std::string_view text, int id) {
  std::vector<Frame> frames;
  bool wanted = false;
  EachLine(text, [&](std::string_view line) {
    if (line.starts_with("Thread ")) {
      constexpr std::string_view kLwp = "(LWP ";
      const size_t lwp = line.find(kLwp);
      // A program without threads has "process N" there.
      const size_t process = line.find("(process ");
      wanted = lwp != kNone ? Number(line.substr(lwp + kLwp.size())) == id : process != kNone;
      return;
    }
    if (!wanted || !IsFrame(line)) return;
    const std::string_view rest = AfterAddress(line);
    const size_t name = EndOfName(rest);
    Frame& frame = frames.emplace_back();
    frame.function = rest.substr(0, name);
    const size_t at = rest.rfind(" at ");
    if (at != kNone && at >= name) SetPlace(rest.substr(at + 4), &frame);
  });
  return frames;
}

std::string PlaceOf(const std::vector<Frame>& frames) {
  if (frames.empty()) return "";
  const auto own = std::find_if(frames.begin(), frames.end(), IsOwn);
  if (own == frames.end() || own == frames.begin()) return Name(frames.front());
  return fmt::format("{}, in {}", Name(*own), Name(frames.front()));
}

std::string TracingAdvice(std::string_view output, std::string_view ptrace_scope) {
  if (!ContainsLower(output, "operation not permitted") &&
      !ContainsLower(output, "permission denied")) {
    return "";
  }
  const std::string_view scope = WithoutBlanks(ptrace_scope.substr(0, ptrace_scope.find('\n')));
  if (scope == "1") {
    return "kernel.yama.ptrace_scope is 1, so that a process may be traced by its ancestors alone, "
           "and by the worker that has started its rank: 'sysctl kernel.yama.ptrace_scope=0' on "
           "this host allows it, or a worker that runs as root";
  }
  if (scope == "2") {
    return "kernel.yama.ptrace_scope is 2, so that only root may trace: 'sysctl "
           "kernel.yama.ptrace_scope=0' on this host allows it, or a worker that runs as root";
  }
  if (scope == "3") {
    return "kernel.yama.ptrace_scope is 3, so that nobody may trace until this host starts with "
           "another value";
  }
  return "the worker may not trace the rank: it needs the capability CAP_SYS_PTRACE (for a "
         "container '--cap-add SYS_PTRACE'), or to run as the rank's user or as root";
}

}  // namespace meshrun::worker
