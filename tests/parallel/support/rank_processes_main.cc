#include "tests/parallel/support/rank_processes.h"

int main(int argc, char** argv) { return meshrun::run_tests_or_rank(argc, argv); }
