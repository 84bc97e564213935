// Bagua's communication surface, all of it: what bagua.torch_api.communication offers.
//
//   meshrun::bagua::init_process_group();
//   meshrun::bagua::allreduce_inplace(gradient, meshrun::bagua::ReduceOp::AVG);
//
// Contracts are in the headers below; Bagua's training algorithms are not here.
#pragma once

#include "parallel/bagua/broadcast_object.h"
#include "parallel/bagua/collectives.h"
#include "parallel/bagua/communicator.h"
#include "parallel/bagua/hierarchical.h"
#include "parallel/bagua/process_group.h"
#include "parallel/bagua/reduce_op.h"
