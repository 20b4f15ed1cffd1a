"""NVIDIA's program nvidia-cuda-mps-control: starts a GPU's daemon and speaks to it.

Protocol 2 takes commands on stdin, protocol 3 as arguments. Each call is a process of its own, ends by its deadline,
and needs no client library in this process.
Source: MPS documentation r615, "Legacy MPS v2 Interface" and "MPS v3 Interface".
"""

import asyncio
import contextlib
import enum
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.mps import output
from dra_gpu.mps.directories import SERVER, GpuDirectories
from dra_gpu.vendors.base import VendorError
from dra_gpu.vendors.nvidia.driver_root import find_nvml, find_program

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

PROGRAM = "nvidia-cuda-mps-control"
_NO_DAEMON = "cannot find mps control daemon"
_MAX_TEXT = 400
_QUIT_SECONDS = 5  # within the deadline of the call


class Refusal(enum.Enum):
    """Why the program did not do what it was told."""

    NO_DAEMON = "no daemon"  # none listens in the pipe directory
    REFUSED = "refused"  # the daemon said no
    SILENT = "silent"  # no answer by the deadline
    BROKEN = "broken"  # the program is missing, or its output makes no sense


class ControlError(Exception):
    """A command failed; the message holds the command and what was printed."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class MpsHost:
    """How this process starts MPS programs.

    Attributes:
        driver_root: the driver installation as this process sees it.
        own_shm: give each daemon its GPU's directory at /dev/shm (needs CAP_SYS_ADMIN).
        call_seconds: how long one command may take.
    """

    driver_root: Path
    own_shm: bool = True
    call_seconds: float = 10.0


class Control(Protocol):
    """One GPU's control daemon. Every method raises `ControlError`."""

    async def start(self) -> None:
        """Start the daemon and return when the program that starts it has ended; the daemon may take a moment more."""

    async def answers(self) -> bool:
        """Tell whether the daemon answers."""

    async def servers(self) -> tuple[int, ...]:
        """Return the pids of its servers."""

    async def clients(self) -> tuple[output.Client, ...]:
        """Return the attached clients; with classic MPS nobody knows a namespace."""

    async def quit(self) -> None:
        """End the daemon, its servers and their clients."""

    async def ensure_server(self) -> None:
        """Protocol 3: have the server that owns the GPU."""

    async def namespaces(self) -> tuple[output.Namespace, ...]:
        """Protocol 3: list the namespaces."""

    async def create(self, namespace: str) -> None:
        """Protocol 3: make a namespace, without limits."""

    async def set(self, namespace: str, options: tuple[str, ...]) -> None:
        """Protocol 3: change limits; refused while a client is attached."""

    async def delete(self, namespace: str) -> None:
        """Protocol 3: remove a namespace, whatever is attached."""

    async def terminate(self, client: int) -> None:
        """Protocol 3: end a client's use of the GPU; returns once its work has drained."""


