// Bagua's communication surface, all of it: what bagua.torch_api.communication offers.
//
//   meshrun::init_process_group();
//   meshrun::allreduce_inplace(gradient, meshrun::ReduceOp::AVG);
//
// Contracts are in the headers below; Bagua's training algorithms are not here.
#pragma once

#include "parallel/comm/communication/broadcast_object.h"
#include "parallel/comm/communication/collectives.h"
#include "parallel/comm/communication/communicator.h"
#include "parallel/comm/communication/hierarchical.h"
#include "parallel/comm/communication/process_group.h"
#include "parallel/comm/communication/reduce_op.h"
