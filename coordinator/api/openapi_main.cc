// openapi_document CONTRACTS: the OpenAPI document on standard output. CONTRACTS is what
// protoc --include_source_info --include_imports writes. A program of the build.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <cstdio>
#include <fstream>

#include "coordinator/api/openapi.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "openapi_document: write the file of the contracts\n");
    return 2;
  }
  google::protobuf::FileDescriptorSet set;
  std::ifstream file(argv[1], std::ios::binary);
  if (!set.ParseFromIstream(&file)) {
    std::fprintf(stderr, "openapi_document: %s cannot be read\n", argv[1]);
    return 1;
  }
  google::protobuf::DescriptorPool pool;
  for (const auto& one : set.file()) {
    if (pool.BuildFile(one) == nullptr) {
      std::fprintf(stderr, "openapi_document: %s is not a contract\n", one.name().c_str());
      return 1;
    }
  }
  std::fputs(meshrun::coordinator::OpenApiDocument(pool).c_str(), stdout);
  return 0;
}
