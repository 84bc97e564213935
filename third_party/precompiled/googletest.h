// What tests include more.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
