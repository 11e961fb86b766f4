"""An answer that was lost on a damaged line, while the line says that all is well."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from anchorlib.errors import CollectorError
from anchorlib.wire import ReaderClient, ask_health, check_of, parse_address
from anchorlib.wire.messages.checksum import sealed_bytes
from anchorlib.wire.v1.collector_pb2 import ListReply


class Forgetful(grpc.GenericRpcHandler):
    """Answers with a status alone, `times` times; then as a reader does."""

    def __init__(self, times):
        self.left = times

    def service(self, details):
        def answer(asked, context):
            self.left -= 1
            if self.left < 0:
                reply = ListReply(names=["run1.zarr/"]).SerializeToString()
                yield sealed_bytes(reply, check_of(asked))

        return grpc.unary_stream_rpc_method_handler(answer)


@pytest.fixture
def forgetful():
    servers = []

    def serve(times):
        server = grpc.server(ThreadPoolExecutor(1), [Forgetful(times)])
        servers.append(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        return f"grpc://127.0.0.1:{port}"

    yield serve
    for server in servers:
        server.stop(0).wait()


def test_a_file_is_asked_for_again_where_the_answer_has_no_message(forgetful):
    with ReaderClient(forgetful(2)) as reader:
        assert reader.list("") == ["run1.zarr/"]


def test_an_answer_that_never_has_a_message_is_damage_and_not_a_crash(forgetful):
    with (
        ReaderClient(forgetful(1000)) as reader,
        pytest.raises(CollectorError, match="damaged on the way"),
    ):
        reader.list("")
    with pytest.raises(CollectorError, match="damaged on the way"):
        ask_health(parse_address(forgetful(1000)))
