"""The collector: takes records in over gRPC, writes them with the store's writer, gives files out.

    trainer ══Push══▶ PushService ─▶ Ranks ─▶ Writer ─▶ <store>/<run>.zarr
    reader  ◀══Get═══ ReaderService ◀──────────────────┘
    keeper  ══Remove═▶ KeeperService ─▶ the run is no more

collector     the gRPC server and its life
push          streams: which are taken, and when they are answered
stream        one of them: what it says, and what becomes of it in the store
silence       answers that nobody takes
inbox         a stream's requests, read ahead
memory        memory that is used again
room          memory for records that come in fragments
ranks         who writes which rank
files         the reader's service
elsewhere     runs whose files are in their archive alone, given out all the same
keeping       the keeper's service
archiving     closed runs moved to an archive, in the background
health        the standard health service
refusals      errors as kinds and status codes
trouble       what was refused, counted and told
gate          the one door of all calls: who calls, and whether he may
access        tokens, their rights, and the runs that they hold for
access_file   the file that says so, read again when it changes
issuing       new tokens
authors       whose a run is, and how many there may be
founding      runs that are being made
limits        what writers may spend
handlers      something before a handler
tls           certificates of a port
validity      until when certificates are valid
door          who is turned away before a call is taken
handshakes    TLS handshakes that fail
certificates  a certificate and a token made here
ports         who holds a port
premises      an address to listen on, and a store
readers       who reads, while it ends
startable     whether a collector would start
open_files    how many files may be open
tally         what a collector counts about itself
metrics       the same for Prometheus
logs          the log on stderr
"""

from anchor_server.archiving import Archiver, Archiving
from anchor_server.certificates import Identity, own_identity
from anchor_server.collector import Collector, serve
from anchor_server.issuing import issue_token
from anchor_server.logs import LogFormat, log_to_stderr
from anchor_server.metrics import MetricsPort
from anchor_server.open_files import allow_files
from anchor_server.startable import Intended, problems
from anchor_server.tls import ServerTLS

__all__ = [
    "Archiver",
    "Archiving",
    "Collector",
    "Identity",
    "Intended",
    "LogFormat",
    "MetricsPort",
    "ServerTLS",
    "allow_files",
    "issue_token",
    "log_to_stderr",
    "own_identity",
    "problems",
    "serve",
]
