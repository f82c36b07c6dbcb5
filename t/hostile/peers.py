"""Peers that lie: a decode worker that attacks a prefill worker, and the other way round.

A Reader is the client of a real worker's Kv.Link, with data connections of its own; a Source is a server of
Kv.Link whose every answer the test decides. Both speak the protocol correctly until they are told not to.
"""

import array
import os
import queue
import socket
import struct
import threading
import time
from concurrent import futures

import grpc

from rig import PATIENCE, Stream, pd, wait_for

CLAIM_EPOCH = 1


def host_id():
    """What a worker on this machine gives as its host id (worker/kvx/host.c)."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    user, network = (os.stat(f"/proc/self/ns/{name}").st_ino for name in ("user", "net"))
    return f"{boot}-u{user:x}-n{network:x}-{os.geteuid():x}"


class Reader(Stream):
    """A decode worker as a prefill worker sees it. Once it has said hello its heart beats."""

    def __init__(self, address, hello=None, beats=True):
        super().__init__(address, "/pd.v1.Kv/Link", pd.KvFromSource)
        self.ended = threading.Event()
        if hello is not None:
            self.put(pd.KvToSource(hello=hello))
            if beats:
                threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self):
        while not self.ended.wait(1) and not self.status:
            self.put(pd.KvToSource(heartbeat=pd.KvHeartbeat(number=1)))

    def close(self):
        self.ended.set()
        super().close()

    @staticmethod
    def hello_for(worker_hello, name="reader", epoch=1, transports=("tcp",), **fields):
        """A KvReaderHello that the worker accepts, but for `fields`."""
        hello = pd.KvReaderHello(protocol=1, instance=name, boot=7, epoch=epoch,
                                 source_boot=worker_hello.boot, transports=transports,
                                 host_id=host_id())
        hello.fingerprint.CopyFrom(worker_hello.fingerprint)
        for key, value in fields.items():
            setattr(hello, key, value)
        return hello

    def of_kind(self, kind):
        return [getattr(message, kind) for message in list(self.received)
                if message.WhichOneof("kind") == kind]

    def wait_kind(self, kind, generation=None):
        def found():
            return [message for message in self.of_kind(kind)
                    if generation is None or message.generation == generation]
        return wait_for(f"{kind} from the source, the stream's end is {self.status}", found)[-1]

    def claim(self, ticket, **fields):
        claim = pd.KvClaim(generation=ticket.generation, epoch=ticket.epoch, secret=ticket.secret)
        for key, value in fields.items():
            setattr(claim, key, value)
        self.put(pd.KvToSource(claim=claim))

    def release(self, generation):
        self.put(pd.KvToSource(release=pd.KvRelease(generation=generation)))

    def open_data(self, key=None):
        """A tcp data connection that the source has accepted."""
        hello = self.wait_kind("hello")
        connection = dial(hello.data_address)
        connection.sendall(b"pdkvdat1" + struct.pack("<Q", hello.link_key if key is None else key))
        if key is None:
            assert receive(connection, 8) == b"pdkvack1"
        return connection


def dial(address):
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE)


def receive(connection, count):
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            break
        data += piece
    return data


def is_cut(connection):
    """Waits for the other side's end of a connection, and throws away what comes before it."""
    try:
        while connection.recv(1 << 20):
            pass
    except ConnectionError:
        pass
    return True


def read_request(generation, ranges, number=0, count=None):
    """A read request as worker/kvx/tcp.h has it."""
    return struct.pack("<QII", generation, number, len(ranges) if count is None else count) + \
        b"".join(struct.pack("<QI", offset, length) for offset, length in ranges)


def planes_of(layout, first, count):
    """The byte ranges of blocks [first, first + count) in all planes of a pool."""
    block = 2 * layout.block_size * layout.head_dim * layout.element_bytes
    return [(plane * layout.blocks * block + first * block, count * block)
            for plane in range(layout.layers * layout.kv_heads)]


