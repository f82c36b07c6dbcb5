"""Fake workers for the nginx suites: real gRPC, scripted answers, no model.

    fake_worker.py PROTO BUILD

stays ready and forks a worker, a process of its own, for every line

    start NAME LOG [key=value ...]

on its input; it answers "started PID PORT". A worker dies with this process.
It writes what it hears into LOG, one event a line:

    attach frontend=F slot=S generation=G
    submit request=R attempt=A route=PREFILL parts=N bytes=N model=M ticket=G
    message ... the whole Submit as one line of protobuf text
    cancel request=R attempt=A reason=CLIENT_GONE
    told FINISHED/REQUESTS  what a frontend's heartbeats say, when it changes;
                            with "away" behind it, if it is
    drain, detach, release, heartbeat (the first of a stream only)
    registered lease=MS (the first time), not registered: STATUS "message"

Options (default):

    port=N (any)            role=prefill|decode|mixed (mixed)
    host=ADDRESS (127.0.0.1)
    dns=A|B|... ttl=N (1)   no worker but a name server: every name has address
                            A; after a release, B ...; an empty one: no name
    model=NAME (m)          instance=NAME (the worker's)
    zone=LABEL (none)
    text=a|b|c (t0_|t1_|t2_)  the answer, a token each; "_" stands for a space;
                            token N has the id 100 + N; what was generated
                            before is not said again
    prompt=N (from bytes)   cached=N (0)       what Placed says
    logprob=F (-0.25)       of each token, where they are asked for
    finish=stop|length|none                    max_seqs=N (64)
    blocks=N (1000)         skip=P             leaves out the token at P
    growth=N (0)            blocks that reports leave to answers to come
    reserved=N (0)          blocks that reports call promised
    max_len=N (4096)        report=MS (as the hello asks; 0: never)
    delay=MS (0)            between tokens
    merge=N (1)             tokens in a step
    busy=N (0)              prompt tokens that the reports call queued besides
                            those of its own requests
    token_us=N step_us=N    what the reports say of a prompt's token, of a step
    report_slot=N (any)     reports that come with no step go to this slot only
    gate=E,...              wait for a release (SIGUSR1) before each event E:
                            attach hello offer placed first token third finish
    refuse=CODE[:N]         Failed(CODE) in place of Placed, N times (always)
    offers=N                knows OFFER: a ticket of N tokens, 0: refuses
    offer_ticket=none|bad|long    the ticket that it answers with, in place of one
    borrows=N               of a ticket with a PREFILL, as Placed says
    borrow_failed=TEXT      why nothing of it, as Placed says
    fail=CODE               Failed(CODE) after the first token ...
    every=N (1)             ... of every Nth answer
    others=N:M|N:M:away|... other frontends, whose N requests ended M times well,
                            beside those that attach and tell; after a release,
                            what is behind a "/"
    links=P:up|P:down|...   what the reports say of its links to prefill workers;
                            after a release, what is behind a "/"
    message=TEXT            its message, "_" for a space too
    die=E                   the process ends at E: attach submit offer placed first third
    protocol=N (1)          in the hello
    frozen=N                knows no messages but those of t/frozen/pd-N.proto
    fingerprint=TEXT (f)    all four digests are made of it
    numerics=TEXT (fake), revision=LABEL (none)    in the hello
    register=HOST:PORT      registers there, as address=TEXT (":" and its port),
                            with token=TEXT (fake) and padding=N bytes of capabilities;
                            says that it leaves at SIGUSR2; register_raw=HEX
                            is sent in place of an honest message;
                            over TLS with tls=PATH (.pem, .key), anonymous=1:
                            without showing a certificate
    send=KIND               hostile bytes behind the hello, see hostile()
    raw=KIND                no gRPC at all, see raw_bytes()
"""

import asyncio
import contextlib
import ctypes
import hashlib
import os
import random
import signal
import subprocess
import sys

import grpc
import grpc.aio
from google.protobuf import (descriptor_pb2, descriptor_pool, message_factory,
                             text_format)

pd = None  # the generated messages by name


