"""Scripts of the folder ``scripts`` in the ranks that there are: ``one_after_another.py FOLDER NAME ARGUMENTS , …``."""

import os
import sys
import types
from pathlib import Path

import torch.distributed as dist

SCRIPTS = Path(__file__).with_name("scripts")


def run(path, arguments):
    """As ``python PATH ARGUMENTS``."""
    sys.argv[:] = [path, *arguments]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = path
    environment = dict(os.environ)
    exec(compile(Path(path).read_text(), path, "exec"), main.__dict__)
    os.environ.clear()
    os.environ.update(environment)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    folder, *words = sys.argv[1:]
    sys.path.insert(0, str(SCRIPTS))
    for part in " ".join(words).split(" , "):
        name, *arguments = part.split()
        os.makedirs(f"{folder}/{name}", exist_ok=True)
        run(str(SCRIPTS / f"{name}.py"), [f"{folder}/{name}", *arguments])
