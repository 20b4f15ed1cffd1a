# Started for each command: pathlib would cost more than all it does.
# ruff: noqa: PTH100, PTH101, PTH103, PTH104, PTH108, PTH110, PTH118, PTH120, PTH123, T201, C901, PLR0912
"""A tiny nvidia-cuda-mps-control for tests: both protocols as far as the MPS service uses them, no limits enforced.

One program, as the real one: started with -d it becomes a daemon, else it is the command line. A daemon listens at
`<pipe>/control` and, with protocol 3, at `<pipe>/<server>/<namespace>/control`; a client attaches by connecting and
saying so, and is known by its socket's credentials.
"""

import contextlib
import json
import os
import selectors
import shutil
import socket
import struct
import sys
import time

PIPE = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
PID_FILE = f"{PIPE}/nvidia-cuda-mps-control.pid"


class RefusedError(Exception):
    pass


class Daemon:
    def __init__(self, protocol):
        self.protocol = protocol
        self.selector = selectors.DefaultSelector()
        self.clients = {}  # socket: (pid, namespace)
        self.namespaces = {}  # name: limits
        self.listeners = {}
        self.server = False
        self.running = True
        self.listen(f"{PIPE}/control", "")

    def listen(self, path, namespace):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path)
        os.chmod(path, 0o666)
        listening.listen(16)
        self.listeners[namespace] = listening
        self.selector.register(listening, selectors.EVENT_READ, namespace)

    def serve(self):
        while self.running:
            for key, _ in self.selector.select():
                if key.fileobj in self.clients:
                    self.drop(key.fileobj)
                elif key.fileobj in self.listeners.values():
                    self.accept(key.fileobj, key.data)
        os.unlink(PID_FILE)

    def accept(self, listening, namespace):
        connection, _ = listening.accept()
        line = connection.makefile().readline()
        if not line:
            connection.close()
            return
        if line == "client\n":
            pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            self.clients[connection] = (pid, namespace or "default")
            self.server = True
            self.selector.register(connection, selectors.EVENT_READ)
            connection.send(b"attached\n")
            return
        try:
            reply = [0, self.command(json.loads(line))]
        except RefusedError as error:
            reply = [1, f"{error}\n"]
        connection.send(json.dumps(reply).encode() + b"\n")
        connection.close()

    def drop(self, connection):
        self.selector.unregister(connection)
        del self.clients[connection]
        connection.close()

    def pids(self, namespace):
        return [pid for pid, of in self.clients.values() if namespace is None or of == namespace]

    def command(self, words):
        flags = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
        words = [word for word in words if not word.startswith("--")]
        if self.protocol == 2:
            return self.classic(words)
        match words:
            case ["-q"]:
                self.running = False
                return ""
            case ["server", "list"]:
                return f"gpu,0,{os.getpid()},Ready,{PIPE}/gpu,all,-\n" if self.server else ""
            case ["server", "create", name]:
                os.makedirs(f"{PIPE}/{name}", exist_ok=True)
                self.server = True
                return ""
            case ["server", "delete", _]:
                self.need_free(None, flags)
                for connection in [*self.clients]:
                    self.drop(connection)
                self.server = False
                return ""
            case ["namespace", "list"]:
                fields = ("pinned-memory-limit", "active-thread-percentage", "client-priority")
                return "".join(
                    f"{name},gpu,Ready,{','.join(limits.get(field, '-') for field in fields)},{PIPE}/gpu/{name}\n"
                    for name, limits in self.namespaces.items()
                )
            case ["namespace", "create", name]:
                if name in self.namespaces:
                    raise RefusedError(f"Namespace '{name}' already exists")
                os.makedirs(f"{PIPE}/gpu/{name}", mode=0o700, exist_ok=True)
                self.listen(f"{PIPE}/gpu/{name}/control", name)
                self.namespaces[name] = {}
                return ""
            case ["namespace", "set", name]:
                self.need_free(name, {})
                del flags["server"]
                self.namespaces[name] |= flags
                return ""
            case ["namespace", "delete", name]:
                self.need_free(name, flags)
                for connection in [socket for socket, (_, of) in self.clients.items() if of == name]:
                    self.drop(connection)
                listening = self.listeners.pop(name)
                self.selector.unregister(listening)
                listening.close()
                del self.namespaces[name]
                shutil.rmtree(f"{PIPE}/gpu/{name}", ignore_errors=True)
                return ""
            case ["client", "list"]:
                return "".join(f"{pid},gpu,0,{of},python a,b.py\n" for pid, of in self.clients.values())
            case ["client", "terminate", pid]:
                for connection in [socket for socket, (of, _) in self.clients.items() if of == int(pid)]:
                    self.drop(connection)
                return ""
        raise RefusedError(f"unknown command {words}")

    def classic(self, words):
        match words:
            case ["get_default_active_thread_percentage"]:
                return "100.0\n"
            case ["get_server_list"]:
                return f"{os.getpid()}\n" if self.server else ""
            case ["get_client_list", _]:
                return "".join(f"{pid}\n" for pid in self.pids(None))
            case ["quit", "-t", _]:
                self.running = False
                return ""
        raise RefusedError(f"unknown command {words}")

    def need_free(self, namespace, flags):
        if "force" not in flags and (attached := self.pids(namespace)):
            raise RefusedError(f"clients are attached: {attached}")


def start(protocol):
    if os.path.exists(os.path.join(os.path.dirname(os.path.abspath(__file__)), "broken")):
        sys.exit("the driver is broken today")
    if ask("-q", probe=True):
        sys.exit("An instance of this daemon is already running")
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    daemon = Daemon(protocol)
    with open(PID_FILE + ".new", "w") as file:
        file.write(f"{os.getpid()}\n")
    os.rename(PID_FILE + ".new", PID_FILE)
    daemon.serve()
    os._exit(0)


def ask(*words, probe=False):
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(f"{PIPE}/control")
    except OSError:
        if probe:
            return False
        print("Cannot find MPS control daemon process")
        sys.exit(1)
    if probe:
        connection.close()
        return True
    connection.send(json.dumps(words).encode() + b"\n")
    status, text = json.loads(connection.makefile().readline())
    sys.stdout.write(text)
    return status


def main():
    match sys.argv[1:]:
        case ["-p", "3", "-m", "-d"]:
            start(3)
        case ["-d", "-multiuser-server"]:
            start(2)
        case []:
            for line in sys.stdin:
                ask(*line.split())
        case words:
            sys.exit(ask(*words))


if __name__ == "__main__":
    if os.path.exists(os.path.join(os.path.dirname(os.path.abspath(__file__)), "slow")):
        time.sleep(3600)
    main()
