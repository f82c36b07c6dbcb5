"""What the link's tests drive: a worker process and gRPC clients that are not ours.

The messages come from proto/pd.proto through protoc-c's descriptor set, so no generated Python is
kept; the transport is grpcio.
"""

import collections
import os
import queue
import subprocess
import tempfile
import threading
import time

import grpc
from google.protobuf import (descriptor_pb2, descriptor_pool,
                             message_factory)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("PD_BUILD", "build"))
# Seconds for what should take milliseconds; a busy machine and a sanitized build take their time.
PATIENCE = 60.0 if os.path.basename(BUILD) == "build" else 300.0


def _load():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "pd.desc")
        proto = os.path.join(ROOT, os.environ.get("PD_PROTO", "proto/pd.proto"))
        subprocess.run(["protoc-c", f"-I{os.path.dirname(proto)}", f"--descriptor_set_out={path}", proto],
                       check=True)
        with open(path, "rb") as file:
            files = descriptor_pb2.FileDescriptorSet.FromString(file.read())
    pool = descriptor_pool.DescriptorPool()
    found = {}
    for one in files.file:
        pool.Add(one)
        for message in one.message_type:
            name = f"{one.package}.{message.name}"
            found[message.name] = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    return type("Messages", (), found)


pd = _load()
DIRECT, PREFILL, DECODE, OFFER = 0, 1, 2, 3
(INTERNAL, INVALID, CONTEXT_LENGTH, CAPACITY, TICKET, CANCELLED, DRAINING, DEADLINE,
 REDIRECT) = range(9)
CHANNEL = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", 64 << 20),
           ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]


def wait_for(what, condition, patience=PATIENCE):
    """Until `condition()` gives something; a test that waits in vain fails by name."""
    deadline = time.monotonic() + patience
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.005)


class Process:
    """A child whose stdout lines can be waited for."""

    def __init__(self, arguments, **keywords):
        self.child = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      text=True, bufsize=1, **keywords)
        self.lines = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.child.stdout:
            self.lines.append(line.rstrip("\n"))

    def seen(self, *words):
        """The lines that hold all of the words."""
        return [line for line in list(self.lines) if all(word in line for word in words)]

    def wait_line(self, *words):
        return wait_for(f"a line with {words}, last were {self.lines[-5:]}",
                        lambda: self.seen(*words))[0]

    def tell(self, line):
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()

    def wait_exit(self, patience=PATIENCE):
        status = self.child.wait(patience)
        self.reader.join(patience)
        return status

    def kill(self):
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        self.reader.join()
        self.child.stdin.close()
        self.child.stdout.close()


class FakeWorker(Process):
    """The link with doubles of the other rooms behind it."""

    def __init__(self, log, **options):
        environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
        super().__init__([os.path.join(BUILD, "t/link/fake_worker")] +
                         [f"{key}={value}" for key, value in options.items()], stderr=log,
                         env=environment)
        self.log = log
        self.port = int(self.wait_line("port ").split()[1])
        self.address = f"127.0.0.1:{self.port}"

    def quit(self):
        self.tell("quit")
        return self.wait_exit()

    def logged(self, *words):
        self.log.flush()
        with open(self.log.name, encoding="utf-8", errors="replace") as file:
            return [line for line in file if all(word in line for word in words)]


class Stream:
    """A bidirectional call: what is put goes out, what comes in is kept."""

    def __init__(self, address, method, incoming, credentials=None, options=()):
        options = CHANNEL + list(options)
        self.channel = (grpc.secure_channel(address, credentials, options) if credentials else
                        grpc.insecure_channel(address, options))
        self.outgoing = queue.Queue()
        self.received = []
        self.gate = threading.Event()  # cleared: the client does not read
        self.gate.set()
        self.incoming = incoming
        self.status = None
        call = self.channel.stream_stream(method, request_serializer=self._serialize,
                                          response_deserializer=lambda data: data)
        self.call = call(iter(self.outgoing.get, None))
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    @staticmethod
    def _serialize(message):
        return message if isinstance(message, bytes) else message.SerializeToString()

    def _read(self):
        try:
            while True:
                self.gate.wait()
                data = next(self.call)
                self.received.append(self.incoming.FromString(data) if self.incoming else data)
        except StopIteration:
            self.status = (grpc.StatusCode.OK, "")
        except grpc.RpcError as error:
            self.status = (error.code(), error.details())

    def put(self, message):
        self.outgoing.put(message)

    def wait_status(self):
        return wait_for("the end of the stream", lambda: self.status)

    def close(self):
        self.gate.set()
        self.outgoing.put(None)
        self.call.cancel()
        self.channel.close()
        self.thread.join(PATIENCE)


