"""Peers that take long to have, and are measured where somebody has them:

    PD_BENCH_IK=DIR      the folder of ik_llama.cpp's programs, as t/bench/ik-llama prints it
    PD_BENCH_VLLM=VENV   a virtual environment with vLLM for the CPU, as t/bench/vllm-cpu prints it"""

import contextlib
import ctypes.util
import glob
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
START_SECONDS = 600


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def healthy(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


class Server:
    """A server in a session of its own; `seconds` from exec until it is healthy."""

    def __init__(self, command, port, poll, **options):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # whoever ends us ends it
        self.port = port
        self.log = tempfile.TemporaryFile()
        begin = time.perf_counter()
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        start_new_session=True, **options)
        try:
            while not healthy(port):
                if self.process.poll() is not None or time.perf_counter() - begin > START_SECONDS:
                    self.log.seek(0)
                    raise RuntimeError(f"{command[0]} does not get ready: {self.log.read()[-500:].decode(errors='replace')}")
                time.sleep(poll)
        except BaseException:
            self.stop()
            raise
        self.seconds = time.perf_counter() - begin

    def stop(self):
        for number in (signal.SIGTERM, signal.SIGCONT):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


# ---- ik_llama.cpp ----------------------------------------------------------------------------------

IK_NAME = "ik_llama.cpp, requantised Q8_0"


def ik_model(programs, model):
    """Its Q4_1 gives wrong text, so it gets the file that it is quickest with and right."""
    path = os.path.join(ROOT, "build/peers/ik-Q8_0.gguf")
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        subprocess.run([f"{programs}/llama-quantize", "--allow-requantize", model, path + ".part", "Q8_0"], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.rename(path + ".part", path)
    return path


def ik_start(programs, model, threads):
    """Seconds from exec to its first answered health check."""
    port = free_port()
    command = [f"{programs}/llama-server", "-m", model, "-t", str(threads), "-c", "8192", "--host", "127.0.0.1",
               "--port", str(port)]
    with Server(command, port, 0.001, cwd=os.path.join(ROOT, "build/peers")) as server:  # it leaves a log there
        return server.seconds


# ---- vLLM ------------------------------------------------------------------------------------------

VLLM_NAME = "vLLM on CPU, bf16"


class Vllm(Server):
    """vLLM's server, standing still but for what `asked` runs: its idle threads would be in the others' way."""

    def __init__(self, venv, model, threads):
        directory = os.path.join(ROOT, "build/peers/vllm-bf16")
        if not os.path.exists(f"{directory}/model.safetensors"):
            subprocess.run([f"{venv}/bin/python", os.path.join(ROOT, "t/bench/vllm_model.py"), os.path.abspath(model),
                            directory], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        loaded = glob.glob(f"{venv}/**/libiomp5.so", recursive=True)[:1]
        loaded += filter(None, [ctypes.util.find_library(name) for name in ("tcmalloc_minimal", "tcmalloc")][:1])
        cores = sorted(os.sched_getaffinity(0))[:threads]
        port = free_port()
        print("starting vLLM", file=sys.stderr)
        super().__init__([f"{venv}/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", directory,
                          "--served-model-name", "smollm2", "--dtype", "bfloat16", "--max-model-len", "8192",
                          "--no-enable-prefix-caching", "--host", "127.0.0.1", "--port", str(port)],
                         port, 0.5, cwd=directory,
                         env={**os.environ, "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
                              "VLLM_CPU_KVCACHE_SPACE": "1", "LD_PRELOAD": ":".join(loaded), "HF_HUB_OFFLINE": "1",
                              "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"})
        os.killpg(self.process.pid, signal.SIGSTOP)

    def asked(self, *command):
        """What a command prints last, as JSON, that finds the server as it would find a cluster."""
        os.killpg(self.process.pid, signal.SIGCONT)
        try:
            with tempfile.TemporaryDirectory() as nothing:
                out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True,
                                     env={**os.environ, "PD_URL": f"http://127.0.0.1:{self.port}/v1",
                                          "PD_DIR": nothing}).stdout
        finally:
            os.killpg(self.process.pid, signal.SIGSTOP)
        return json.loads(out.splitlines()[-1])


# ---- where they are --------------------------------------------------------------------------------

def named_by(variable, program, script, skipped, name):
    """The folder that a variable of the environment names, or None and a reason."""
    folder = os.environ.get(variable)
    if folder and os.access(os.path.join(folder, program), os.X_OK):
        return folder
    skipped.append((name, f"{variable}={folder} has no {program}" if folder else
                    f"{variable} names no folder; {script} makes one"))
    return None


def ik(skipped):
    return named_by("PD_BENCH_IK", "llama-server", "t/bench/ik-llama (tens of minutes)", skipped, IK_NAME)


def vllm(skipped):
    return named_by("PD_BENCH_VLLM", "bin/python", "t/bench/vllm-cpu (gigabytes)", skipped, VLLM_NAME)