def load_messages(proto, build):
    """Message classes out of the .proto, by the compiler that the build has."""
    path = os.path.join(build, "t", f"pd.{os.getpid()}.desc")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    subprocess.run(["protoc-c", f"-I{os.path.dirname(proto)}",
                    f"--descriptor_set_out={path}", proto], check=True)
    with open(path, "rb") as file:
        files = descriptor_pb2.FileDescriptorSet.FromString(file.read())
    os.unlink(path)
    pool = descriptor_pool.DescriptorPool()
    for one in files.file:
        pool.Add(one)
    classes = {}
    for one in files.file:
        for message in one.message_type:
            name = f"{one.package}.{message.name}"
            classes[message.name] = message_factory.GetMessageClass(
                pool.FindMessageTypeByName(name))
    classes["Role"] = pool.FindEnumTypeByName("pd.v1.Role")
    classes["Route"] = pool.FindEnumTypeByName("pd.v1.Route")
    return type("Messages", (), classes)


class Sequence:
    """One attempt on this worker: the task that answers it."""

    def __init__(self, submit, task=None):
        self.submit = submit
        self.task = task
        self.blocks = 0
        self.queued = 0    # tokens of its prompt that are not computed yet


class Worker:
    def __init__(self, name, log, options):
        self.name = name
        self.options = options
        self.log_file = open(log, "a", encoding="utf-8", errors="replace")
        self.gates = set(filter(None, options.get("gate", "").split(",")))
        self.released = asyncio.Semaphore(0)
        self.releases = 0
        self.boot = random.getrandbits(63)
        self.generation = 0
        self.refusals = self._refusals()
        self.text = options.get("text", "t0_|t1_|t2_").replace(
            "_", " ").split("|")
        self.used = 0
        self.steps = 0
        self.draining = False
        self.attaches = set()
        self.reports = 0
        self.answers = 0
        self.frontends = {}    # what each has told of itself

    def listed(self, option):
        """The items of an option: those before, or behind, a release."""
        now = self.options.get(option, "").split("/")
        return [one.split(":") for one in filter(
            None, now[min(self.releases, len(now) - 1)].split("|"))]

    def others(self):
        return [pd.FrontendHealth(
            frontend_id=f"other{i}", requests=int(words[0]),
            finished=int(words[1]), away=len(words) > 2)
            for i, words in enumerate(self.listed("others"))]

    def links(self):
        return [pd.KvLinkState(peer=peer, up=state == "up")
                for peer, state in self.listed("links")]

    def log(self, line):
        self.log_file.write(line.replace("\n", "\\n") + "\n")
        self.log_file.flush()

    def number(self, key, default):
        return int(self.options.get(key, default))

    def _refusals(self):
        code, _, count = self.options.get("refuse", "").partition(":")
        return (code, int(count or 1 << 30)) if code else ("", 0)

    async def reach(self, event):
        """An event in a request's life: may wait for a release, may be the end."""
        if self.options.get("die") == event:
            os._exit(1)
        if event in self.gates:
            await self.released.acquire()

    def release(self):
        self.releases += 1
        self.released.release()
        self.log("release")

    def drain(self):
        self.draining = True
        for attach in self.attaches:
            attach.start(attach.send(pd.FromWorker(drain=pd.WorkerDrain())))

    def hello(self):
        text = self.options.get("fingerprint", "f")
        digest = hashlib.sha256(text.encode()).digest() if text else b""
        return pd.WorkerHello(
            protocol=self.number("protocol", 1),
            protocol_min=self.number("protocol", 1),
            instance=self.options.get("instance", self.name), boot=self.boot,
            role=pd.Role.values_by_name[
                "ROLE_" + self.options.get("role", "mixed").upper()].number,
            model=self.options.get("model", "m"),
            fingerprint=pd.Fingerprint(weights=digest, tokenizer=digest,
                                       chat_template=digest, layout=digest),
            numerics_id=self.options.get("numerics", "fake"), max_model_len=self.number("max_len", 4096),
            block_size=16, kv_blocks=self.number("blocks", 1000),
            max_num_seqs=self.number("max_seqs", 64), vocabulary=1000,
            zone=self.options.get("zone", ""),
            revision=self.options.get("revision", ""),
            capabilities=["fake"] + ["offer"] * ("offers" in self.options),
            max_submit_bytes=8 << 20)


