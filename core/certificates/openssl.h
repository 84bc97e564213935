// OpenSSL's objects, owned, and its errors. For the sources of this folder alone.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string_view>

namespace meshrun::certificates {

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Bio = std::unique_ptr<BIO, Freed<BIO_free_all>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using X509Ptr = std::unique_ptr<X509, Freed<X509_free>>;

// Null where there is none.
X509Ptr ParseCertificate(std::string_view pem);
Key ParseKey(std::string_view pem);

}  // namespace meshrun::certificates
