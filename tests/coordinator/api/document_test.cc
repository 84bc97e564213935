#include "coordinator/api/document.h"

#include <gtest/gtest.h>

#include <cctype>
#include <fstream>
#include <iterator>
#include <map>
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

// What stands between `begin` and one of `ends`, each time in `text`.
std::set<std::string> Between(const std::string& text, const std::string& begin, const char* ends) {
  std::set<std::string> out;
  for (size_t at = text.find(begin); at != std::string::npos; at = text.find(begin, at)) {
    at += begin.size();
    out.insert(text.substr(at, text.find_first_of(ends, at) - at));
  }
  return out;
}

TEST(DocumentTest, ThePageHasEachCallWithItsParameters) {
  std::ifstream page("docs/http_api.md");
  // By "GET /jobs/JOB": its row.
  std::map<std::string, std::string> rows;
  for (std::string line; std::getline(page, line);) {
    const size_t end = line.find("` | ");
    if (!line.starts_with("| `GET /") && !line.starts_with("| `POST /")) continue;
    ASSERT_NE(end, std::string::npos) << line;
    rows[line.substr(3, end - 3)] = line.substr(end);
  }
  for (const Route& route : Routes()) {
    // "/jobs/{job}" is "/jobs/JOB" there.
    std::string call = std::string(route.http) + " ";
    bool is_name = false;
    for (const char c : route.path) {
      if (c == '{') is_name = true;
      if (c == '}') is_name = false;
      if (c == '{' || c == '}') continue;
      call += is_name ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    }
    const auto row = rows.find(call);
    ASSERT_NE(row, rows.end()) << "docs/http_api.md has no row for " << call;
    std::set<std::string> query;
    for (const Parameter& one : route.query) query.emplace(one.name);
    EXPECT_EQ(Between(row->second, "`?", "=`"), query) << call;
    const std::set<std::string> body(route.body.begin(), route.body.end());
    std::set<std::string> named;
    for (const std::string& one : Between(row->second, "\"", "\"")) {
      if (row->second.find("\"" + one + "\": ") != std::string::npos) named.insert(one);
    }
    EXPECT_EQ(named, body) << call;
    rows.erase(row);
  }
  EXPECT_TRUE(rows.empty()) << "docs/http_api.md has a call that there is not: "
                            << rows.begin()->first;
}

// A client that follows the document sends no duration and no number that is refused.
TEST(DocumentTest, RequestsHaveNoNegativeNumbers) {
  const json document = json::parse(Document());
  const auto& paths = document["paths"];
  const auto body_of = [&](const char* path) -> const json& {
    return paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"];
  };
  EXPECT_EQ(body_of("/nodes/{node}/drain")["properties"]["deadline"]["pattern"],
            R"(^[0-9]{1,10}(\.[0-9]{1,9})?s$)");
  EXPECT_EQ(body_of("/jobs/{job}/stacks")["properties"]["ranks"]["items"]["minimum"], 0);
  EXPECT_EQ(body_of("/jobs/{job}/priority")["required"], json::array({"priority"}));
  EXPECT_FALSE(body_of("/jobs/{job}/priority")["properties"]["priority"].contains("minimum"));
  for (const auto& [path, methods] : paths.items()) {
    for (const auto& [method, operation] : methods.items()) {
      if (!operation.contains("parameters")) continue;
      for (const json& one : operation["parameters"]) {
        if (one["schema"].value("type", "") != "integer") continue;
        EXPECT_EQ(one["schema"]["minimum"], 0) << path << " " << one["name"];
      }
    }
  }
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
