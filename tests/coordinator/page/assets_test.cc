#include "coordinator/page/assets.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace meshrun::coordinator {
namespace {

TEST(AssetsTest, TheRootIsTheIndex) {
  const Asset* const root = FindAsset("/");
  ASSERT_NE(root, nullptr);
  EXPECT_EQ(root->content_type, "text/html; charset=utf-8");
  EXPECT_TRUE(root->bytes.starts_with("<!doctype html>"));
  EXPECT_TRUE(root->bytes.ends_with("</html>\n"));
  ASSERT_NE(FindAsset("/index.html"), nullptr);
  EXPECT_EQ(FindAsset("/index.html")->etag, root->etag);
}

TEST(AssetsTest, OnlyFilesOfThePageAreServed) {
  for (const char* path :
       {"", "index.html", "/assets.h", "/../page/index.html", "//", "/BUILD.bazel"}) {
    EXPECT_EQ(FindAsset(path), nullptr) << path;
  }
}

TEST(AssetsTest, AnUnknownEndingIsNothingThatABrowserRuns) {
  EXPECT_EQ(ContentTypeOf("a/app.js"), "text/javascript; charset=utf-8");
  EXPECT_EQ(ContentTypeOf("a/app.exe"), "application/octet-stream");
}

TEST(AssetsTest, ABrowserLoadsNothingFromOtherHosts) {
  const auto headers = PageHeaders();
  const auto policy = std::find_if(headers.begin(), headers.end(), [](const Header& header) {
    return header.first == "Content-Security-Policy";
  });
  ASSERT_NE(policy, headers.end());
  EXPECT_TRUE(policy->second.starts_with("default-src 'self';"));
  EXPECT_EQ(policy->second.find("unsafe"), std::string_view::npos);
}

TEST(AssetsTest, ABrowserThatHasTheFileIsNotSentItAgain) {
  const Asset* const root = FindAsset("/");
  ASSERT_NE(root, nullptr);
  EXPECT_TRUE(Matches(root->etag, root->etag));
  EXPECT_TRUE(Matches("\"other\", " + root->etag, root->etag));
  EXPECT_FALSE(Matches("", root->etag));
  EXPECT_FALSE(Matches("\"other\"", root->etag));
}

}  // namespace
}  // namespace meshrun::coordinator
