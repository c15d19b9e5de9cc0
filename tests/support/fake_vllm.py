"""An executable that plays `vllm serve` as a script says, for tests of the managed server.

The script is JSON in the variable FAKE_VLLM:

    record      a file; each start appends {argv, env, pid} as a line
    lines       printed at the start
    exit        the exit code, before anything listens
    second      the exit code of the one that is started beside a first
    second_hangs  that one never listens
    second_dies   a file; when it appears that one dies, and dies at each start
    delay       seconds before it listens
    not_ready   seconds of /health 503 after that
    empty       seconds of an empty model list after that
    model_id    the id in /v1/models instead of the served name
    max_num_seqs, owned_by    further fields of the entry in /v1/models
    no_listen   never listen
    grandchild  "group": a child that ignores SIGTERM; "session": one that also left the group
    only        a lock file: exit 1 if another one is alive
    deaf        ignore SIGTERM
    poison      a text in the request that ends the process
    sick        a file; while it exists, /health is 503
    die         a file; when it appears, the process ends with code 3
    die_once    like die, but the file is removed first
    no_auth     take any key
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def install(folder: Path, *, version: str | None = None) -> Path:
    """Make an environment with `bin/vllm`, and give the path of the executable."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    script = folder / "bin" / "vllm"
    tests = Path(__file__).resolve().parent.parent
    script.write_text(
        f"#!{sys.executable}\n"
        f"import sys\nsys.path.insert(0, {str(tests)!r})\n"
        "from support.fake_vllm import main\nmain()\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    if version:
        (folder / "lib/python3.12/site-packages" / f"vllm-{version}.dist-info").mkdir(parents=True)
    return script


def main() -> None:
    script: dict[str, Any] = json.loads(os.environ.get("FAKE_VLLM", "{}"))
    arguments = sys.argv[1:]
    if path := script.get("record"):
        line = json.dumps({"argv": arguments, "env": dict(os.environ), "pid": os.getpid()})
        with Path(path).open("a") as file:
            file.write(line + "\n")
    if path := script.get("only"):
        lock = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("a sibling is alive: Free memory on device is less than desired", flush=True)
            sys.exit(1)
    for line in script.get("lines", ()):
        print(line, flush=True)
    if Path.cwd().name.endswith("-1"):
        if "second" in script:
            sys.exit(script["second"])
        script["no_listen"] = script.get("second_hangs")
        if path := script.get("second_dies"):
            script["die"] = path
    if "exit" in script:
        sys.exit(script["exit"])
    if script.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if kind := script.get("grandchild"):
        _grandchild(kind)
    time.sleep(script.get("delay", 0))
    if script.get("no_listen"):
        while True:
            time.sleep(1)
    _serve(arguments, script)


def _grandchild(kind: str) -> None:
    if os.fork() == 0:
        if kind == "session":
            os.setsid()
            if os.fork():
                os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # Like setproctitle, which wipes what /proc shows of the environment.
        os.execve(sys.executable, [sys.executable, "-c", _SLEEPER], {"PATH": os.environ["PATH"]})


_SLEEPER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def _flag(arguments: list[str], name: str, default: str) -> str:
    return arguments[arguments.index(name) + 1] if name in arguments else default


def _die(script: dict[str, Any]) -> None:
    for name in ("die", "die_once"):
        if script.get(name) and Path(script[name]).exists():
            if name == "die_once":
                Path(script[name]).unlink()
            print("CUDA error: an illegal memory access was encountered", flush=True)
            os._exit(3)


def _serve(arguments: list[str], script: dict[str, Any]) -> None:
    began = time.monotonic()
    # Before it listens: one that is to die must not be seen ready in between.
    _die(script)
    key = os.environ.get("VLLM_API_KEY", "")
    model = script.get("model_id") or _flag(arguments, "--served-model-name", "model")
    sick_for = float(script.get("not_ready", 0))
    empty_for = sick_for + float(script.get("empty", 0))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: Any) -> None:
            pass

        def reply(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def allowed(self) -> bool:
            given = self.headers.get("Authorization", "")
            if key and not script.get("no_auth") and given != f"Bearer {key}":
                self.reply(401, {"error": "Unauthorized"})
                return False
            return True

        def do_GET(self) -> None:
            past = time.monotonic() - began
            if self.path == "/health":
                sick = past < sick_for or (script.get("sick") and Path(script["sick"]).exists())
                self.reply(503 if sick else 200, {})
            elif not self.path.startswith("/v1/"):
                self.reply(200 if self.path == "/version" else 404, {"version": "9.9.9"})
            elif self.allowed():
                entry = {
                    "id": model,
                    "object": "model",
                    "owned_by": script.get("owned_by", "vllm"),
                    "max_model_len": 8192,
                }
                if "max_num_seqs" in script:
                    entry["max_num_seqs"] = script["max_num_seqs"]
                self.reply(200, {"object": "list", "data": [] if past < empty_for else [entry]})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            if not self.allowed():
                return
            if script.get("poison") and script["poison"] in body:
                os._exit(3)
            text = "<|ref|>text<|/ref|><|det|>[[100, 100, 900, 200]]<|/det|>\nHello page  \n\n"
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
            usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
            self.reply(
                200,
                {
                    "id": "x",
                    "object": "chat.completion",
                    "created": 1,
                    "model": model,
                    "choices": [choice],
                    "usage": usage,
                },
            )

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    host, port = _flag(arguments, "--host", "127.0.0.1"), int(_flag(arguments, "--port", "8000"))
    try:
        server = Server((host, port), Handler)
    except OSError as error:
        print(f"OSError: [Errno 98] {error.strerror}", flush=True)
        sys.exit(1)
    print("Application startup complete.", flush=True)
    if not script.get("deaf"):
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while True:
        time.sleep(0.05)
        _die(script)


if __name__ == "__main__":
    main()
