#include "parallel/checkpoint/seen_sequences.h"

#include <algorithm>
#include <map>

#include "core/mutex.h"

namespace meshrun::detail {
namespace {

class SeenSequences {
 public:
  static int64_t of(const std::string& path) {
    const MutexLock lock(mu());
    return all()[path];
  }
  static void add(const std::string& path, int64_t sequence) {
    const MutexLock lock(mu());
    all()[path] = std::max(all()[path], sequence);
  }

 private:
  static Mutex& mu() {
    static auto& mu = *new Mutex;
    return mu;
  }
  static std::map<std::string, int64_t>& all() {
    static auto& all = *new std::map<std::string, int64_t>;
    return all;
  }
};

}  // namespace

int64_t seen_sequence(const std::string& path) { return SeenSequences::of(path); }
void note_sequence(const std::string& path, int64_t sequence) {
  SeenSequences::add(path, sequence);
}

}  // namespace meshrun::detail
