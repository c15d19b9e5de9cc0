"""An executable that plays `docker`: it records each call and keeps containers as processes.

FAKE_DOCKER is a folder: `calls.jsonl` gets {argv, env} of each call, `NAME.json` is a container,
`images` lists what is there, `fail` holds {command: [exit code, message]}. A container is a process
that is no child of the caller, as with the real daemon, and runs `support.fake_vllm`.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any


def install(folder: Path, home: Path) -> Path:
    """Put the executable in a folder, with its state in another, and give its path."""
    folder.mkdir(parents=True, exist_ok=True)
    home.mkdir(parents=True, exist_ok=True)
    script = folder / "docker"
    tests = Path(__file__).resolve().parent.parent
    script.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(tests)!r})\n"
        "from support.fake_docker import main\nmain()\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def calls(home: Path) -> list[dict[str, Any]]:
    with suppress(FileNotFoundError):
        return [json.loads(line) for line in (home / "calls.jsonl").read_text().splitlines()]
    return []


def main() -> None:
    home = Path(os.environ["FAKE_DOCKER"])
    arguments = sys.argv[1:]
    with (home / "calls.jsonl").open("a") as file:
        file.write(json.dumps({"argv": arguments, "env": dict(os.environ)}) + "\n")
    command = arguments[0]
    with suppress(FileNotFoundError):
        failures = json.loads((home / "fail").read_text())
        if command in failures:
            code, message = failures[command]
            print(message, file=sys.stderr)
            sys.exit(code)
    if command == "run":
        _run(home, arguments[1:])
    elif command == "image":
        if arguments[-1] not in _images(home):
            print(f"Error response from daemon: No such image: {arguments[-1]}", file=sys.stderr)
            sys.exit(1)
        print("sha256:0")
    elif command == "load":
        tar = Path(arguments[arguments.index("--input") + 1])
        name = tar.read_text().strip()
        (home / "images").write_text("\n".join([*_images(home), name]))
        print(f"Loaded image: {name}")
    elif command == "info":
        print(json.dumps({"Runtimes": {"nvidia": {}, "runc": {}}}))
    else:
        _on_container(home, command, arguments)


def _images(home: Path) -> list[str]:
    with suppress(FileNotFoundError):
        return (home / "images").read_text().split()
    return []


def _on_container(home: Path, command: str, arguments: list[str]) -> None:
    record = home / f"{arguments[-1]}.json"
    if not record.exists():
        print(f"Error: No such container: {arguments[-1]}", file=sys.stderr)
        sys.exit(1)
    container = json.loads(record.read_text())
    if command == "inspect":
        template = arguments[arguments.index("--format") + 1]
        name = template.split('"')[1]
        print(container["labels"].get(name, ""))
    elif command in {"stop", "rm"}:
        with suppress(ProcessLookupError):
            os.kill(container["pid"], signal.SIGTERM if command == "stop" else signal.SIGKILL)
        deadline = time.monotonic() + 5
        while _alive(container["pid"]) and time.monotonic() < deadline:
            time.sleep(0.02)
        if _alive(container["pid"]):
            os.kill(container["pid"], signal.SIGKILL)
        if command == "rm" or container["remove"]:
            record.unlink(missing_ok=True)
        print(arguments[-1])


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] not in "ZX"
    except FileNotFoundError:
        return False


_WITH_VALUE = {
    "--name", "--label", "--gpus", "--publish", "--volume", "--env", "--entrypoint", "--pull",
}  # fmt: skip


def _run(home: Path, arguments: list[str]) -> None:
    options: dict[str, list[str]] = {}
    while arguments[0].startswith("--"):
        flag = arguments.pop(0)
        options.setdefault(flag, []).append(arguments.pop(0) if flag in _WITH_VALUE else "")
    image, *inside = arguments
    if options.get("--pull") == ["never"] and image not in _images(home):
        print(f"docker: Error response from daemon: No such image: {image}.", file=sys.stderr)
        sys.exit(125)
    # Only what was named gets into the container.
    env = {name: os.environ[name] for name in options.get("--env", []) if name in os.environ}
    env |= {name: os.environ[name] for name in ("FAKE_VLLM", "PATH") if name in os.environ}
    address, outer, _ = options["--publish"][0].split(":")
    inside[inside.index("--port") + 1] = outer
    inside[inside.index("--host") + 1] = address
    name = options["--name"][0]
    log = home / f"{name}.log"
    tests = str(Path(__file__).resolve().parent.parent)
    # Started through a process that ends at once, so that it belongs to nobody here.
    launcher = (
        "import json, os, subprocess, sys\n"
        "argv, env, log, out = json.loads(sys.argv[1])\n"
        "p = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=open(log, 'wb'),\n"
        "                     stderr=subprocess.STDOUT, start_new_session=True, cwd='/')\n"
        "print(p.pid)\n"
    )
    code = (
        f"import sys; sys.path.insert(0, {tests!r}); sys.argv[1:] = {inside!r}\n"
        "from support.fake_vllm import main; main()"
    )
    command = [sys.executable, "-c", code]
    pid = int(
        subprocess.run(
            [sys.executable, "-c", launcher, json.dumps([command, env, str(log), ""])],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    labels = dict(label.split("=", 1) for label in options.get("--label", []))
    record = home / f"{name}.json"
    record.write_text(json.dumps({"pid": pid, "labels": labels, "remove": "--rm" in options}))
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    shown = 0
    while True:
        alive = _alive(pid)
        text = log.read_text()
        sys.stdout.write(text[shown:])
        sys.stdout.flush()
        shown = len(text)
        if not alive:
            break
        time.sleep(0.05)
    record.unlink(missing_ok=True)
    sys.exit(json.loads(env.get("FAKE_VLLM", "{}")).get("exit", 0))


if __name__ == "__main__":
    main()
