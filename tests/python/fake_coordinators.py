"""Two coordinators in this process, of which a test says who leads: the other one answers as a standby."""

import concurrent.futures
import contextlib
import time

import grpc
from google.protobuf import any_pb2
from meshrun.v1 import cluster_service_pb2, cluster_service_pb2_grpc, error_pb2, job_pb2, job_service_pb2, job_service_pb2_grpc


class Election:
    """leader: address of the one that leads, or nothing. state: of the one job, "j". cluster: its id."""

    def __init__(self, cluster="ours"):
        self.leader, self.state, self.cluster = "", job_pb2.JOB_STATE_RUNNING, cluster
        self.asked = []

    def admit(self, address, context):
        self.asked.append(address)
        if self.leader == address:
            return
        detail = any_pb2.Any()
        detail.Pack(error_pb2.ErrorDetail(origin=error_pb2.ERROR_ORIGIN_COORDINATOR, standby=True, leader=self.leader))
        said = error_pb2.ErrorStatus(code=14, message="this is a standby", details=[detail])
        context.set_trailing_metadata((("grpc-status-details-bin", said.SerializeToString()),))
        context.abort(grpc.StatusCode.UNAVAILABLE, said.message)


@contextlib.contextmanager
def coordinator(election):
    """Its address."""
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"

    class Cluster(cluster_service_pb2_grpc.ClusterServiceServicer):
        def DescribeCluster(self, request, context):
            election.admit(address, context)
            return cluster_service_pb2.DescribeClusterResponse(version="0", cluster_id=election.cluster)

        def ListNodes(self, request, context):
            election.admit(address, context)
            return cluster_service_pb2.ListNodesResponse()

    class Jobs(job_service_pb2_grpc.JobServiceServicer):
        def WatchJob(self, request, context):
            election.admit(address, context)
            shown = None
            while election.leader == address and shown != job_pb2.JOB_STATE_SUCCEEDED:
                if shown != election.state:
                    shown = election.state
                    yield job_service_pb2.WatchJobResponse(job=job_pb2.Job(job_id="j", state=shown))
                time.sleep(0.01)
            if shown != job_pb2.JOB_STATE_SUCCEEDED:
                election.admit(address, context)

    cluster_service_pb2_grpc.add_ClusterServiceServicer_to_server(Cluster(), server)
    job_service_pb2_grpc.add_JobServiceServicer_to_server(Jobs(), server)
    server.start()
    try:
        yield address
    finally:
        server.stop(0)
