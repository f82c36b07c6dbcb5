"""Three frontends, each an nginx of its own, before the same workers: who takes itself out, and who does not.

    frontends.py    (PD_BUILD names the built tree)

The workers are t/lib's fake ones, so that it is known how many answers fail. Between each frontend and each worker
lies a proxy, which can cut that frontend off.

    workers that fail one answer in ten: all frontends are equally bad, so none leaves, and no worker is worse
    one worker of two fails one in five: each frontend ejects that one, and none leaves
    one frontend is cut off: that one leaves, no other; its canaries bring it back
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("PD_BUILD", os.path.join(TOP, "build")))
NGINX = os.path.join(BUILD, "nginx", "objs", "nginx")
PATIENCE = float(os.environ.get("PD_PATIENCE", 30))

CONF = """load_module {build}/ngx_http_pd_module.so;
daemon off;
worker_processes 2;
{user}
error_log {root}/error.log info;
pid {root}/nginx.pid;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {root}/body; proxy_temp_path {root}/proxy; fastcgi_temp_path {root}/fastcgi;
    uwsgi_temp_path {root}/uwsgi; scgi_temp_path {root}/scgi;
    pd_zone pd:1m;
    pd_cluster chat {{
        {workers}
        policy round_robin;
        queue 100 timeout=300ms;
        ejection faults=1000 answers=20 backoff=1h;
        readiness requests=40 window=1m out=1s;
    }}
    server {{
        listen unix:{root}/socket;
        location /v1/ {{ pd_pass chat; pd_failover_buffer 0; }}
        location = /health/ready {{ pd_health ready; }}
    }}
}}
"""


class Workers:
    """The fake workers' process; a worker's address is given by its port."""

    def __init__(self, root):
        self.root = root
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(TOP, "t/lib/fake_worker.py"), os.path.join(TOP, "proto/pd.proto"), BUILD],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, name, options):
        print(f"start {name} {self.root}/{name}.log {options}", file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline().split()[2])

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


class Way:
    """From one frontend to one worker: a TCP proxy that can be cut."""

    def __init__(self, port):
        self.port = port
        self.open = True
        self.writers = set()
        self.tasks = set()

    async def listen(self):
        self.server = await asyncio.start_server(self.connected, "127.0.0.1", 0)
        return self.server.sockets[0].getsockname()[1]

    def connected(self, reader, writer):
        task = asyncio.create_task(self.carry(reader, writer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def carry(self, reader, writer):
        if not self.open:
            writer.transport.abort()
            return
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers |= {writer, there_writer}
        await asyncio.gather(self.copy(reader, there_writer), self.copy(there_reader, writer))
        self.writers -= {writer, there_writer}

    async def copy(self, reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    async def stop(self):
        self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def cut(self):
        self.open = False
        for writer in self.writers:
            writer.transport.abort()

    def heal(self):
        self.open = True


class Frontend:
    def __init__(self, root):
        self.root = root
        os.makedirs(root)

    async def start(self, ports):
        self.ways = [Way(port) for port in ports]
        self.ports = [await way.listen() for way in self.ways]
        workers = [f"worker 127.0.0.1:{port};" for port in self.ports]
        with open(f"{self.root}/nginx.conf", "w") as file:
            file.write(CONF.format(build=BUILD, root=self.root, workers=" ".join(workers),
                                   user="user root;" if os.geteuid() == 0 else ""))
        binary = NGINX if os.access(NGINX, os.X_OK) else "/usr/sbin/nginx"
        self.process = subprocess.Popen(
            [binary, "-p", self.root, "-c", f"{self.root}/nginx.conf", "-e", f"{self.root}/error.log"],
            env=dict(os.environ, ASAN_OPTIONS="detect_odr_violation=0:detect_leaks=0"))

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def log(self):
        with open(f"{self.root}/error.log", encoding="utf-8", errors="replace") as file:
            return file.read()

    async def ask(self, line, body=b""):
        """The answer's status and body; status 0: nginx is not there yet."""
        try:
            reader, writer = await asyncio.open_unix_connection(f"{self.root}/socket")
        except OSError:
            return 0, b""
        writer.write(f"{line} HTTP/1.1\r\nHost: f\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
                     .encode() + body)
        raw = await asyncio.wait_for(reader.read(-1), PATIENCE)
        writer.close()
        head, _, rest = raw.partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]), rest

    async def complete(self):
        return await self.ask("POST /v1/completions", json.dumps(
            {"model": "m", "prompt": "hello", "max_tokens": 3}).encode())

    async def ready(self):
        """200 or 503, and what it says of the cluster."""
        status, body = await self.ask("GET /health/ready")
        return status, json.loads(body)["clusters"]["chat"] if body else "absent"


async def until(what, condition):
    deadline = time.monotonic() + PATIENCE
    while not await condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        await asyncio.sleep(0.05)