class Source:
    """A prefill worker as a decode worker sees it: serves Kv.Link and, for tcp, the pool's bytes.

    `answer(link, message)` decides what follows on each message from the reader; what it leaves alone is
    answered as a true source would. `data(connection, request)` likewise on each read request."""

    def __init__(self, like, name="source", answer=None, data=None, **hello):
        self.like, self.name, self.answer, self.data = like, name, answer, data
        self.hello_fields = hello
        self.boot, self.key = 11, 4711
        self.links, self.messages = [], []
        self.tickets = {}
        self.closed = False
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()
        handler = grpc.stream_stream_rpc_method_handler(
            self._link, request_deserializer=pd.KvToSource.FromString,
            response_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString())
        self.server = grpc.server(futures.ThreadPoolExecutor(max_workers=32),
                                  options=[("grpc.so_reuseport", 0)])
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("pd.v1.Kv", {"Link": handler}),))
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def ticket(self, generation, tokens=40, **fields):
        hello = self.like
        ticket = pd.Ticket(instance=self.name, address=self.address, boot=self.boot,
                           epoch=CLAIM_EPOCH, generation=generation, tokens=tokens,
                           block_size=hello.block_size, fingerprint=hello.fingerprint,
                           secret=bytes(16))
        for key, value in fields.items():
            setattr(ticket, key, value)
        self.tickets[generation] = ticket
        return ticket

    def layout(self, **fields):
        """SmolLM2-135M's: the shape that a decode worker of this model compares with."""
        shape = dict(layers=30, kv_heads=3, blocks=64, block_size=16, head_dim=64, element_bytes=2)
        shape.update(fields)
        size = shape["layers"] * shape["kv_heads"] * shape["blocks"] * 2 * shape["block_size"] * \
            shape["head_dim"] * shape["element_bytes"]
        return pd.KvPoolLayout(bytes=size, generations_offset=(size + 4095) // 4096 * 4096, **shape)

    def hello(self):
        hello = pd.KvSourceHello(protocol=1, instance=self.name, boot=self.boot, epoch=CLAIM_EPOCH,
                                 fingerprint=self.like.fingerprint, transport="tcp",
                                 data_address="127.0.0.1:%d" % self.listener.getsockname()[1],
                                 link_key=self.key, pool=self.layout())
        for key, value in self.hello_fields.items():
            if hasattr(value, "DESCRIPTOR"):
                getattr(hello, key).CopyFrom(value)
            else:
                setattr(hello, key, value)
        return pd.KvFromSource(hello=hello)

    def ready(self, generation, **fields):
        tokens = self.tickets[generation].tokens
        ready = pd.KvChunkReady(generation=generation, tokens=tokens, complete=True, first_token=100)
        for key, value in fields.items():
            setattr(ready, key, value)
        return ready

    def claimed(self, generation, **fields):
        """Claimed, all of it computed."""
        ticket = self.tickets[generation]
        claimed = pd.KvClaimed(generation=generation, prompt=[50] * ticket.tokens,
                               ready=self.ready(generation))
        claimed.extents.add(first=0, count=-(-ticket.tokens // 16))
        for key, value in fields.items():
            claimed.ClearField(key)
            if key == "ready":
                claimed.ready.CopyFrom(value)
            else:
                getattr(claimed, key).extend(value)
        return pd.KvFromSource(claimed=claimed)

    def _link(self, requests, context):
        out = queue.Queue()
        self.links.append(out)
        context.add_callback(lambda: out.put(None))
        context.send_initial_metadata(())
        threading.Thread(target=self._hear, args=(requests, out), daemon=True).start()
        yield from iter(out.get, None)

    def _hear(self, requests, out):
        try:
            for message in requests:
                self.messages.append(message)
                if self.answer and self.answer(out, message):
                    continue
                kind = message.WhichOneof("kind")
                if kind == "hello":
                    out.put(self.hello())
                elif kind == "claim":
                    out.put(self.claimed(message.claim.generation))
                elif kind == "heartbeat":
                    out.put(pd.KvFromSource(heartbeat=pd.KvHeartbeat(number=1)))
        except (grpc.RpcError, ValueError):
            pass
        out.put(None)

    def heard(self, kind):
        return [getattr(m, kind) for m in list(self.messages) if m.WhichOneof("kind") == kind]

    def _accept(self):
        while not self.closed:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        try:
            with connection:
                receive(connection, 16)
                connection.sendall(b"pdkvack1")
                while True:
                    head = receive(connection, 16)
                    if len(head) < 16:
                        return
                    _, number, count = struct.unpack("<QII", head)
                    body = receive(connection, 12 * count)
                    total = sum(struct.unpack_from("<QI", body, 12 * i)[1] for i in range(count))
                    if self.data and self.data(connection, number, total):
                        return
                    connection.sendall(struct.pack("<II", number, total) + bytes(total))
        except OSError:
            pass

    def close(self):
        self.closed = True
        self.listener.close()
        self.server.stop(None).wait(PATIENCE)


class Mapping:
    """The source's half of shm: gives whoever comes `descriptor` (None: no descriptor)."""

    def __init__(self, descriptor, magic=b"pdkvmap1"):
        self.name = f"pd-hostile-{os.getpid()}-{time.monotonic_ns()}"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind("\0" + self.name)
        self.listener.listen()
        self.descriptor, self.magic = descriptor, magic
        self.connections = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            connection.recv(64)
            rights = [] if self.descriptor is None else [
                (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self.descriptor]))]
            try:
                connection.sendmsg([self.magic], rights)
            except OSError:
                pass

    def close(self):
        self.listener.close()
        for connection in self.connections:
            connection.close()
