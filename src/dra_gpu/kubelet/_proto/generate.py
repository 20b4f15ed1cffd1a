"""Make the Python modules of this folder from its .proto files: `python -m dra_gpu.kubelet._proto.generate`.

Run it with the versions of requirements/dev.lock and commit what it writes together with the .proto files. The
grpcio-tools version is pinned there because generated code refuses a protobuf runtime older than its generator.

The include root is the source tree, so that each file enters protobuf's process-wide descriptor pool under its full
path. (The pool is keyed by file name; upstream calls all of these files `api.proto`.)
"""

import os
import sys
from importlib.resources import files
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SOURCE_ROOT = FOLDER.parents[2]


def main() -> int:
    """Run protoc with the grpclib plugin; the return value is protoc's exit status."""
    from grpc_tools import protoc  # a development tool: the driver does not have it

    bin_dir = Path(sys.executable).parent
    os.environ["PATH"] = f"{bin_dir}{os.pathsep}{os.environ.get('PATH', '')}"
    arguments = [
        "protoc",
        f"-I{SOURCE_ROOT}",
        f"-I{files('grpc_tools') / '_proto'}",
        f"--python_out={SOURCE_ROOT}",
        f"--pyi_out={SOURCE_ROOT}",
        f"--grpclib_python_out={SOURCE_ROOT}",
        *(str(path) for path in sorted(FOLDER.glob("*.proto"))),
    ]
    return int(protoc.main(arguments))


if __name__ == "__main__":
    sys.exit(main())