class House:
    """Workers, and three frontends that are ready."""

    def __init__(self, root, **workers):
        self.workers = Workers(root)
        self.ports = [self.workers.start(name, options) for name, options in workers.items()]
        self.frontends = [Frontend(f"{root}/f{i}") for i in range(3)]

    async def __aenter__(self):
        for frontend in self.frontends:
            await frontend.start(self.ports)

        async def all_ready():
            return [await frontend.ready() for frontend in self.frontends] == [(200, "ready")] * 3
        await until("three frontends are ready", all_ready)
        return self.frontends

    async def __aexit__(self, *_):
        for frontend in self.frontends:
            frontend.stop()
            for way in frontend.ways:
                await way.stop()
            for line in frontend.log().splitlines():
                assert not any(word in line for word in ("[alert]", "[emerg]", "[crit]", "Sanitizer")), line
        self.workers.stop()


async def equally_bad(root):
    os.makedirs(root)
    async with House(root, p0="role=prefill", d0="role=decode fail=INTERNAL every=10",
                     d1="role=decode fail=INTERNAL every=10") as frontends:
        counts = {}
        for _ in range(60):    # in turns, so that each has as many of those that fail
            for frontend in frontends:
                status, _ = await frontend.complete()
                counts[status] = counts.get(status, 0) + 1
        # one in ten of either worker's: 18 of 180, or 17 where both have begun another ten
        assert counts[500] in (17, 18) and counts[200] + counts[500] == 180, counts

        async def all_degraded():
            return [await frontend.ready() for frontend in frontends] == [(200, "degraded")] * 3
        await until("all are degraded", all_degraded)
        await asyncio.sleep(2.5)    # until each has heard of all that the others have told
        for frontend in frontends:
            assert await frontend.ready() == (200, "degraded"), await frontend.ready()
            assert "takes itself out" not in frontend.log()
            assert "is ejected" not in frontend.log()
        print("workers that fail one in ten: three frontends degraded, none out, no worker ejected")


async def one_is_worse(root):
    os.makedirs(root)
    async with House(root, p0="role=prefill", d0="role=decode fail=INTERNAL every=5", d1="role=decode") as frontends:
        async def all_have_ejected():
            for frontend in frontends:
                await frontend.complete()
            return all(" is ejected: " in frontend.log() for frontend in frontends)
        await until("d0 is ejected by all", all_have_ejected)
        for frontend in frontends:
            assert {(await frontend.complete())[0] for _ in range(20)} == {200}
            log = frontend.log()
            assert log.count(" is ejected: ") == 1 and f'"127.0.0.1:{frontend.ports[1]}" is ejected' in log, log
            assert "takes itself out" not in log
            assert (await frontend.ready())[0] == 200
        print("one of two decode workers fails one in five: it is ejected, and no frontend is out")


async def one_cut_off(root):
    os.makedirs(root)
    async with House(root, p0="role=prefill", d0="role=decode", d1="role=decode") as frontends:
        going, seen = True, [set(), set(), set()]

        async def load(frontend):
            while going:
                await frontend.complete()
                await asyncio.sleep(0.02)

        async def watch(frontend, states):
            while going:
                states.add(await frontend.ready())
                await asyncio.sleep(0.05)

        async def said(what):
            return what in frontends[0].log()

        async def is_ready():
            return await frontends[0].ready() == (200, "ready")

        tasks = [asyncio.create_task(task) for frontend, states in zip(frontends, seen) for task in
                 [load(frontend), load(frontend), load(frontend), watch(frontend, states)]]
        await asyncio.sleep(1)
        for way in frontends[0].ways:
            way.cut()
        await until("it has no pair", lambda: said("this frontend is not ready"))
        await asyncio.sleep(2.5)    # its requests fail meanwhile
        for way in frontends[0].ways:
            way.heal()
        await until("it takes itself out", lambda: said("this frontend takes itself out"))
        await until("it is back", lambda: said("this frontend is back in cluster \"chat\": 20 of 20 canaries sang"))
        await until("it is ready", is_ready)
        going = False
        for task in tasks:
            await task
        assert {(503, "waiting"), (503, "away"), (200, "ready")} <= seen[0], seen[0]
        assert seen[1] == seen[2] == {(200, "ready")}, seen
        print("one frontend cut off: that one left and came back, the others stayed")


async def main():
    with tempfile.TemporaryDirectory(prefix="pd-frontends-") as root:
        try:
            await equally_bad(f"{root}/bad")
            await one_is_worse(f"{root}/worse")
            await one_cut_off(f"{root}/cut")
        except BaseException:
            subprocess.run(["tail", "-n", "30"] + [
                os.path.join(path, name) for path, _, names in os.walk(root) for name in names
                if name == "error.log"], check=False)
            raise


asyncio.run(main())
