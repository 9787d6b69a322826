"""Classify errors of the user's model, and find the line of the user's code that raised them."""

from __future__ import annotations

import re
import sysconfig
import traceback

from labkit.base.language import say
from labkit.base.ours import is_our_file
from simgpu.fidelity import NotSimulated

# Show at most this many characters of an error message.
_LONGEST = 300


def words(error: Exception) -> str:
    """Return the text of ``error``, or "" if its ``__str__`` fails."""
    try:
        return str(error)
    except Exception:
        return ""


def is_mix(error: Exception) -> bool:
    """Return whether ``error`` is one of PyTorch's two errors for tensors on different devices."""
    text = words(error)
    return "to be on the same device" in text or "different from other tensors on" in text


def in_replica(error: Exception) -> bool:
    """Return whether a replica raised ``error``, rather than scatter, replicate or gather."""
    # torch/_utils.py, ExceptionWrapper.reraise
    return bool(re.match(r"Caught \w+ in replica \d", words(error)))


# PyTorch's errors for kernels that the CPU lacks and a GPU may have.
_NO_KERNEL = re.compile(
    r"\" not implemented for '|with arguments from the 'CPU' backend|are not implemented for the CPU"
)


def is_beyond(error: Exception) -> bool:
    """Return whether ``error`` is a limit of the simulation, not a fault of the model."""
    return isinstance(error, NotSimulated) or bool(_NO_KERNEL.search(words(error)))


# The functions of scripts and notebooks that call the check-up.
_CALLERS = ("diagnose", "<module>")
_IN_A_FILE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def line_of(error: Exception) -> str:
    """Return the line of the user's own code where ``error`` happened: ``model.py, line 12, in forward``."""
    return user_line("".join(traceback.format_exception(error)))


def user_line(text: str) -> str:
    """Return the last line of the user's own code in a traceback, or else of a library other than torch, or ""."""
    own: tuple[str, str, str] | None = None
    libraries: tuple[str, str, str] | None = None
    for found in _IN_A_FILE.findall(text):
        path, _, function = found
        if is_our_file(path):
            continue
        if library := re.search(r"[\\/]site-packages[\\/](torch[\\/])?", path):
            libraries = libraries if library[1] else found
        elif not path.startswith(("<frozen", sysconfig.get_path("stdlib"))) and function not in _CALLERS:
            own = found
    if not (last := own or libraries):
        return ""
    path, line, function = last
    name = re.split(r"[\\/]", path)[-1]
    # Jupyter runs a cell as a file with a number for a name, a new one every time.
    name = say(en="the notebook", zh="笔记本") if re.fullmatch(r"\d+\.py", name) else name
    return say(en=f"{name}, line {line}, in {function}", zh=f"{name} 第 {line} 行，{function}")


_LAST_WORDS = re.compile(r"^(?:\w+\.)*(\w+)(?:: (.*))?$")


def short_text(error: Exception) -> str:
    """Return class and message of the error in one line; take them from the traceback in a replica's error."""
    text = words(error).strip()
    kind, lines = type(error).__name__, [line for line in text.splitlines() if line.strip()]
    if text.startswith("Caught ") and len(lines) > 1:
        # The original error's class and message follow the indented frames.
        last = max((at for at, line in enumerate(lines) if line.startswith("  File ")), default=0)
        last_words = next((found for line in lines[last + 1 :] if (found := _LAST_WORDS.match(line))), None)
        if last_words:
            kind, lines = last_words[1], [last_words[2]] if last_words[2] else []
    if not lines:
        return kind
    # PyTorch goes on with why a backend may lack an operator, findings with a full stop of their own.
    first = lines[0].partition(" This could be because")[0].rstrip(".!")
    return f"{kind}: {first if len(first) <= _LONGEST else first[: _LONGEST - 1] + '…'}"
