"""The collector: a gRPC server that stores the records of trainers and serves files to readers.

    trainer ══Push══▶ PushService ─▶ RankHolders ─▶ Writer ─▶ <store>/<run>.zarr
    reader  ◀══Get═══ ReaderService ◀────────────────────────┘
    keeper  ══Remove═▶ KeeperService ─▶ the run is removed

A stream is one Push call, by which a trainer sends the records of one rank of one run.

collector          a collector: its start, its stop, and the parts that it connects
grpc_server        the collector's gRPC server: the limits for its clients, and the port
push_service       the Push service: which streams are accepted, and when they are answered
stream             serves the requests of one stream after Hello, its first message
stalled_clients    ends streams whose client does not read the answers
inbox              a stream's requests, read ahead by a thread
message_memory     keeps freed memory in the process for the next message
fragment_memory    bounds the memory that unfinished records hold
rank_holders       which stream writes which rank
reader_service     the Reader service: files of the store
keeper_service     the Keeper service: runs measured, removed and renamed
archiving          moves closed runs to an archive, in the background
health             the standard health service of gRPC
refusals           errors as kinds, status codes and one line of text
refusal_counts     counts refusals and logs them
gate               checks the token and the rights of every call
tokens             tokens, their rights, and the runs that those rights cover
access_file        the file that lists the tokens, read again when it changes
new_tokens         makes new tokens
authors            which token made a run, and how many runs a token may make
new_runs           lets one stream at a time create a run
limits             how many bytes, runs and streams writers may use
handlers           puts a check in front of a gRPC handler
tls                TLS certificates of the port
certificate_dates  the dates between which a certificate is valid
turned_away        counts and logs callers without a valid token or handshake
handshakes         notices TLS handshakes that fail
certificates       makes a self-signed certificate and a token
ports              names the process that holds a port
address_and_store  checks the address to listen on, and the store
last_readers       lets a stopping collector wait for readers that are not done
startable          finds what would prevent a collector from starting
descriptor_limit   raises the number of files that may be open
counters           the collector's counters
metrics            gives the counters to Prometheus
stream_registry    which ranks are written by open streams, and how fast
logs               the log on stderr
"""

from anchor_server.archiving import Archiver, Archiving
from anchor_server.certificates import Identity, own_identity
from anchor_server.collector import Collector, serve
from anchor_server.descriptor_limit import allow_files
from anchor_server.logs import log_to_stderr
from anchor_server.metrics import MetricsPort
from anchor_server.new_tokens import issue_token
from anchor_server.startable import CollectorSettings, problems
from anchor_server.tls import ServerTLS

__all__ = [
    "Archiver",
    "Archiving",
    "Collector",
    "CollectorSettings",
    "Identity",
    "MetricsPort",
    "ServerTLS",
    "allow_files",
    "issue_token",
    "log_to_stderr",
    "own_identity",
    "problems",
    "serve",
]