def part_messages(request, attempt, data, size=32 * 1024, total=None):
    """A serialized Submit as ToWorker messages."""
    pieces = [data[i:i + size] for i in range(0, len(data), size)] or [b""]
    for i, piece in enumerate(pieces):
        part = pd.SubmitPart(request=request, attempt=attempt, data=piece,
                             last=i == len(pieces) - 1)
        if i == 0:
            part.total = len(data) if total is None else total
        yield pd.ToWorker(submit=part)


class Frontend(Stream):
    """A dispatcher's side of Attach."""

    def __init__(self, address, hello=True, model="m", **keywords):
        super().__init__(address, "/pd.v1.Worker/Attach", pd.FromWorker, **keywords)
        self.model = model
        if hello is True:
            hello = pd.FrontendHello(protocol=1, protocol_min=1, frontend_id="test", slot=3,
                                     generation=2)
        if hello:
            self.put(pd.ToWorker(hello=hello))

    def of_kind(self, kind):
        return [getattr(message, kind) for message in list(self.received)
                if message.WhichOneof("kind") == kind]

    def wait_hello(self):
        return wait_for("hello", lambda: self.of_kind("hello"))[0]

    def wait_load(self, condition, what="a load report"):
        def found():
            reports = self.of_kind("load") + [step.load for step in self.of_kind("step")]
            return [report for report in reports if condition(report)]
        return wait_for(what, found)[-1]

    def submit(self, request, attempt=1, route=DIRECT, text=None, chat=None, tokens=None,
               max_tokens=3, **fields):
        submit = pd.Submit(model=self.model, route=route, **fields)
        if text is not None:
            submit.text = text
        if chat is not None:
            for role, content in chat:
                submit.chat.messages.add(role=role, content=content)
        if tokens is not None:
            submit.tokens.ids.extend(tokens)
        submit.sampling.max_tokens = max_tokens
        for message in part_messages(request, attempt, submit.SerializeToString()):
            self.put(message)

    def cancel(self, request, attempt=1):
        self.put(pd.ToWorker(cancel=pd.Cancel(request=request, attempt=attempt)))

    def steps(self, request, attempt=1):
        return [sequence for step in self.of_kind("step") for sequence in step.sequences
                if (sequence.request, sequence.attempt) == (request, attempt)]

    def one(self, kind, request, attempt=1):
        """The message of this kind for the request, waited for."""
        def found():
            return [message for message in self.of_kind(kind)
                    if (message.request, message.attempt) == (request, attempt)]
        return wait_for(f"{kind} of request {request}", found)[0]

    def failed(self, request, attempt=1):
        return self.one("failed", request, attempt)

    def placed(self, request, attempt=1):
        return self.one("placed", request, attempt)

    def finished(self, request, attempt=1):
        """Waits for the end of an attempt that goes well; gives (text, ids, Finished)."""
        def ended():
            for message in self.of_kind("failed"):
                if (message.request, message.attempt) == (request, attempt):
                    raise AssertionError(f"request {request} failed: {message}")
            return [s for s in self.steps(request, attempt) if s.HasField("finished")]
        last = wait_for(f"the end of request {request}", ended)[0]
        steps = self.steps(request, attempt)
        return (b"".join(s.text for s in steps), [i for s in steps for i in s.tokens],
                last.finished)


def unary(address, method, data, reply, credentials=None):
    """A unary call with bytes or a message; gives the reply or raises grpc.RpcError."""
    channel = (grpc.secure_channel(address, credentials, CHANNEL) if credentials else
               grpc.insecure_channel(address, CHANNEL))
    with channel:
        call = channel.unary_unary(method, request_serializer=Stream._serialize,
                                   response_deserializer=reply.FromString)
        return call(data, timeout=PATIENCE)


def stats(address, **keywords):
    """Stats as a dictionary of counters, with the reply under its own name."""
    reply = unary(address, "/pd.v1.Worker/Stats", pd.StatsRequest(), pd.StatsReply, **keywords)
    counters = collections.Counter({counter.name: counter.value for counter in reply.counters})
    return counters, reply
