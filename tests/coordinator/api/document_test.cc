#include "coordinator/api/document.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "coordinator/api/routes.h"

namespace meshrun::coordinator {
namespace {

using nlohmann::json;

void CheckReferences(const json& value, const json& document) {
  if (value.is_object()) {
    if (const auto found = value.find("$ref"); found != value.end()) {
      const std::string reference = found->get<std::string>();
      ASSERT_TRUE(reference.starts_with("#/"));
      EXPECT_TRUE(document.contains(json::json_pointer(reference.substr(1)))) << reference;
    }
  }
  if (value.is_structured()) {
    for (const json& member : value) CheckReferences(member, document);
  }
}

TEST(DocumentTest, TheOneInDocsIsTheOneThatIsServed) {
  std::ifstream file("docs/api/openapi.json", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_TRUE(text == Document())
      << "docs/api/openapi.json is not what the contracts say: bazel build "
         "//coordinator/api:document_json && cp bazel-bin/coordinator/api/openapi.json docs/api/";
}

TEST(DocumentTest, HasEachRouteOnce) {
  const json document = json::parse(Document());
  size_t operations = 0;
  std::set<std::string> ids;
  for (const auto& [path, methods] : document["paths"].items()) {
    for (const auto& [method, operation] : methods.items()) {
      ++operations;
      ids.insert(operation["operationId"].get<std::string>());
      EXPECT_FALSE(operation["summary"].get<std::string>().empty()) << path;
    }
  }
  EXPECT_EQ(operations, Routes().size());
  EXPECT_EQ(ids.size(), Routes().size());
}

TEST(DocumentTest, EachReferenceLeadsSomewhere) {
  const json document = json::parse(Document());
  CheckReferences(document, document);
}

TEST(DocumentTest, FieldsHaveTheirCommentsAsDescriptions) {
  const json document = json::parse(Document());
  EXPECT_EQ(document["components"]["schemas"]["Job"]["properties"]["submitter"]["description"],
            "Who submitted it: the name in the certificate, or the user of the coordinator's Unix "
            "socket.");
}

}  // namespace
}  // namespace meshrun::coordinator
