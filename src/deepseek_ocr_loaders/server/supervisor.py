"""The process that owns a server, so that nothing depends on how a user's program ends.

It starts the engine in a session of its own, drains its output, says in `state.json` where the
server is, restarts it when it died, and ends every process of it when no lease is left. Should
this process itself be killed, a reaper that it forked at its start does the ending. It has one
thread and imports little: it must start at once, and fork safely.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepseek_ocr_loaders.engines.gpu import gpu_processes
from deepseek_ocr_loaders.engines.select import engine_named
from deepseek_ocr_loaders.errors import ServerStartError
from deepseek_ocr_loaders.server import lease, probe
from deepseek_ocr_loaders.server.diagnose import explain
from deepseek_ocr_loaders.server.locks import LockTimeoutError, exclusive, try_lock
from deepseek_ocr_loaders.server.log import EngineLog
from deepseek_ocr_loaders.server.processes import (
    Family,
    ProcessId,
    boot,
    end,
    identify,
    listens,
    members,
)
from deepseek_ocr_loaders.server.state import ServerFolder, ServerState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from deepseek_ocr_loaders.engines.base import LaunchPlan, ServerOptions

__all__ = ["BACKOFF", "Supervisor", "main"]

BACKOFF = (0.0, 2.0, 5.0, 10.0, 20.0)
"""Seconds before each restart; as many restarts as there are entries."""
FORGIVEN = 120.0
"""Seconds of health after which earlier deaths no longer count."""
GRACE = 5.0
"""Seconds between asking a process to end and killing it."""
TICK = 0.2
HEALTH_EVERY = 2.0
SILENT_LIMIT = 120.0
"""Seconds without any reply of `/health` after which an engine counts as stuck."""
MODEL_GRACE = 5.0
"""Seconds that a healthy engine has to list the model."""
PORT_TRIES = 5
_SECRET_NAMES = ("TOKEN", "KEY", "SECRET", "PASSWORD")


class _Stop(Exception):  # noqa: N818 - it is no error
    """The server is to end: nobody uses it, or it was told to."""


class _Failure(Exception):  # noqa: N818 - it carries one
    def __init__(self, kind: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.record = {
            "kind": kind,
            "message": message,
            "hint": "",
            "exit_code": None,
            "log_tail": "",
            **details,
        }


class _PortTaken(Exception):  # noqa: N818 - handled where it is raised
    pass


class Supervisor:
    """Owns one server.

    Args:
        folder: Where its state lives.
        run: The name of this life of it.
        options: What is started.
    """

    def __init__(self, folder: ServerFolder, run: str, options: ServerOptions) -> None:
        me = identify(os.getpid())
        assert me is not None  # noqa: S101 - this process exists
        before = folder.read()
        self.folder = folder
        self.options = options
        self.me: ProcessId = me
        self.engine = engine_named(options.engine)
        self.child: subprocess.Popen[bytes] | None = None
        self.told_to_stop = False
        self.linger = lease.LINGER
        self.unused_since: float | None = None
        self.reaper: tuple[int, int] | None = None
        self.looked = 0.0
        key = secrets.token_urlsafe(32)
        hidden = [
            text
            for name, text in (*os.environ.items(), *options.env)
            if any(word in name.upper() for word in _SECRET_NAMES)
        ]
        self.log = EngineLog(folder.log, [key, *hidden])
        self.state = ServerState(
            run=run,
            phase="starting",
            family=Family(boot=boot(), marker=f"deepseek-ocr-{run}", owner=me),
            supervisor=me,
            engine=options.engine,
            model=options.model,
            api_key=key,
            # Counted on over all lives, so that a late error of an old one fits no new one.
            generation=before.generation if before else 0,
            copy=options.copy,
            since=time.time(),
        )

    # --- the life of the server ---------------------------------------------------------------

    def live(self) -> None:
        """Start the engine, keep it alive while it is used, end it."""
        signal.signal(signal.SIGTERM, self._on_signal)
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        _adopt_orphans()
        self._publish()
        self._fork_reaper()
        failure: dict[str, Any] = {}
        try:
            self._serve()
        except _Stop as reason:
            failure = {"kind": "stopped", "message": str(reason)}
            self.log.note(str(reason))
        except _Failure as error:
            failure = error.record
            self.log.note(failure["message"])
        except BaseException:  # noqa: BLE001 - whatever it was, users are told and processes ended
            failure = {
                "kind": "start",
                "message": "The supervisor of the server failed.",
                "log_tail": traceback.format_exc()[-8000:],
            }
        finally:
            self._finish(failure)

    def _finish(self, failure: dict[str, Any]) -> None:
        self.state.phase = "stopping"
        self._publish()
        left = self._end_engine()
        if left:
            failure["message"] += f" These processes could not be ended: {[p.pid for p in left]}."
        if not self.folder.path.is_dir():
            self._dismiss_reaper()
            return
        with suppress(OSError, LockTimeoutError), exclusive(self.folder.gate, timeout=10):
            lease.scan(self.folder, tidy=True)
            self.folder.keep.unlink(missing_ok=True)
            self.folder.forget_options()
            self.state.phase = "stopped" if failure.get("kind") == "stopped" else "failed"
            self.state.failure = failure
            self.state.api_key = ""
            self._publish()
        self.log.close()
        self._dismiss_reaper()

    def _serve(self) -> None:
        deaths = 0
        while True:
            try:
                self._start()
                began = time.monotonic()
                self.state.phase = "ready"
                self.state.stage = ""
                self._publish()
                failure = self._watch()
                if time.monotonic() - began > FORGIVEN:
                    deaths = 0
            except _Failure as error:
                # A server that never was ready is not tried again: the cause would be the same.
                if self.state.restarts == 0:
                    raise
                failure = error
            deaths += 1
            self.log.note(str(failure))
            self.state.phase = "restarting"
            self.state.stage = "ending what is left of the old process"
            self._publish()
            pids = {found.pid for found in members(self.state.family)}
            self._end_engine()
            if deaths > len(BACKOFF):
                failure.record["kind"] = "died"
                failure.record["message"] = (
                    f"The server died {deaths} times and is not started again. "
                    f"{failure.record['message']}"
                )
                raise failure
            self._await_gpu(pids)
            self.state.restarts += 1
            self.state.stage = f"restarting, {deaths} of {len(BACKOFF)}"
            self._publish()
            self._pause(BACKOFF[deaths - 1])
            self.log.forget()

    def _start(self) -> None:
        """Start the engine and wait until it is ready."""
        for attempt in range(PORT_TRIES):
            port = self.options.port or _free_port()
            if self.options.port and not _can_bind(port):
                raise self._port_failure(port)
            try:
                plan = self.engine.plan(self.options, port=port, api_key=self.state.api_key)
            except ServerStartError as error:
                msg = "start"
                raise _Failure(
                    msg, error.message, hint=error.hint, log_tail=error.log_tail
                ) from error
            for command in plan.before:
                self._run_before(command, plan)
            self._launch(plan, port)
            try:
                self._await_ready(plan, port)
            except _PortTaken:
                self._end_engine()
                if self.options.port or attempt == PORT_TRIES - 1:
                    raise self._port_failure(port) from None
                self.log.note(f"port {port} was taken by another program, trying the next")
                self.log.forget()
            else:
                return

    def _port_failure(self, port: int) -> _Failure:
        message = (
            f"Port {port} is in use by another program. Leave port unset to take a free one, or "
            "end the other; to use a server that someone else runs, give its address as base_url."
        )
        return _Failure("port", message, hint=message, log_tail=self.log.tail)

    def _run_before(self, command: Sequence[str], plan: LaunchPlan) -> None:
        self._spawn(command, plan.env)
        while self.child is not None and self.child.poll() is None:
            self._pause(TICK)
        code = self.child.returncode if self.child else 0
        self._drain_rest()
        if code:
            msg = f"`{' '.join(command[:2])}` failed"
            raise self._start_failure(msg, code)

    def _launch(self, plan: LaunchPlan, port: int) -> None:
        self.state.port = port
        self.state.generation += 1
        self.state.family.container = plan.container
        if plan.container:
            self.state.family.docker = plan.argv[0]
        self._spawn(plan.argv, plan.env)

    def _spawn(self, argv: Sequence[str], env: Any) -> None:
        me = os.getpid()
        tie = _tie_to_parent(me)
        try:
            # A session of its own, so that no terminal's Ctrl-C reaches it and the whole group can
            # be ended. Its output goes to a pipe of ours: the user's sys.stdout may be no file.
            self.child = subprocess.Popen(
                list(argv),
                env={**env, "DEEPSEEK_OCR_RUN": self.state.family.marker},
                cwd=self.folder.path,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=tie,  # noqa: PLW1509 - this process has one thread
            )
        except OSError as error:
            msg = "start"
            raise _Failure(
                msg,
                f"{argv[0]} cannot be started: {error.strerror or error}",
                hint=explain(f"{argv[0]}: {error.strerror or error}"),
            ) from error
        assert self.child.stdout is not None  # noqa: S101 - it was asked for
        os.set_blocking(self.child.stdout.fileno(), False)
        _widen_pipe(self.child.stdout.fileno())
        self.state.family.leader = identify(self.child.pid)
        self.state.family.others = ()
        self._publish()

    def _await_ready(self, plan: LaunchPlan, port: int) -> None:
        strange_since: float | None = None
        healthy_since: float | None = None
        while True:
            self._pause(TICK)
            if (code := self._exit_code()) is not None:
                self._drain_rest()
                taken = explain(self.log.tail) == explain("address already in use")
                if taken and not _can_bind(port):
                    raise _PortTaken
                msg = "The server ended before it was ready"
                raise self._start_failure(msg, code)
            status = probe.health(port, timeout=2)
            if status == "refused":
                strange_since = healthy_since = None
                continue
            if not self._is_ours(plan, port):
                # Looked at twice: a server opens its port a moment before it answers.
                strange_since = strange_since or time.monotonic()
                if time.monotonic() - strange_since > 1.5:
                    raise _PortTaken
                continue
            strange_since = None
            if status != 200:
                healthy_since = None
                continue
            healthy_since = healthy_since or time.monotonic()
            code, served = probe.models(port, self.state.api_key)
            found = _pick(served, plan.served_model, time.monotonic() - healthy_since)
            if found is not None:
                self._note_server(found, plan, port)
                return
            if served and time.monotonic() - healthy_since > MODEL_GRACE:
                names = ", ".join(model.id for model in served)
                msg = f"The server is up but serves {names} and not {plan.served_model}"
                raise self._start_failure(msg, None)

    def _is_ours(self, plan: LaunchPlan, port: int) -> bool:
        if plan.container is None:
            return listens(self.state.family, port)
        # A container's port is opened by Docker itself; what tells is that only our key opens it.
        wrong, _ = probe.models(port, "not-" + self.state.api_key)
        return wrong in {0, 401, 403}

    def _note_server(self, found: probe.Model, plan: LaunchPlan, port: int) -> None:
        state = self.state
        state.model = found.id
        state.reader = found.reader
        state.version = probe.version(port, state.api_key)
        state.max_model_len = found.max_model_len
        state.max_concurrency = found.max_num_seqs or _sequences(plan.argv)

    def _watch(self) -> _Failure:
        """Wait until the engine dies, and say how."""
        refused = dead = 0
        answered = asked = time.monotonic()
        while True:
            self._pause(TICK)
            if (code := self._exit_code()) is not None:
                self._drain_rest()
                return self._death(f"The server ended by itself (exit code {code})", code)
            now = time.monotonic()
            if now - asked < (0.4 if dead or refused else HEALTH_EVERY):
                continue
            status = probe.health(self.state.port)
            asked = time.monotonic()
            if status == "silent":
                if asked - answered > SILENT_LIMIT:
                    return self._death(f"The server did not answer for {SILENT_LIMIT:.0f} s", None)
                continue
            answered = asked
            # 503 after it was ready means that the engine behind the server has died.
            dead = dead + 1 if status == 503 else 0
            refused = refused + 1 if status == "refused" else 0
            if dead >= 2:
                return self._death("The engine behind the server has died (/health is 503)", None)
            if refused >= 5:
                return self._death("The server's port is closed", None)

    def _death(self, what: str, code: int | None) -> _Failure:
        tail = self.log.tail
        return _Failure("died", what + ".", hint=explain(tail, code), exit_code=code, log_tail=tail)

    def _start_failure(self, what: str, code: int | None) -> _Failure:
        tail = self.log.tail
        how = "" if code is None else f" (exit code {code})"
        return _Failure(
            "start", f"{what}{how}.", hint=explain(tail, code), exit_code=code, log_tail=tail
        )

    def _await_gpu(self, pids: set[int]) -> None:
        """Wait until the driver has taken the memory back from processes that are gone."""
        if self.options.engine != "vllm":
            return
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if not any(holder.pid in pids for holder in gpu_processes()):
                return
            self._pause(0.5)

    # --- the only place that waits ------------------------------------------------------------

    def _pause(self, seconds: float) -> None:
        """Wait, and meanwhile drain the output and see whether the server is still wanted.

        Raises:
            _Stop: It is not.
        """
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            self._drain(max(0.0, min(left, TICK)))
            self._reap()
            if self.told_to_stop:
                msg = "The server was told to stop."
                raise _Stop(msg)
            self._look_at_leases()
            self._look_at_family()
            if left <= TICK:
                return

    def _drain(self, seconds: float) -> None:
        pipe = self.child.stdout if self.child is not None else None
        if pipe is None or pipe.closed:
            time.sleep(seconds)
            return
        deadline = time.monotonic() + seconds
        while True:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return
            try:
                data = os.read(pipe.fileno(), 262_144)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if not data:
                pipe.close()
                time.sleep(max(0.0, deadline - time.monotonic()))
                return
            self.log.feed(data)

    def _drain_rest(self) -> None:
        """Take what a process that has ended left in the pipe; a grandchild may keep it open."""
        pipe = self.child.stdout if self.child is not None else None
        if pipe is not None and not pipe.closed:
            self._drain(0.1)
            if not pipe.closed:
                pipe.close()
        self.log.flush()

    def _look_at_leases(self) -> None:
        if not self.folder.path.is_dir():
            msg = "The server's state folder was removed."
            raise _Stop(msg)
        try:
            with exclusive(self.folder.gate, timeout=0):
                found = lease.scan(self.folder, tidy=True)
                if found.gone:
                    self.linger = max(found.gone)
                if found.pids or self.folder.is_kept(self.state):
                    self.unused_since = None
                    return
                now = time.monotonic()
                self.unused_since = self.unused_since or now
                # Nothing is gained by waiting for a server that nobody has seen ready.
                linger = self.linger if self.state.phase == "ready" else 0.0
                if now - self.unused_since < linger:
                    return
                # Said with the gate closed: who comes now waits for the end and starts afresh.
                self.state.phase = "stopping"
                self._publish()
        except LockTimeoutError:
            return  # someone is coming in
        msg = "Nobody uses the server any more."
        raise _Stop(msg)

    def _look_at_family(self) -> None:
        stage = self.log.stage
        now = time.monotonic()
        if now - self.looked < (0.5 if self.state.phase != "ready" else 2.0):
            return
        self.looked = now
        changed = False
        if self.state.phase == "starting" or (self.state.phase == "restarting" and self.child):
            changed = bool(stage) and stage != self.state.stage
            self.state.stage = stage or self.state.stage
        spared = {self.reaper[0]} if self.reaper else set()
        family = members(self.state.family, search=False)
        seen = tuple(found for found in family if found.pid not in spared)
        if seen != self.state.family.others:
            self.state.family.others = seen
            changed = True
        if changed:
            self._publish()

    # --- processes ----------------------------------------------------------------------------

    def _exit_code(self) -> int | None:
        return self.child.poll() if self.child is not None else None

    def _end_engine(self) -> list[ProcessId]:
        def tidy() -> None:
            self._drain(0)
            self._reap()

        left = end(
            self.state.family,
            grace=GRACE,
            spare={self.reaper[0]} if self.reaper else (),
            reap=tidy,
        )
        if self.child is not None:
            with suppress(subprocess.TimeoutExpired):
                self.child.wait(2)
            self._drain_rest()
        self._reap()
        self.child = None
        self.state.family.leader = None
        self.state.family.others = ()
        self.state.family.container = None
        return left

    def _reap(self) -> None:
        """Collect what has ended: orphans of the engine that became ours, and a killed reaper."""
        if not hasattr(os, "waitid"):
            return  # macOS: there are no orphans of ours there
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            if self.child is not None and found.si_pid == self.child.pid:
                self.child.poll()
                continue
            with suppress(ChildProcessError):
                os.waitpid(found.si_pid, 0)
            if self.reaper is not None and found.si_pid == self.reaper[0]:
                os.close(self.reaper[1])
                self._fork_reaper()

    def _fork_reaper(self) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writing)
            _reap_after(reading, self.folder, self.state.run)
        os.close(reading)
        self.reaper = (pid, writing)

    def _dismiss_reaper(self) -> None:
        if self.reaper is not None:
            os.write(self.reaper[1], b"done")
            with suppress(ChildProcessError):
                os.waitpid(self.reaper[0], 0)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.told_to_stop = True

    def _publish(self) -> None:
        # A full disk must not end a server that runs.
        with suppress(OSError):
            self.folder.write(self.state)


def _reap_after(reading: int, folder: ServerFolder, run: str) -> None:
    """Wait in a process of its own for the end of the supervisor; if it was killed, clean up."""
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.read(reading, 16):
            os._exit(0)
        with exclusive(folder.gate, timeout=60):
            state = folder.read()
            if state is not None and state.run == run and state.phase not in {"stopped", "failed"}:
                end(state.family, grace=GRACE)
                state.phase = "failed"
                state.api_key = ""
                state.failure = {"kind": "died", "message": "The server's supervisor was killed."}
                folder.write(state)
    finally:
        os._exit(0)


def _pick(served: Sequence[probe.Model], wanted: str, waited: float) -> probe.Model | None:
    for model in served:
        if model.id == wanted:
            return model
    # Our own process, which spells its only model in another case: use the name that it knows.
    if waited > 1.0 and len(served) == 1 and served[0].id.lower() == wanted.lower():
        return served[0]
    return None


def _sequences(argv: Sequence[str]) -> int | None:
    from deepseek_ocr_loaders.engines.vllm import flag_value  # noqa: PLC0415

    value = flag_value(argv, "--max-num-seqs")
    return int(value) if value and value.isdigit() else None


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _can_bind(port: int) -> bool:
    with socket.socket() as tried:
        # A port whose last connections are being closed is free.
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _widen_pipe(descriptor: int) -> None:
    """Let the engine write on while we wait for an answer of it."""
    with suppress(ImportError, OSError, AttributeError):
        import fcntl  # noqa: PLC0415 - not on Windows

        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, 1_048_576)


def _prctl(option: int, value: int) -> None:
    if not sys.platform.startswith("linux"):
        return
    import ctypes  # noqa: PLC0415 - Linux only

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _adopt_orphans() -> None:
    """Become the parent of grandchildren whose parent dies, so that they can be found."""
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def _tie_to_parent(parent: int) -> Any:
    """Give what a child does before it becomes the engine: end when this process does."""

    def tie() -> None:
        # What is ignored here would stay ignored there.
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        _prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)

    return tie


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as `python -m deepseek_ocr_loaders.server.supervisor FOLDER RUN`."""
    path, run = (arguments if arguments is not None else sys.argv[1:])[:2]
    os.umask(0o077)
    folder = ServerFolder(Path(path))
    deadline = time.monotonic() + 5
    while (owner := try_lock(folder.owner)) is None:
        # Someone who asks whether it is locked holds it for an instant.
        if time.monotonic() > deadline:
            return 1
        time.sleep(0.02)
    options = folder.options()
    if options is None:
        return 1
    try:
        Supervisor(folder, run, options).live()
    finally:
        with contextlib.suppress(OSError):
            os.close(owner)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
