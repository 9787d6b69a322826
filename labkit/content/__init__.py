"""The content of the course and of the assignments: questions, hints, broken models, tasks, words.

The repository keeps it in ``content/``, beside ``notebooks/``; a wheel has it here, in ``labkit/content``. Either way
Python finds its modules as ``labkit.content.…``, and everything else lies as a file under :data:`FOLDER`.
The rooms that use it ask by name, with :func:`module`, so they hold no list of what there is.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType

_here = Path(__file__).parent
FOLDER = _here if (_here / "README.md").is_file() else _here.parents[1] / "content"
__path__ = [str(_here), str(FOLDER)]


def module(name: str) -> ModuleType:
    """The module ``name`` of the content, for example ``"exercises.split"``."""
    return import_module(".".join([__name__, name]))