class Attach:
    """One Attach stream: reads submissions, answers each in a task of its own."""

    def __init__(self, worker, context):
        self.worker = worker
        self.context = context
        self.writing = asyncio.Lock()    # gRPC takes one write at a time
        self.parts = {}
        self.sequences = {}
        self.submissions = 0
        self.reports = 0
        self.reporter = None

    async def run(self):
        worker = self.worker
        await worker.reach("attach")
        first = await self.context.read()
        if first is grpc.aio.EOF or first.WhichOneof("kind") != "hello":
            worker.log("protocol error: the first message is no hello")
            return
        hello = first.hello
        self.hello = hello
        worker.log(f"attach frontend={hello.frontend_id} slot={hello.slot} "
                   f"generation={hello.generation}")
        try:
            await self.serve()
        finally:    # whenever it was that the stream has ended
            worker.attaches.discard(self)
            for task in [self.reporter] + [
                    sequence.task for sequence in self.sequences.values()]:
                if task:
                    task.cancel()
            worker.log("detach")

    async def serve(self):
        worker = self.worker
        await worker.reach("hello")
        if worker.options.get("send") == "early":
            await self.send(pd.FromWorker(load=self.load()))
        await self.send(pd.FromWorker(hello=worker.hello()))
        for kind in filter(None, worker.options.get("send", "").split(",")):
            for data in hostile(kind):
                await self.context.write(data)
        interval = worker.number("report",
                                 self.hello.report_interval_ms or 1000)
        worker.attaches.add(self)
        if worker.draining:
            await self.send(pd.FromWorker(drain=pd.WorkerDrain()))
        self.reporter = self.start(self.report(interval / 1000))
        while True:
            message = await self.context.read()
            if message is grpc.aio.EOF:
                break
            self.take(message)

    async def send(self, message):
        async with self.writing:
            await self.context.write(message.SerializeToString())

    def start(self, coroutine):
        """A task whose failure is an event of the log."""
        def ended(task):
            if not task.cancelled() and task.exception():
                self.worker.log(f"protocol error: {task.exception()!r}")
        task = asyncio.create_task(coroutine)
        task.add_done_callback(ended)
        return task

    def load(self):
        worker = self.worker
        self.reports += 1
        worker.reports += 1
        streams = worker.attaches | {self}
        named = {} if "frozen" in worker.options else {
            "taken": worker.reports, "kv_growth": worker.number("growth", 0),
            "kv_reserved": worker.number("reserved", 0),
            "seen": [pd.StreamSeen(stream=other.hello.stream,
                                   last_submission=other.submissions)
                     for other in worker.attaches if other is not self]}
        return pd.LoadReport(
            **named, number=self.reports, last_submission=self.submissions,
            links=worker.links(),
            steps=worker.steps,
            running=sum(len(stream.sequences) for stream in streams),
            draining=worker.draining,
            step_us=worker.number("step_us", 0),
            prefill_us_per_token_x1000=1000 * worker.number("token_us", 0),
            prefill_queued_tokens=worker.number("busy", 0) + sum(
                sequence.queued for stream in streams
                for sequence in stream.sequences.values()),
            kv_free=max(worker.number("blocks", 1000) - worker.used, 0))

    async def report(self, interval):
        if self.worker.number("report_slot", self.hello.slot) != self.hello.slot:
            return
        while interval:
            await self.send(pd.FromWorker(load=self.load()))
            await asyncio.sleep(interval)

    def take(self, message):
        kind = message.WhichOneof("kind")
        if kind == "submit":
            self.take_part(message.submit)
        elif kind == "cancel":
            cancel = message.cancel
            reason = cancel.DESCRIPTOR.enum_types_by_name[
                "Reason"].values_by_number[cancel.reason].name
            self.worker.log(f"cancel request={cancel.request} "
                            f"attempt={cancel.attempt} reason={reason}")
            self.parts.pop((cancel.request, cancel.attempt), None)
            self.end(cancel.request, cancel.attempt)
        elif kind == "drain":
            self.worker.log("drain")
        elif kind == "heartbeat":
            if message.heartbeat.number == 1:
                self.worker.log("heartbeat")
            self.tell_others(message.heartbeat)
        else:
            self.worker.log(f"protocol error: message of kind {kind}")

    def tell_others(self, heartbeat):
        """As a real worker does: what the other frontends have told."""
        worker = self.worker
        if "frozen" in worker.options:
            return
        own = self.hello.frontend_id
        health = heartbeat.health
        if heartbeat.HasField("health"):
            told = f"{health.finished}/{health.requests}" + (
                " away" if health.away else "")
            health.frontend_id = own
            if worker.frontends.get(own) != health:
                worker.log(f"told {told}")
            worker.frontends[own] = health
        others = worker.others() + [
            other for name, other in worker.frontends.items() if name != own]
        if others:
            self.start(self.send(pd.FromWorker(
                frontends=pd.Frontends(others=others))))

    def take_part(self, part):
        worker = self.worker
        key = (part.request, part.attempt)
        if key not in self.parts:
            self.submissions += 1
        parts = self.parts.setdefault(key, [part.total])
        parts.append(part.data)
        if len(part.data) > 32768:
            worker.log("protocol error: part over 32 KiB")
        if not part.last:
            worker.log(f"part request={part.request} of={parts[0]}")
            return
        data = b"".join(parts[1:])
        total = parts[0]
        del self.parts[key]
        if len(data) != total:
            worker.log(f"protocol error: total={total} but {len(data)} bytes")
        submit = pd.Submit.FromString(data)
        route = pd.Route.values_by_number[submit.route].name[6:]
        ticket = (f" ticket={submit.ticket.instance}/{submit.ticket.generation}"
                  if submit.HasField("ticket") else "")
        worker.log(f"submit request={part.request} attempt={part.attempt} "
                   f"route={route} parts={len(parts) - 1} bytes={len(data)} "
                   f"model={submit.model}{ticket}")
        if len(data) < 4096:
            worker.log("message " + text_format.MessageToString(
                submit, as_one_line=True, as_utf8=True))
        sequence = Sequence(submit)
        self.sequences[key] = sequence
        sequence.task = self.start(self.answer(key, sequence, route))

    def end(self, request, attempt):
        sequence = self.sequences.pop((request, attempt), None)
        if sequence:
            self.worker.used -= sequence.blocks
            sequence.task.cancel()

    # --- answers -----------------------------------------------------------

    async def answer(self, key, sequence, route):
        worker = self.worker
        if route == "OFFER":
            await self.offer(key, sequence)
            return
        await worker.reach("submit")
        code, left = worker.refusals
        if left:
            worker.refusals = (code, left - 1)
            await self.fail(key, code)
            return
        submit = sequence.submit
        prompt = worker.number("prompt", max(1, submit.ByteSize() // 4))
        sequence.blocks = (prompt + 15) // 16
        sequence.queued = 0 if route == "DECODE" else prompt
        worker.used += sequence.blocks
        await worker.reach("placed")
        placed = pd.Placed(request=key[0], attempt=key[1],
                           prompt_tokens=prompt,
                           cached_tokens=worker.number("cached", 0))
        if route == "PREFILL":
            placed.ticket.CopyFrom(self.ticket(prompt))
        if route == "PREFILL" and submit.HasField("ticket"):
            placed.borrowed_tokens = worker.number("borrows", 0)
            placed.cached_tokens += placed.borrowed_tokens
            placed.borrow_failed = worker.options.get(
                "borrow_failed", "").replace("_", " ")
        await self.send(pd.FromWorker(placed=placed))
        await self.tokens(key, sequence, route, prompt)

    def ticket(self, tokens):
        worker = self.worker
        worker.generation += 1
        return pd.Ticket(
            instance=worker.options.get("instance", worker.name),
            address="127.0.0.1:1", boot=worker.boot, epoch=1,
            generation=worker.generation, tokens=tokens, block_size=16,
            fingerprint=worker.hello().fingerprint, secret=b"s" * 16)

    async def offer(self, key, sequence):
        """A ticket for what is in the cache; nothing is computed."""
        worker = self.worker
        await worker.reach("offer")
        tokens = worker.number("offers", 0)
        kind = worker.options.get("offer_ticket")
        if tokens == 0:
            await self.fail(key, "TICKET")
            return
        placed = pd.Placed(request=key[0], attempt=key[1],
                           prompt_tokens=tokens + 1, cached_tokens=tokens)
        if kind is None:
            placed.ticket.CopyFrom(self.ticket(tokens))
        data = placed.SerializeToString()
        if kind == "bad":     # a field that is no ticket's
            data += b"\x2a\x02\x0a\x7f"
        if kind == "long":
            data += b"\x2a\x82\x20\x0a\xff\x1f" + b"x" * 4095
        async with self.writing:
            await self.context.write(b"\x1a" + varint(len(data)) + data)
        worker.steps += 1
        await self.send(pd.FromWorker(step=pd.Step(
            step=worker.steps, load=self.load(),
            sequences=[pd.SequenceStep(
                request=key[0], attempt=key[1],
                finished=pd.Finished(prompt_tokens=tokens + 1,
                                     cached_tokens=tokens))])))
        self.sequences.pop(key, None)

    async def tokens(self, key, sequence, route, prompt):
        worker = self.worker
        limit = sequence.submit.sampling.max_tokens or 1 << 20
        count = min(len(worker.text), limit)
        reason = {"stop": 1, "length": 2, "none": 0}[
            worker.options.get("finish", "stop")]
        if limit < len(worker.text):
            reason = 2
        first = position = len(sequence.submit.generated.ids)
        while position < count:
            await worker.reach("token" if position > first else "first")
            if position == first + 2:
                await worker.reach("third")    # no canary has so many
            await asyncio.sleep(worker.number("delay", 0) / 1000)
            size = min(worker.number("merge", 1), count - position)
            if route == "PREFILL" or (route == "DECODE" and position == first):
                size = 1    # the handed over token stands alone
            step = pd.SequenceStep(
                request=key[0], attempt=key[1], position=position,
                tokens=range(100 + position, 100 + position + size),
                text="".join(worker.text[position:position + size]).encode())
            if sequence.submit.sampling.logprobs:
                step.logprobs.extend(
                    self.logprob(100 + i, worker.text[i],
                                 sequence.submit.sampling.top_logprobs)
                    for i in range(position, position + size))
            position += size
            if worker.number("skip", -1) == step.position:
                continue
            handed_over = route == "PREFILL"
            if position == count or handed_over:
                if not handed_over:
                    await worker.reach("finish")
                step.finished.CopyFrom(pd.Finished(
                    reason=0 if handed_over and position < count else reason,
                    prompt_tokens=prompt, completion_tokens=position,
                    cached_tokens=worker.number("cached", 0),
                    timing=pd.Timing(queue_us=1000, prefill_us=2000,
                                     decode_us=3000)))
                if route == "DECODE":
                    step.finished.timing.MergeFrom(pd.Timing(
                        kv_bytes=4096, kv_chunks=3, kv_wait_us=4000,
                        kv_wire_us=5000, kv_exposed_us=6000,
                        kv_transport="sim"))
            worker.steps += 1
            sequence.queued = 0
            if step.HasField("finished"):
                worker.used -= sequence.blocks
                sequence.blocks = 0
            await self.send(pd.FromWorker(step=pd.Step(
                step=worker.steps, sequences=[step], load=self.load())))
            if handed_over:
                break
            worker.answers += position == first + 1
            if ("fail" in worker.options
                    and worker.answers % worker.number("every", 1) == 0):
                await self.fail(key, worker.options["fail"])
                return
        self.sequences.pop(key, None)

    def logprob(self, token, text, count):
        value = float(self.worker.options.get("logprob", "-0.25"))
        own = pd.TokenLogprob(token=token, text=text.encode(), logprob=value)
        rest = [pd.TokenLogprob(token=500 + i, text=f"alt{i}".encode(),
                                logprob=value - i) for i in range(1, count)]
        own.top.extend(([pd.TokenLogprob.FromString(own.SerializeToString())]
                        + rest)[:count])
        return own

    async def fail(self, key, code):
        names = pd.Failed.DESCRIPTOR.enum_types_by_name["Code"].values_by_name
        message = self.worker.options.get("message", "the_fake_says_no")
        sequence = self.sequences.pop(key, None)
        if sequence:
            self.worker.used -= sequence.blocks
        await self.send(pd.FromWorker(failed=pd.Failed(
            request=key[0], attempt=key[1], code=names[code].number,
            message=message.replace("_", " "),
            retry_after_ms=self.worker.number("retry_after", 0),
            param=self.worker.options.get("param", ""))))


def register_channel(options, arguments):
    address, path = options["register"], options.get("tls")
    if not path:
        return grpc.aio.insecure_channel(address, options=arguments)
    read = lambda name: open(path + name, "rb").read()
    own = ((None, None) if "anonymous" in options
           else (read(".key"), read(".pem")))
    return grpc.aio.secure_channel(
        address, grpc.ssl_channel_credentials(read(".pem"), *own),
        options=arguments)


async def register(worker, port):
    """Keeps a lease, renewed at a third of its life."""
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, leaving.set)
    hello = worker.hello()
    hello.capabilities.append("x" * worker.number("padding", 0))
    request = pd.RegisterRequest(
        token=worker.options.get("token", "fake"), hello=hello,
        address=worker.options.get("address", f":{port}"))
    said = None
    async with register_channel(worker.options, [
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.enable_http_proxy", 0)]) as channel:
        call = channel.unary_unary("/pd.v1.Dispatcher/Register",
                                   response_deserializer=pd.RegisterReply
                                   .FromString)
        while True:
            request.leaving = leaving.is_set()
            data = (bytes.fromhex(worker.options["register_raw"])
                    if "register_raw" in worker.options
                    else request.SerializeToString())
            try:
                reply = await call(data, wait_for_ready=True)
                now, pause = f"registered lease={reply.lease_ms}", \
                    reply.lease_ms / 3000
            except grpc.aio.AioRpcError as error:
                now, pause = (f"not registered: {error.code().name} "
                              f'"{error.details()}"'), 0.1
            if request.leaving:
                worker.log("left")
                return
            if now != said:
                worker.log(now)
                said = now
            try:
                await asyncio.wait_for(leaving.wait(), pause)
            except asyncio.TimeoutError:
                pass


# --- hostile bytes ---------------------------------------------------------------


def hostile(kind):
    """Messages that no honest worker sends."""
    if kind == "early":      # a report before the hello, sent elsewhere
        return []
    field = lambda number, data: bytes([number << 3 | 2]) + varint(
        len(data)) + data
    if kind == "garbage":
        return [bytes(random.Random(1).randbytes(300))]
    if kind == "empty":
        return [b""]
    if kind == "unknown":    # a kind from the future
        return [field(15, b"xyz")]
    if kind == "hello":
        return [pd.FromWorker(hello=pd.WorkerHello()).SerializeToString()]
    if kind == "huge":
        return [field(4, b"\0" * (5 << 20))]
    if kind == "many":       # 2 bytes on the wire, 150 in memory, each
        return [field(4, field(2, b"") * (1 << 20))]
    if kind == "nested":     # TokenLogprob in TokenLogprob in ...
        headers, size = [], 0
        for number in [4] * 100000 + [8, 2, 4]:
            headers.append(bytes([number << 3 | 2]) + varint(size))
            size += len(headers[-1])
        return [b"".join(reversed(headers))]
    if kind == "stale":      # two reports, the newer one first
        return [pd.FromWorker(load=pd.LoadReport(
            taken=taken, prefill_queued_tokens=queued, kv_free=1000))
            .SerializeToString() for taken, queued in ((1 << 40, 600),
                                                       (1 << 39, 0))]
    if kind == "stranger":   # requests that nobody submitted
        return [pd.FromWorker(placed=pd.Placed(request=1 << 60, attempt=1))
                .SerializeToString(),
                pd.FromWorker(failed=pd.Failed(request=0, attempt=0))
                .SerializeToString(),
                pd.FromWorker(step=pd.Step(sequences=[
                    pd.SequenceStep(request=7, attempt=1, tokens=[1],
                                    text=b"x")])).SerializeToString()]
    raise ValueError(kind)


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def raw_bytes(kind):
    """What a peer writes that does not speak gRPC, or not well."""
    frame = lambda type, flags, stream, data: (
        len(data).to_bytes(3, "big") + bytes([type, flags])
        + stream.to_bytes(4, "big") + data)
    settings = frame(4, 0, 0, b"") + frame(4, 1, 0, b"")
    header = lambda name, value: (bytes([0, len(name)]) + name
                                  + bytes([len(value)]) + value)
    grpc_type = header(b"content-type", b"application/grpc")
    headers = frame(1, 4, 1, b"\x88" + grpc_type)
    update = lambda size: frame(8, 0, 0, size.to_bytes(4, "big"))
    compressed = b"\1\0\0\0\2\0\0"
    kinds = {
        "http1": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        "noise": bytes(random.Random(2).randbytes(4096)),
        "close": b"",
        "settings": settings + frame(4, 0, 0, b"\0\4\xff\xff\xff\xff"),
        "frame": settings + headers + frame(0, 0, 1, b"")[:5] + b"\xff" * 64,
        "oversize": settings + headers + b"\xff\xff\xff\0\0\0\0\0\1",
        "compressed": settings + headers + frame(0, 0, 1, compressed),
        "padded": settings + headers
                  + frame(0, 8, 1, b"\3" + compressed + b"\0" * 3),
        "pieces": settings + update(1000) + headers
                  + frame(8, 0, 1, b"\0\0\1\0") + frame(0, 0, 1, compressed),
        "early": settings + update(1000) + frame(0, 0, 1, compressed),
        "nothing": settings + headers + update(0),
        "window": settings + headers + update(0x7fffffff),
        "length": settings + headers + frame(0, 0, 1, b"\0\xff\xff\xff\xff"),
        "status": settings + frame(1, 4, 1, b"\x8d" + grpc_type),    # 404
        "type": settings + frame(1, 4, 1, b"\x88"
                                 + header(b"content-type", b"text/html")),
        "refused": settings + frame(
            1, 5, 1, b"\x88" + grpc_type + header(b"grpc-status", b"12")
            + header(b"grpc-message", b"no%20such%20method%0a%ff")),
        "goaway": settings + frame(7, 0, 0, b"\0\0\0\0\0\0\0\0"),
        "reset": settings + frame(3, 0, 1, b"\0\0\0\7"),
    }
    return kinds[kind]


async def serve_raw(worker, port):
    async def connected(reader, writer):
        worker.log("attach raw")
        data = raw_bytes(worker.options["raw"])
        size = 1 if worker.options["raw"] == "pieces" else len(data)
        with contextlib.suppress(OSError):
            for at in range(0, len(data), size or 1):
                writer.write(data[at:at + size])
                await asyncio.sleep(0.001)
        if worker.options["raw"] == "close":
            writer.close()
            return
        with contextlib.suppress(OSError):
            while await reader.read(65536):
                pass
        worker.log("detach")
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    return server, server.sockets[0].getsockname()[1]


class Names(asyncio.DatagramProtocol):
    def __init__(self, worker):
        self.worker = worker
        self.addresses = worker.options["dns"].split("|")

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, query, peer):
        end = query.index(b"\0", 12) + 5
        address = self.addresses[min(self.worker.releases,
                                     len(self.addresses) - 1)]
        known = address and query[end - 4:end - 2] == b"\0\1"    # A
        answer = (b"\xc0\x0c\0\1\0\1"
                  + self.worker.number("ttl", 1).to_bytes(4, "big") + b"\0\4"
                  + bytes(map(int, address.split(".")))) if known else b""
        self.transport.sendto(
            query[:2] + (b"\x81\x80" if known else b"\x81\x83") + b"\0\1"
            + (b"\0\1" if known else b"\0\0") + b"\0\0\0\0"
            + query[12:end] + answer, peer)


async def serve_names(worker):
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: Names(worker), local_addr=("127.0.0.1", 0))
    return transport.get_extra_info("sockname")[1]


async def serve(name, log, options, started):
    worker = Worker(name, log, options)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, worker.release)
    loop.add_signal_handler(signal.SIGHUP, worker.drain)
    port = worker.number("port", 0)
    if "dns" in options:
        started(await serve_names(worker))
        await asyncio.Event().wait()
    if "raw" in options:
        server, port = await serve_raw(worker, port)
        started(port)
        await asyncio.Event().wait()
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])

    async def attach(_, context):
        await Attach(worker, context).run()

    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(
        "pd.v1.Worker", {"Attach": grpc.stream_stream_rpc_method_handler(
            attach, request_deserializer=pd.ToWorker.FromString)}),))
    host = options.get("host", "127.0.0.1")
    port = server.add_insecure_port(f"{host}:{port}")
    await server.start()
    started(port)
    if "register" in options:
        await register(worker, port)
    await server.wait_for_termination()


def fork_worker(name, log, options):
    """A worker is a process: it can be stopped and killed like a real one."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        with os.fdopen(reader) as file:
            port = file.read()
        print(f"started {pid} {port}" if port else "failed", flush=True)
        return
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)    # PR_SET_PDEATHSIG
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.close(reader)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)

    def started(port):
        os.write(writer, str(port).encode())
        os.close(writer)

    try:
        if "frozen" in options:
            globals()["pd"] = load_messages(os.path.join(os.path.dirname(
                os.path.dirname(os.path.abspath(__file__))), "frozen",
                f"pd-{options['frozen']}.proto"), sys.argv[2])
        asyncio.run(serve(name, log, options, started))
    finally:
        os._exit(1)


def main():
    global pd
    pd = load_messages(sys.argv[1], sys.argv[2])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        words = line.split()
        options = dict(word.partition("=")[::2] for word in words[3:])
        fork_worker(words[1], words[2], options)


main()