class ControlProgram:
    """`Control` by the program of a driver root."""

    def __init__(self, host: MpsHost, gpu: str, directories: GpuDirectories, protocol: MpsProtocol) -> None:
        """Remember where things are; nothing is started.

        Args:
            host: how programs are started.
            gpu: UUID of the GPU that the daemon owns.
            directories: the GPU's.
            protocol: which one the daemon speaks.
        """
        self._host = host
        self._gpu = gpu
        self._directories = directories
        self._protocol = protocol

    async def start(self) -> None:
        """See `Control.start`."""
        program = self._program()
        namespaces = self._protocol is MpsProtocol.NAMESPACE
        arguments = ("-p", "3", "-m", "-d") if namespaces else ("-d", "-multiuser-server")
        command = [str(program), *arguments]
        if self._host.own_shm:
            shm = str(self._directories.shm)
            command = [sys.executable, "-I", "-m", "dra_gpu.mps.launch", shm, *command]
        environment = self._environment(program) | {"CUDA_VISIBLE_DEVICES": self._gpu}
        log = self._directories.log / "start.log"
        # A daemon keeps what it was given as stdout, so that is a file: the end of a pipe would never come.
        with log.open("wb") as file:
            status = await self._run(
                command, environment, stdout=file.fileno(), what=f"{PROGRAM} {' '.join(arguments)}"
            )
        if status[0] != 0:
            text = log.read_text(errors="replace").strip()
            raise ControlError(Refusal.REFUSED, f"`{PROGRAM} {' '.join(arguments)}` ended with {status[0]}: {text!r}")

    async def answers(self) -> bool:
        """See `Control.answers`."""
        try:
            if self._protocol is MpsProtocol.NAMESPACE:
                await self._call("server", "list", "--format=csv,noheader")
            else:
                await self._tell("get_default_active_thread_percentage")
        except ControlError as error:
            if error.refusal in {Refusal.NO_DAEMON, Refusal.SILENT}:
                return False
            raise
        return True

    async def servers(self) -> tuple[int, ...]:
        """See `Control.servers`."""
        if self._protocol is MpsProtocol.CLASSIC:
            return self._read("get_server_list", output.pids, await self._tell("get_server_list"))
        found = self._read("server list", output.servers, await self._call("server", "list", "--format=csv,noheader"))
        return tuple(pid for pid in found.values() if pid is not None)

    async def clients(self) -> tuple[output.Client, ...]:
        """See `Control.clients`."""
        if self._protocol is MpsProtocol.NAMESPACE:
            text = await self._call("client", "list", f"--server={SERVER}", "--format=csv,noheader")
            return self._read("client list", output.clients, text)
        found: dict[int, output.Client] = {}
        for server in await self.servers():
            command = f"get_client_list {server}"
            for pid in self._read(command, output.pids, await self._tell(command)):
                found[pid] = output.Client(pid, str(server), "")
        return tuple(found.values())

    async def quit(self) -> None:
        """See `Control.quit`."""
        if self._protocol is MpsProtocol.CLASSIC:
            await self._tell(f"quit -t {_QUIT_SECONDS}")
            return
        if await self._has_server():
            await self._call("server", "delete", SERVER, "--force")
        await self._call("-q")

    async def ensure_server(self) -> None:
        """See `Control.ensure_server`."""
        if not await self._has_server():
            await self._call("server", "create", SERVER, "--uid=0", f"--allowed-devices={self._gpu}")

    async def namespaces(self) -> tuple[output.Namespace, ...]:
        """See `Control.namespaces`."""
        text = await self._call("namespace", "list", f"--server={SERVER}", "--format=csv,noheader")
        return self._read("namespace list", output.namespaces, text)

    async def create(self, namespace: str) -> None:
        """See `Control.create`."""
        await self._call("namespace", "create", namespace, f"--server={SERVER}")

    async def set(self, namespace: str, options: tuple[str, ...]) -> None:
        """See `Control.set`."""
        await self._call("namespace", "set", namespace, f"--server={SERVER}", *options)

    async def delete(self, namespace: str) -> None:
        """See `Control.delete`."""
        await self._call("namespace", "delete", namespace, f"--server={SERVER}", "--force")

    async def terminate(self, client: int) -> None:
        """See `Control.terminate`."""
        await self._call("client", "terminate", str(client))

    async def _has_server(self) -> bool:
        text = await self._call("server", "list", "--format=csv,noheader")
        return SERVER in self._read("server list", output.servers, text)

    async def _tell(self, command: str) -> str:
        return await self._call(stdin=command)

    async def _call(self, *arguments: str, stdin: str = "") -> str:
        program = self._program()
        what = stdin or " ".join(arguments)
        status, text = await self._run(
            [str(program), *arguments], self._environment(program), stdin=f"{stdin}\n".encode(), what=what
        )
        if _NO_DAEMON in text.lower():
            raise ControlError(Refusal.NO_DAEMON, f"`{what}`: no daemon answers in {self._directories.pipe}")
        if status != 0:
            raise ControlError(Refusal.REFUSED, f"`{what}` ended with {status}: {text.strip()[:_MAX_TEXT]!r}")
        return text

    async def _run(
        self,
        command: list[str],
        environment: Mapping[str, str],
        *,
        what: str,
        stdin: bytes = b"",
        stdout: int | None = None,
    ) -> tuple[int, str]:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=environment,
                stdin=asyncio.subprocess.PIPE if stdout is None else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if stdout is None else stdout,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            raise ControlError(Refusal.BROKEN, f"{command[0]} cannot be started ({error}): check the driver") from error
        try:
            async with asyncio.timeout(self._host.call_seconds):
                text, _ = await process.communicate(stdin if stdout is None else None)
        except TimeoutError as error:
            await _end(process)
            raise ControlError(
                Refusal.SILENT,
                f"`{what}` did not end within {self._host.call_seconds:g} s: the daemon or its GPU hangs",
            ) from error
        except BaseException:
            await _end(process)
            raise
        assert process.returncode is not None  # communicate() has waited for it
        return process.returncode, (text or b"").decode(errors="replace")

    def _program(self) -> Path:
        try:
            return find_program(self._host.driver_root, PROGRAM)
        except VendorError as error:
            raise ControlError(Refusal.BROKEN, str(error)) from error

    def _environment(self, program: Path) -> dict[str, str]:
        try:
            libraries = find_nvml(self._host.driver_root).parent
        except VendorError as error:
            raise ControlError(Refusal.BROKEN, str(error)) from error
        return {
            "PATH": f"{program.parent}:/usr/bin:/bin",  # the daemon starts nvidia-cuda-mps-server by its name
            "LD_LIBRARY_PATH": str(libraries),
            "CUDA_MPS_PIPE_DIRECTORY": str(self._directories.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self._directories.log),
        }

    @staticmethod
    def _read(command: str, parse: "_Parser[T]", text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise ControlError(Refusal.BROKEN, f"`{command}` printed {text.strip()[:_MAX_TEXT]!r}: {error}") from error


class _Parser(Protocol[T_co]):
    def __call__(self, text: str, /) -> T_co: ...


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the program and collect it; it may have ended by itself meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
