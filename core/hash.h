#pragma once

#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace meshrun {

// SHA-256 of bytes that come piece by piece.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(const Sha256Stream&) = delete;
  Sha256Stream& operator=(const Sha256Stream&) = delete;

  void Add(std::string_view data);
  // 32 raw bytes; once.
  std::string Finish();

 private:
  evp_md_ctx_st* const context_;
};

// 32 raw bytes.
std::string Sha256(std::string_view data);
std::string HexEncode(std::string_view bytes);

}  // namespace meshrun
