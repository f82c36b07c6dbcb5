"""pd-worker as a process: what it says and does between its command line and its end.

usage: test_worker.py MODEL
"""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from rig import BUILD, CANCELLED, PATIENCE, Frontend, Process, pd, stats, wait_for

MODEL = ""
PROGRAM = os.path.join(BUILD, "pd-worker")


def run(*arguments, **keywords):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=PATIENCE,
                          check=False, **keywords)


class Worker(Process):
    def __init__(self, folder, *arguments, model=None, kv="64MiB", **keywords):
        self.port_file = os.path.join(folder, "port")
        self.log = open(os.path.join(folder, "log"), "w+", encoding="utf-8")
        super().__init__([PROGRAM, "--model", model or MODEL, "--served-model-name", "m", "--port", "0",
                          "--port-file", self.port_file, "--kv-cache-memory", kv, *arguments],
                         stderr=self.log, **keywords)

    def wait_ready(self):
        wait_for(f"readiness, the log is {self.text()}", lambda: os.path.exists(self.port_file) or
                 self.child.poll() is not None, PATIENCE)
        with open(self.port_file, encoding="ascii") as file:
            self.address = f"127.0.0.1:{int(file.read())}"
        return self

    def text(self):
        with open(self.log.name, encoding="utf-8") as file:
            return file.read()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def listening_at(port):
    """The addresses, as the system writes them, at which somebody listens to that TCP port."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table, encoding="ascii") as file:
            rows = [line.split() for line in file.readlines()[1:]]
        found += [row[1].rsplit(":", 1)[0] for row in rows
                  if row[3] == "0A" and int(row[1].rsplit(":", 1)[1], 16) == port]
    return found


def scrape_text(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as page:
        return page.read().decode()


def scrape(port):
    samples = (line.rsplit(" ", 1) for line in scrape_text(port).splitlines() if line[0] != "#")
    return {name: float(value) for name, value in samples}


class CommandLine(unittest.TestCase):
    def test_help_and_version(self):
        for flag, word in (("--help", "--max-num-batched-tokens"), ("--version", "pd-worker 0.")):
            result = run(flag)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertIn(word, result.stdout)

    def complaint(self, *arguments, **keywords):
        """One line on stderr, nothing on stdout, status 1."""
        result = run(*arguments, **keywords)
        lines = [line for line in result.stderr.splitlines()
                 if not re.match(r"\S+Z (info|warn) ", line)]
        self.assertEqual((result.returncode, result.stdout, len(lines)), (1, "", 1), result.stderr)
        self.assertTrue(lines[0].startswith("pd-worker: "), lines[0])
        return lines[0]

    def test_every_failure_to_start_is_one_line_with_its_cure(self):
        self.assertIn("--model PATH", self.complaint())
        self.assertIn("did you mean --max-model-len?", self.complaint("--max_model_len", "5"))
        self.assertIn("/no/such.gguf", self.complaint("--model", "/no/such.gguf", "--port", "0"))
        self.assertIn("not a GGUF file", self.complaint("--model", PROGRAM, "--port", "0"))
        self.assertIn("made for", self.complaint("--model", MODEL, "--port", "0", "--max-model-len",
                                                 "100000"))
        self.assertIn("no address of this machine",
                      self.complaint("--model", MODEL, "--host", "192.0.2.1"))
        self.assertIn("cannot be resolved",
                      self.complaint("--model", MODEL, "--host", "no-such-host.invalid"))
        self.assertIn("/no/token", self.complaint("--model", MODEL, "--port", "0",
                                                  "--dispatcher-address", "127.0.0.1:1",
                                                  "--dispatcher-token-file", "/no/token",
                                                  "--kv-cache-memory", "16MiB"))
        self.assertIn("--port-file", self.complaint("--model", MODEL, "--port", "0", "--port-file",
                                                    "/no/folder/port", "--kv-cache-memory", "16MiB",
                                                    "--log-level", "error"))

    def test_a_port_in_use_is_found_before_the_model_is_loaded(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            line = self.complaint("--model", "/no/such.gguf", "--port",
                                  str(server.getsockname()[1]))
        self.assertIn("is in use: choose another --port", line)

    def test_too_few_files(self):
        line = self.complaint("--model", MODEL, "--port", "0", preexec_fn=lambda:
                              resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)))
        self.assertIn("ulimit -n", line)

    def test_a_public_address_is_warned_about(self):
        result = run("--model", "/no/such.gguf", "--host", "0.0.0.0", "--kv-bind", "127.0.0.1",
                     "--port", "0")
        self.assertIn("0.0.0.0 is not a private address", result.stderr)

    def test_check(self):
        result = run("--check", "--model", MODEL, "--served-model-name", "chat", "--role", "decode",
                     "--kv-cache-memory", "64MiB", "--max-model-len", "1024")
        self.assertEqual(result.returncode, 0, result.stderr)
        for pattern in (r"served as +chat, role decode", r"architecture +llama",
                        r"weights +[0-9a-f]{64}", r"layout +[0-9a-f]{64}",
                        r"longest sequence +1024 tokens", r"182 blocks of 16 tokens"):
            self.assertRegex(result.stdout, pattern)
        again = run("--check", "--model", MODEL, "--kv-cache-memory", "64MiB")
        find = re.compile(r"weights +([0-9a-f]{64})")
        self.assertEqual(find.search(result.stdout)[1], find.search(again.stdout)[1])
        self.assertEqual(run("--check", "--model", "/no/such.gguf").returncode, 1)

    def test_bytes_of_each_gpu_from_the_configuration_alone(self):
        """Qwen2.5-72B on 4 and 8 GPUs: what is divided, in bfloat16; biases and norms as f32."""
        shape = os.path.join(os.path.dirname(__file__), "..", "device", "shapes", "qwen2.5-72b")
        divided = 2 * 152064 * 8192 + 80 * ((64 + 16) * 128 * 8192 + 64 * 128 * 8192 + 3 * 29568 * 8192)
        for ranks in (4, 8):
            result = run("--check", "--load-format", "dummy", "--model", shape, "--tensor-parallel-size",
                         str(ranks), "--device", "cuda", "--max-model-len", "4096")
            weights = 2 * divided // ranks + 4 * 80 * 80 * 128 // ranks + 4 * 161 * 8192
            found = re.findall(r"^rank (\d) .*\((\d+) bytes\).* KV (\d+) bytes a token", result.stdout, re.M)
            self.assertEqual(found, [(str(r), str(weights), str(2 * 80 * 8 * 128 * 2 // ranks))
                                     for r in range(ranks)], result.stderr)
        refused = run("--check", "--load-format", "dummy", "--model", shape, "--tensor-parallel-size", "3")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("--tensor-parallel-size 3", refused.stderr)


class Life(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="pd-worker-")
        self.addCleanup(self.folder.cleanup)

    def start(self, *arguments, **keywords):
        worker = Worker(self.folder.name, *arguments, **keywords)
        self.addCleanup(worker.log.close)
        self.addCleanup(worker.kill)
        return worker.wait_ready()

    def attach(self, worker):
        frontend = Frontend(worker.address)
        self.addCleanup(frontend.close)
        frontend.wait_hello()
        return frontend

    def test_ready_line(self):
        worker = self.start("--name", "w1", "--role", "prefill", "--zone", "rack9")
        line = [line for line in worker.text().splitlines() if "pd-worker: ready" in line]
        self.assertEqual(len(line), 1)
        self.assertIn(f"address={worker.address} role=prefill model=m instance=w1", line[0])
        hello = self.attach(worker).wait_hello()
        self.assertEqual((hello.instance, hello.role, hello.zone, hello.model, hello.block_size),
                         ("w1", 1, "rack9", "m", 16))
        self.assertEqual(len(hello.fingerprint.layout), 32)
        self.assertGreater(hello.boot, 0)
        self.assertIn("kv=F16", hello.numerics_id)
        self.assertEqual(sorted(os.listdir(self.folder.name)), ["log", "port"])
        worker.child.send_signal(signal.SIGINT)
        self.assertEqual(worker.wait_exit(), 0)

    def start_small(self, heads, kv_heads, *arguments, **keywords):
        """On a model of that shape, with random weights."""
        shape = {"architectures": ["LlamaForCausalLM"], "hidden_size": 96, "intermediate_size": 512 if heads == 8 else 384,
                 "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 32, "num_hidden_layers": 1,
                 "vocab_size": 301, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "tie_word_embeddings": True}
        with open(os.path.join(self.folder.name, "config.json"), "w", encoding="ascii") as file:
            json.dump(shape, file)
        return self.start("--load-format", "dummy", *arguments, model=self.folder.name, **keywords)

    def numerics_of(self, heads, kv_heads, ranks):
        worker = self.start_small(heads, kv_heads, "--tensor-parallel-size", str(ranks), "--threads", str(ranks))
        numerics = self.attach(worker).wait_hello().numerics_id
        worker.kill()
        os.unlink(worker.port_file)
        return numerics

    def test_numerics_tell_of_ranks_only_where_they_change_bits(self):
        self.assertEqual(self.numerics_of(8, 4, 1), self.numerics_of(8, 4, 4))
        one, three = self.numerics_of(9, 3, 1), self.numerics_of(9, 3, 3)
        self.assertNotIn("tp=", one)
        self.assertEqual(three, one + " tp=3")

    def test_sigterm_lets_running_answers_end(self):
        worker = self.start()
        frontend = self.attach(worker)
        frontend.submit(1, text=b"Once upon a time", max_tokens=40)
        frontend.placed(1)
        worker.child.terminate()
        wait_for("the drain", lambda: frontend.of_kind("drain"))
        frontend.submit(2, text=b"x")
        self.assertEqual(frontend.failed(2).code, 6, "DRAINING")
        self.assertGreater(len(frontend.finished(1)[1]), 0)
        self.assertEqual(worker.wait_exit(), 0)
        self.assertIn("draining", worker.text())

    def long_answer(self, frontend):
        submit = pd.Submit(model="m", text=b"Count without end: 1 2 3")
        submit.sampling.max_tokens = 2000
        submit.sampling.ignore_eos = True
        data = submit.SerializeToString()
        frontend.put(pd.ToWorker(submit=pd.SubmitPart(request=1, attempt=1, data=data, last=True,
                                                      total=len(data))))
        frontend.placed(1)

    def test_metrics_say_what_stats_say(self):
        port = free_port()
        worker = self.start("--metrics-port", str(port), "--name", "w1")
        frontend = self.attach(worker)
        frontend.submit(1, text=b"Once upon a time", max_tokens=5)
        frontend.finished(1)
        wait_for("the count", lambda: stats(worker.address)[0]["tokens_decoded"] == 4)
        page = scrape(port)
        counters = stats(worker.address)[0]
        for name, counter in (("prompt_tokens_total", "prompt_tokens"),
                              ("prefill_tokens_total", "tokens_prefilled"),
                              ("generation_tokens_total", "tokens_decoded"),
                              ("requests_total", "requests"), ("kv_blocks", "kv_blocks"),
                              ("preemptions_total", "preemptions"),
                              ("cache_evictions_total", "cache_evictions"),
                              ("prefix_cache_hit_tokens_total", "cache_hit_tokens"),
                              ("prefix_cache_offered_tokens_total", "offered_tokens"),
                              ("prefix_cache_borrowed_tokens_total", "borrowed_tokens"),
                              ("prefill_chunk_tokens", "prefill_chunk_tokens")):
            key = f'pd_worker_{name}{{model_name="m",instance_name="w1",role="mixed"}}'
            self.assertEqual(page[key], counters[counter], name)
        delay = page['pd_worker_step_delay_seconds_total{model_name="m",instance_name="w1",role="mixed"}']
        self.assertAlmostEqual(delay * 1e6, counters["steps_delay_us"], delta=1)
        ends = [value for key, value in page.items() if key.startswith("pd_worker_requests_ended")]
        self.assertEqual((sorted(ends), counters["ended_length"]), ([0, 0, 0, 1], 1))
        wait_for("the line of a second's work", lambda: re.search(
            r"engine: \d+ steps in [\d.]+ s, longest \d+ ms: 4 tokens of prompts", worker.text()))

    def test_what_a_crowded_pool_costs_is_told_everywhere(self):
        """Four answers of 120 tokens in 20 blocks of 16: some are preempted, and what they leave is evicted."""
        port = free_port()
        worker = self.start_small(8, 4, "--metrics-port", str(port), "--name", "w1", "--max-model-len", "160", kv="170000")
        frontend = self.attach(worker)
        for i in range(1, 5):
            frontend.submit(i, text=b"twenty bytes: %06d" % (i * 111111), max_tokens=100)
        for i in range(1, 5):
            frontend.finished(i)
        wait_for("the end", lambda: stats(worker.address)[0]["ended_length"] == 4)
        counters, page = stats(worker.address)[0], scrape(port)
        self.assertGreater(counters["preemptions"], 0)
        self.assertGreater(counters["cache_evictions"], 0)
        for name, counter in (("preemptions_total", "preemptions"), ("cache_evictions_total", "cache_evictions")):
            self.assertEqual(page[f'pd_worker_{name}{{model_name="m",instance_name="w1",role="mixed"}}'], counters[counter])
        wait_for("the log's lines", lambda: counters["preemptions"] == sum(
            int(n) for n in re.findall(r"; (\d+) preempted, \d+ cached blocks evicted", worker.text())))

    def test_metrics_stay_inside(self):
        port = free_port()
        self.start("--host", "0.0.0.0", "--kv-bind", "127.0.0.1", "--metrics-port", str(port))
        self.assertEqual(listening_at(port), ["0100007F"])

    def test_the_metrics_port_takes_nothing_else(self):
        port = free_port()
        worker = self.start("--metrics-port", str(port))
        url = f"http://127.0.0.1:{port}"
        for path, data, status in (("/", None, 404), ("/metrics/", None, 404), ("/metrics", b"x", 405)):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(url + path, data, timeout=PATIENCE)
            self.assertEqual(refused.exception.code, status)
            refused.exception.close()
        for garbage in (b"\x16\x03\x01" * 1000, b"GET /metrics HTTP/1.1\r\nA: " + b"x" * 100000, b""):
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as peer:
                try:
                    peer.sendall(garbage)
                except OSError:
                    pass  # it hung up, which is its right
        self.assertIn("# TYPE pd_worker_steps_total counter\n", scrape_text(port))
        self.assertIn(f"--metrics-port {port} cannot be listened on at 127.0.0.1",
                      run("--model", MODEL, "--port", "0", "--kv-cache-memory", "16MiB",
                          "--metrics-port", str(port)).stderr)
        worker.child.terminate()
        self.assertEqual(worker.wait_exit(), 0)

    def test_drain_has_a_deadline(self):
        worker = self.start("--drain-timeout", "1")
        frontend = self.attach(worker)
        self.long_answer(frontend)
        worker.child.terminate()
        self.assertEqual(worker.wait_exit(PATIENCE), 0)
        self.assertEqual(frontend.failed(1).code, CANCELLED)
        self.assertIn("still busy after 1 s", worker.text())

    def test_a_second_sigterm_ends_at_once(self):
        worker = self.start("--drain-timeout", "600")
        frontend = self.attach(worker)
        self.long_answer(frontend)
        worker.child.terminate()
        wait_for("the drain", lambda: frontend.of_kind("drain"))
        start = time.monotonic()
        worker.child.terminate()
        self.assertEqual(worker.wait_exit(), 1)
        self.assertLess(time.monotonic() - start, 10)
        self.assertIn("ending at once", worker.text())

    def test_cancel_gives_everything_back(self):
        worker = self.start()
        frontend = self.attach(worker)
        total = stats(worker.address)[0]["kv_blocks"]
        self.long_answer(frontend)
        wait_for("tokens", lambda: frontend.steps(1))
        frontend.cancel(1)
        self.assertEqual(frontend.failed(1).code, CANCELLED)
        wait_for("a whole pool", lambda: stats(worker.address)[1].load.kv_free == total)

    def test_a_lost_frontend_gives_everything_back(self):
        worker = self.start()
        frontend = self.attach(worker)
        total = stats(worker.address)[0]["kv_blocks"]
        self.long_answer(frontend)
        frontend.close()
        wait_for("a whole pool", lambda: stats(worker.address)[1].load.kv_free == total)
        self.assertEqual(stats(worker.address)[0]["attempts_running"], 0)


if __name__ == "__main__":
    MODEL = os.path.abspath(sys.argv.pop(1))
    unittest.main()
