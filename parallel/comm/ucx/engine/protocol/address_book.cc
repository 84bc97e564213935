#include "parallel/comm/ucx/engine/protocol/address_book.h"

#include <cstring>

#include "fmt/format.h"
#include "parallel/comm/ucx/engine/values/tag.h"

namespace meshrun::ucx {
namespace {

// Also says "one of ours"; counts up with the layout.
constexpr uint64_t kMagic = 0x32786375'6e75726d;  // "mrunucx2"

struct Head {
  uint64_t magic;
  uint64_t process;
  uint64_t host;
  int32_t world_rank;
  uint32_t group;
  uint32_t algorithm_version;
  uint32_t checks_headers;
  HeapAddress heap;
};
static_assert(sizeof(Head) == 72);

}  // namespace

std::string serialize(const AddressRecord& record) {
  const Head head{kMagic,       record.process,           record.host,           record.world_rank,
                  record.group, record.algorithm_version, record.checks_headers, record.heap};
  return std::string(reinterpret_cast<const char*>(&head), sizeof(head)) + record.transport_address;
}

std::optional<AddressRecord> parse_address_record(std::string_view bytes) {
  Head head;
  if (bytes.size() < sizeof(head)) return std::nullopt;
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (head.magic != kMagic) return std::nullopt;
  AddressRecord record;
  record.process = head.process;
  record.world_rank = head.world_rank;
  record.group = head.group;
  record.host = head.host;
  record.algorithm_version = head.algorithm_version;
  record.checks_headers = head.checks_headers != 0;
  record.heap = head.heap;
  record.transport_address = bytes.substr(sizeof(head));
  return record;
}

std::string too_many_groups(std::string_view group_name, int rank) {
  return fmt::format(
      "rank {} cannot be a member of group \"{}\": its process has made {} groups, and messages "
      "can "
      "name no more. Use groups again instead of making new ones.",
      rank, group_name, kMaxGroups - 1);
}

}  // namespace meshrun::ucx
